#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Wheels for all Pythons that are supported and can be found, out of the library of one build folder.

    cmake --build build/cuda --target tangram_library && tools/build_wheels.py build/cuda dist

Python 3.10 and 3.11 get one each; one of the stable ABI serves 3.12 and all later ones. Only the binding is compiled
for each of them, in TREE/wheel/<tag>, where a virtual environment has the tools.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tools" / "wheel_requirements.txt"
LAST_OWN = 11  # from 3.12 on the stable ABI has what nanobind needs
ASK = """
import ensurepip, pathlib, sys, sysconfig, venv
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
print(sys.version_info.minor)
"""


def pythons() -> dict[int, str]:
    """{minor version: interpreter} of the Pythons from 3.10 on that can make environments and build extensions."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(10, 20)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [sys.executable, *map(str, sorted(pyenv.glob("versions/3.*/bin/python3")))]
    found: dict[int, str] = {}
    for candidate in filter(None, candidates):
        answer = subprocess.run([candidate, "-I", "-c", ASK], capture_output=True, text=True)
        if answer.returncode == 0 and int(answer.stdout) >= 10:
            found.setdefault(int(answer.stdout), candidate)
    return dict(sorted(found.items()))


def targets() -> dict[str, str]:
    """{tag: interpreter} of the wheels that can be built here."""
    found = pythons()
    chosen = {f"cp3{minor}": found[minor] for minor in found if minor <= LAST_OWN}
    newer = [minor for minor in found if minor > LAST_OWN]
    return {**chosen, "cp312-abi3": found[newer[0]]} if newer else chosen


def run(*command: object) -> None:
    """Runs quietly; what fails is shown."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\nbuild_wheels: failed: {' '.join(words)}")


def environment(folder: Path, interpreter: str) -> Path:
    """The Python of a virtual environment that has the tools; an earlier one is used again."""
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "venv" / f"tools-{zlib.crc32(REQUIREMENTS.read_bytes()):08x}"
    if not stamp.exists():
        run(interpreter, "-m", "venv", "--clear", folder / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS)
        stamp.touch()
    return python


def build(tree: Path, tag: str, interpreter: str, out: Path) -> None:
    start = time.monotonic()
    folder = tree / "wheel" / tag
    python = environment(folder, interpreter)
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "TANGRAM_LIBRARY_TREE": tree,
        "TANGRAM_BUILD_PYTHON": "ON",
        "Python_EXECUTABLE": python,
    }
    run("cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *(f"-D{name}={value}" for name, value in defines.items()))
    run("cmake", "--build", folder, "--target", "tangram_python", "tangram_python_stub")
    for old in out.glob(f"tangram_attention-*-{tag}-*.whl"):
        old.unlink()
    run(python, ROOT / "tools" / "pack_wheel.py", folder, out)
    (wheel,) = out.glob(f"tangram_attention-*-{tag}-*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="build folder, with the target tangram_library built")
    parser.add_argument("out", type=Path, help="folder for the wheels")
    arguments = parser.parse_args()
    tree, out = arguments.tree.resolve(), arguments.out.resolve()
    wanted = targets()
    for tag in sorted({"cp310", "cp311", "cp312-abi3"} - set(wanted)):
        print(f"build_wheels: no wheel {tag}: its Python, with venv and Python.h, was not found", file=sys.stderr)
    for tag, interpreter in wanted.items():
        build(tree, tag, interpreter, out)


if __name__ == "__main__":
    main()
