# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Packages of training stacks, each in a folder of its own beside the torch of the environment (tools/setup_stacks.sh
puts them there)."""

import os
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("TANGRAM_STACKS") or Path(__file__).resolve().parents[2] / "build" / "stacks")


def has(*stacks):
    return all((FOLDER / stack).is_dir() for stack in stacks)


def use(*stacks):
    """Puts the packages of these stacks in front of others."""
    sys.path[:0] = [str(FOLDER / stack) for stack in stacks]
