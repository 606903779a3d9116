# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The package holds what its types promise: mypy --strict over sources and the generated stub.

Reading torch takes mypy four fifths of its time, so that `make test` takes what comes from it for anything, and `make
test-long` reads it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tangram

# What is said of values that may be anything only because torch is not read.
WITHOUT_TORCH = """[mypy]
strict = true
python_version = 3.10
warn_unused_ignores = false
warn_return_any = false
disallow_subclassing_any = false
disallow_untyped_decorators = false
disable_error_code = valid-type
[mypy-transformers.*]
ignore_missing_imports = true
follow_imports = skip
[mypy-torch.*]
ignore_missing_imports = true
follow_imports = skip
"""


def problems(package, *options):
    command = [sys.executable, "-m", "mypy", *options, str(package)]
    result = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def test_mypy_finds_nothing(tmp_path):
    pytest.importorskip("mypy")
    package = Path(tangram.__file__).parent
    if os.environ.get("TANGRAM_TEST_LONG") == "1":
        pytest.importorskip("torch", reason="torch is not installed, whose types the package uses")
        cache = package.parent / "mypy_cache"  # reading torch's types takes half a minute
        assert problems(package, "--strict", "--cache-dir", str(cache)) == ""
    else:
        config = tmp_path / "mypy.ini"
        config.write_text(WITHOUT_TORCH)
        assert problems(package, "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")) == ""


def test_mypy_finds_what_is_wrong(tmp_path):
    pytest.importorskip("mypy")
    config, wrong = tmp_path / "mypy.ini", tmp_path / "wrong.py"
    config.write_text(WITHOUT_TORCH)
    wrong.write_text("def half(number: int) -> int:\n    return str(number)\n")
    assert "Incompatible return value" in problems(wrong, "--config-file", str(config), "--cache-dir", os.devnull)
