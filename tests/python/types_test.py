# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The package holds what its types promise: mypy --strict over sources and the generated stub."""

import subprocess
import sys
from pathlib import Path

import pytest

import tangram


def test_mypy_finds_nothing():
    pytest.importorskip("torch", reason="torch is not installed, whose types the package uses")
    pytest.importorskip("mypy")
    package = Path(tangram.__file__).parent
    root = Path(__file__).resolve().parents[2]
    cache = package.parent / "mypy_cache"  # reading torch's types takes half a minute
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(package)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
