# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Wheels from sources, as users and `make wheel` build them. Minutes of compiling: run by `make test-long`."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from bare import PROGRAM, bare_environment, install, run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from build_wheels import pythons, targets  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("TANGRAM_TEST_LONG") != "1", reason="make test-long builds wheels")


def try_wheel(wheel, interpreter, folder):
    """Runs the program in a bare environment; what it prints."""
    python = bare_environment(interpreter, folder)
    install(sys.executable, python, wheel)
    version, names, place = run(python, "-W", "error", "-c", PROGRAM, PATH=python.parent).split()
    assert version == (ROOT / "VERSION").read_text().strip() and place.startswith(str(folder))
    return names.split(",")


def test_pip_builds_a_wheel_that_works(tmp_path):
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    tag = "-cp312-abi3-" if sys.version_info >= (3, 12) else f"-cp3{sys.version_info.minor}-"
    assert tag in wheel.name
    names = try_wheel(wheel, sys.executable, tmp_path / "venv")
    assert ("sm90" in names) == (shutil.which("nvcc") is not None)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """{tag: wheel} of all Pythons that are here, by `make wheel`, without GPU kernels."""
    out = tmp_path_factory.mktemp("dist")
    printed = run("make", "-C", ROOT, "wheel", "WHEEL_PRESET=cpu", f"DIST={out}")
    assert printed.count(".whl:") == len(targets()), printed
    return {tag: next(out.glob(f"*-{tag}-*.whl")) for tag in targets()}


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_every_python_here_has_its_wheel(wheels, minor, tmp_path):
    if minor not in pythons():
        pytest.skip(f"Python 3.{minor} is not here")
    wheel = wheels["cp312-abi3" if minor >= 12 else f"cp3{minor}"]
    assert int(re.search(r"-manylinux_2_(\d+)_", wheel.name)[1]) <= 35, wheel.name
    assert "cpu" in try_wheel(wheel, pythons()[minor], tmp_path / "venv")


def test_the_oldest_python_passes_the_tests_without_torch(wheels, tmp_path):
    if 10 not in pythons() or sys.version_info.minor == 10:
        pytest.skip("Python 3.10 is not here, or runs all tests")
    run(pythons()[10], "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", wheels["cp310"], "numpy>=1.24", "pytest>=8")
    tests = [ROOT / "tests" / "python" / f"{name}_test.py" for name in ("mask", "plan", "flex_numpy")]
    printed = run(python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *tests)
    assert re.search(r"[1-9]\d passed", printed), printed
