# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every test of Python: numbers drawn without a generator are the same in every run."""

import random
import sys

import pytest


@pytest.fixture(autouse=True)
def seeded():
    """Seeds the global generators, so that a test that fails on one machine fails on every machine."""
    random.seed(0)
    if "torch" in sys.modules:  # not every test needs it, and importing it takes seconds
        sys.modules["torch"].manual_seed(0)
