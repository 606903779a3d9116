# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, step by step in a fresh Debian 12 of its own: no container engine is needed, root is.

Run by `make test-long`, because the Debian has to be downloaded and a wheel be built.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bare import run

ROOT = Path(__file__).resolve().parents[2]
BASE, SUITE = "debian:12-slim", "bookworm"

# Marks, not a skip of the module: a file in which pytest finds no test at all fails.
pytestmark = [
    pytest.mark.skipif(os.environ.get("TANGRAM_TEST_LONG") != "1", reason="make test-long builds the image"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="a fresh Debian needs root and debootstrap"
    ),
]


@pytest.fixture
def debian(tmp_path):
    """The folder of a Debian that has what the base image has."""
    root = tmp_path / "root"
    try:
        run("debootstrap", "--variant=minbase", SUITE, root)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def context(tmp_path):
    """The build context of `make image`: wheels and tools."""
    run("make", "-C", ROOT, "wheel", "WHEEL_PRESET=cpu", f"DIST={tmp_path / 'context' / 'dist'}")
    if not list((tmp_path / "context" / "dist").glob("*-cp311-*.whl")):
        pytest.skip("Debian 12 has Python 3.11, which is not here to build a wheel for it")
    shutil.copytree(ROOT / "tools", tmp_path / "context" / "tools")
    return tmp_path / "context"


def instructions():
    """[(instruction, rest of the line)] of the Dockerfile."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def copy(context, root, arguments):
    """COPY of files into a folder, or of one folder as another."""
    *sources, target = arguments.split()
    for source in sources:
        if (context / source).is_dir():
            shutil.copytree(context / source, root / target.lstrip("/"), dirs_exist_ok=True)
        else:
            assert target.endswith("/")
            (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(context / source, root / target.lstrip("/"))


class Machine:
    """A root that executes commands, with the environment that the Dockerfile gives them."""

    def __init__(self, root):
        self.root = root
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        # How this machine reaches PyPI.
        self.pip = {name: value for name, value in os.environ.items() if re.match(r"PIP_(CERT|.*INDEX_URL)$", name)}
        if "PIP_CERT" in self.pip:
            shutil.copy(self.pip["PIP_CERT"], root / "root" / "pip.pem")
            self.pip["PIP_CERT"] = "/root/pip.pem"

    def run(self, *command):
        result = subprocess.run(
            ["chroot", self.root, *command],
            env={**self.environment, **self.pip},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, result.stdout[-6000:]
        return result.stdout


def test_the_image_installs_the_wheel_and_computes(debian, context):
    machine = Machine(debian)
    printed, command = "", None
    for instruction, rest in instructions():
        if instruction == "FROM":
            assert rest == BASE
        elif instruction in ("ARG", "ENV"):
            name, value = rest.split("=", 1)
            machine.environment[name] = shlex.split(value)[0]
        elif instruction == "COPY":
            copy(context, debian, rest)
        elif instruction == "RUN":
            printed += machine.run("/bin/sh", "-c", rest)
        else:
            assert instruction == "CMD", f"{instruction}: this test does not know it"
            command = json.loads(rest)
    assert f"tangram {(ROOT / 'VERSION').read_text().strip()}" in printed
    assert "backend cpu: yes" in printed and "differs from float64 by" in printed

    assert machine.run(*command, "-c", "import tangram; print(tangram.__file__)").startswith("/opt/tangram/")
    assert [name for name in ("cc", "g++", "cmake", "mpirun") if (debian / "usr" / "bin" / name).exists()] == []
