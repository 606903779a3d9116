# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""`pip install .` in a fresh environment: what the wheel holds and links, and that it works without NumPy and torch.

A Python from 3.12 on makes a wheel of the stable ABI: the oldest that is here builds it, and all of them try it. The
oldest Python that is promised builds one of its own, and runs the tests that need no torch.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What every Linux with a C++ runtime has.
RUNTIME = re.compile(r"^(libstdc\+\+|libgcc_s|libc|libm|libpthread|libdl|librt|ld-linux-.*)\.so")
OFFLINE = re.compile(r"No matching distribution found|Failed to establish a new connection|Temporary failure in name")
PROGRAM = """
import tangram
mask = tangram.Mask.varlen([0, 700, 1500, 4096])
plan = tangram.plan(mask, 4)
assert plan.balance < 1.1 and tangram.Plan.from_json(plan.to_json()) == plan
assert "<svg" in mask._repr_html_()
names = [info.name for info in tangram.list_backends()]
assert "cpu" in names and "reference" in names
try:
    tangram.flex_flash_attn_func([[[1.0]]], None, None, mask)
except tangram.InvalidArgument as error:
    assert "must be a tensor or a NumPy array" in str(error)
try:
    tangram.mask_key
except ModuleNotFoundError as error:
    assert "tangram.mask_key needs torch, which is not installed" in str(error)
import importlib.util
assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("torch") is None
print(tangram.__version__, ",".join(names), tangram.__file__)
"""


def run(*command, **env):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CMAKE_ARGS")}
    command = [str(part) for part in command]
    result = subprocess.run(command, env={**environment, **env}, capture_output=True, text=True, timeout=1500)
    printed = result.stdout + result.stderr
    if result.returncode != 0 and OFFLINE.search(printed):
        pytest.skip("the requirements of the build cannot be downloaded")
    assert result.returncode == 0, printed[-6000:]
    return result.stdout


def pythons():
    """{minor version: interpreter} of the Pythons 3.x on this machine that can make environments."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(10, 20)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [sys.executable, *sorted(root.glob("versions/3.*/bin/python3"))]
    found = {}
    for candidate in filter(None, candidates):
        ask = "import ensurepip, sys, venv; print(sys.version_info.minor)"
        answer = subprocess.run([candidate, "-I", "-c", ask], capture_output=True, text=True)
        if answer.returncode == 0 and int(answer.stdout) >= 10:
            found.setdefault(int(answer.stdout), candidate)
    return found


def build_wheel(interpreter, folder, *settings):
    """The wheel that this Python builds, and the Python of a fresh environment that has it."""
    run(interpreter, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    # As the other builds of the tests compile, so that a compiler cache knows most of it.
    same = {"CC": "cc", "CXX": "c++"} if shutil.which("cc") and shutil.which("c++") else {}
    defines = [f"--config-settings=cmake.define.{setting}" for setting in ("TANGRAM_WERROR=ON", *settings)]
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", folder, *defines, ROOT, **same)
    (wheel,) = folder.glob("*.whl")
    run(python, "-m", "pip", "install", wheel)
    return wheel, python


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Of this Python. The build folder is the one that users get."""
    return build_wheel(sys.executable, tmp_path_factory.mktemp("wheel"))


def test_it_works_where_nothing_else_is(installed):
    version, names, place = run(installed[1], "-I", "-c", PROGRAM).split()
    assert version == (ROOT / "VERSION").read_text().strip()
    assert "site-packages" in place and str(ROOT) not in place
    if shutil.which("nvcc") and os.environ.get("TANGRAM_CUDA", "ON") != "OFF":
        assert "sm90" in names.split(",")


def test_the_wheel_holds_the_package_and_nothing_else(installed):
    wheel, _ = installed
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    package = {str(p.relative_to(ROOT / "python")) for p in (ROOT / "python" / "tangram").rglob("*.py")}
    extension = [n for n in names if n.startswith("tangram/_core.") and n.endswith(".so")]
    assert len(extension) == 1
    held = {n for n in names if ".dist-info/" not in n}
    assert held == package | {"tangram/py.typed", "tangram/_core.pyi", extension[0]}
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "Requires-Dist: torch" in metadata and "extra == 'torch'" in metadata.replace('"', "'")
    tag = "cp312-abi3" if sys.version_info >= (3, 12) else f"cp3{sys.version_info.minor}-"
    assert tag in wheel.name and ("abi3" in extension[0]) == (sys.version_info >= (3, 12))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_it_carries_all_that_it_links_but_the_runtime(installed, tmp_path):
    with zipfile.ZipFile(installed[0]) as archive:
        name = next(n for n in archive.namelist() if n.startswith("tangram/_core.") and n.endswith(".so"))
        path = archive.extract(name, tmp_path)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))
    assert needed and [library for library in needed if not RUNTIME.match(library)] == []


def test_one_wheel_of_the_stable_abi_serves_all_newer_pythons(request, tmp_path):
    newer = {minor: python for minor, python in sorted(pythons().items()) if minor >= 12}
    if not newer:
        pytest.skip("no Python from 3.12 on is here")
    if sys.version_info >= (3, 12):
        wheel = request.getfixturevalue("installed")[0]
    else:
        wheel = build_wheel(next(iter(newer.values())), tmp_path)[0]
    assert "-cp312-abi3-" in wheel.name, wheel.name
    for minor, interpreter in newer.items():
        run(interpreter, "-m", "venv", tmp_path / f"venv{minor}")
        python = tmp_path / f"venv{minor}" / "bin" / "python"
        run(python, "-m", "pip", "install", "--no-deps", wheel)
        _, names, place = run(python, "-I", "-c", PROGRAM).split()
        assert place.startswith(str(tmp_path)) and "cpu" in names.split(","), (minor, place, names)


def test_the_oldest_python_builds_it_and_passes_the_tests_without_torch(tmp_path):
    oldest = pythons().get(10)
    if oldest is None or sys.version_info.minor == 10:
        pytest.skip("Python 3.10 is not here, or runs all tests")
    wheel, python = build_wheel(oldest, tmp_path, "TANGRAM_CUDA=OFF")
    assert "-cp310-cp310-" in wheel.name, wheel.name
    run(python, "-m", "pip", "install", "numpy>=1.24", "pytest>=8")
    names = ("mask", "plan", "flex_numpy")
    tests = [ROOT / "tests" / "python" / f"{name}_test.py" for name in names]
    printed = run(python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *tests)
    assert re.search(r"[1-9]\d passed", printed), printed
