# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel that is packed from this build: what it holds and links, and that it works where nothing else is.

How wheels are built from sources, and for other Pythons, is tested in wheel_build_test.py.
"""

import importlib.util
import platform
import re
import resource
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from bare import PROGRAM, bare_environment, install, run
from tangram import _core

ROOT = Path(__file__).resolve().parents[2]
TREE = Path(_core.__file__).parents[2]
# What every Linux with a C++ runtime has.
RUNTIME = re.compile(r"^(libstdc\+\+|libgcc_s|libc|libm|libpthread|libdl|librt|ld-linux-.*)\.so")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if not (TREE / "CMakeCache.txt").exists():
        pytest.skip(f"tangram is installed: {TREE} is no build folder")
    for tool in "scikit_build_core", "auditwheel":
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed (tools/setup_python.sh)")
    out = tmp_path_factory.mktemp("dist")
    return Path(run(sys.executable, ROOT / "tools" / "pack_wheel.py", TREE, out).strip())


@pytest.fixture(scope="module")
def extension(wheel, tmp_path_factory):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.startswith("tangram/_core.") and n.endswith(".so"))
        return Path(archive.extract(name, tmp_path_factory.mktemp("extension")))


def test_it_works_where_nothing_else_is_within_ten_seconds(wheel, tmp_path):
    def spent():
        """Processor time, which does not depend on what else the machine does."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    python = bare_environment(sys.executable, tmp_path / "venv")
    before = spent()
    install(sys.executable, python, wheel)
    version, names, place = run(python, "-W", "error", "-c", PROGRAM, PATH=python.parent).split()
    assert spent() - before <= 10
    assert version == (ROOT / "VERSION").read_text().strip()
    assert place.startswith(str(tmp_path))
    assert {"cpu", "reference"} <= set(names.split(","))
    assert names.split(",") == [info.name for info in __import__("tangram").list_backends()]


def test_it_holds_the_package_and_nothing_else(wheel, extension):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    package = {str(p.relative_to(ROOT / "python")) for p in (ROOT / "python" / "tangram").rglob("*.py")}
    held = {name for name in names if ".dist-info/" not in name}
    assert held == package | {"tangram/py.typed", "tangram/_core.pyi", f"tangram/{extension.name}"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "Requires-Dist: torch" in metadata and "extra == 'torch'" in metadata.replace('"', "'")


def test_its_name_says_where_it_runs(wheel, extension):
    stable = sys.version_info >= (3, 12)
    own = f"cp3{sys.version_info.minor}"
    assert ("-cp312-abi3-" if stable else f"-{own}-{own}-") in wheel.name and ("abi3" in extension.name) == stable
    newest = re.search(r"-manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    assert newest, wheel.name
    system = platform.freedesktop_os_release()
    if (system["ID"], system.get("VERSION_ID")) == ("debian", "12"):  # where wheels are made; newer ones need newer
        assert int(newest[1]) <= 35, wheel.name


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_it_carries_all_that_it_links_but_the_runtime(extension):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", extension))
    assert needed and [library for library in needed if not RUNTIME.match(library)] == []
