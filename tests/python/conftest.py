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


@pytest.fixture
def bounds():
    """Sets the bounds of caches as they were after the test."""
    import tangram
    from tangram import _cache, _prepared

    before = dict(_cache._bounds)
    yield
    defaults = {"masks": _prepared.MAX_BYTES, "ranges": _prepared.MAX_BYTES}
    for name, default in {**defaults, "host_buffers": 256 << 20, "borders": 16 << 20}.items():
        tangram.set_cache_bytes(name, before.get(name, default))
    _cache._bounds.clear()
    _cache._bounds.update(before)
