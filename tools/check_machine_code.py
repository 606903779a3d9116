#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of the attention kernels of a build folder with tools/machine_code.txt.

A change that is not meant for a kernel must leave its code as it is, to the byte: if head_dim 64 gets another shape,
head_dim 128 need not be measured again. A deliberate change updates the table, and its diff says which kernels it has
reached. The table also names the sources that it was made of (tools/kernel_sources.py), so that a build with a sample
of the kernels (TANGRAM_SM90_KERNELS=sample, as preset ci) vouches for all: those it holds are compared, and of the
others the table must be newer than their sources.

usage: check_machine_code.py BUILD_DIR [--record | --update]
       (of a build with TANGRAM_PTXAS_REPORT=ON, after check_ptxas.py)
  --record  of a build with all kernels: if their code is as recorded, the table is of these sources from now on
  --update  of a build with all kernels: their code, too, is as it is meant to be
"""

import hashlib
import json
import pathlib
import re
import shlex
import struct
import subprocess
import sys

import kernel_sources

TABLE = pathlib.Path(__file__).with_name("machine_code.txt")
FOLDER = "/src/attn/"
SAMPLE = "-DTANGRAM_SM90_SAMPLE"
CUDA_MACHINE = 190  # e_machine of a cubin
# Names in anonymous namespaces carry hashes that depend on where the file is.
ANONYMOUS = re.compile(r"(?<=_GLOBAL__N_)_[0-9a-f]{8}(_\w+?_cu)_[0-9a-f]{8}")


def sections(elf):
    """Names and contents of the sections of an ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    count, names_at = struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + 64 * i) for i in range(count)]
    names = elf[headers[names_at][4] :]
    for name, _, _, _, begin, size in headers:
        yield names[name : names.index(b"\0", name)].decode(), elf[begin : begin + size]


def kernels(binary):
    """Name and hash of each kernel in an object file whose device code is not compressed."""
    at = binary.find(b"\x7fELF", 4)
    while at >= 0:
        elf = binary[at:]
        if struct.unpack_from("<H", elf, 18)[0] == CUDA_MACHINE:
            for name, code in sections(elf):
                if name.startswith(".text."):
                    yield ANONYMOUS.sub(r"\1", name[len(".text.") :]), hashlib.sha256(code).hexdigest()[:16]
        at = binary.find(b"\x7fELF", at + 4)


class Table:
    """What tools/machine_code.txt says: the compiler, the hash of the sources, and the hash of each kernel by name."""

    def __init__(self, nvcc, sources, kernels):
        self.nvcc, self.sources, self.kernels = nvcc, sources, kernels

    @classmethod
    def parse(cls, text):
        nvcc, sources, *lines = text.splitlines()
        kernels = {name: code for code, name in (line.split(" ", 1) for line in lines)}
        return cls(nvcc.removeprefix("nvcc "), sources.removeprefix("sources "), kernels)

    def text(self):
        lines = [f"{self.kernels[name]} {name}\n" for name in sorted(self.kernels)]
        return "".join([f"nvcc {self.nvcc}\n", f"sources {self.sources}\n", *lines])


def differences(table, found, sampled):
    """Names of kernels that are not as in the table; with `sampled` some of it need not be there."""
    names = found.keys() if sampled else found.keys() | table.kernels.keys()
    return sorted(name for name in names if found.get(name) != table.kernels.get(name))


def verdict(table, nvcc, sources, found, sampled):
    """What is wrong with a build, or an empty text."""
    if table.nvcc == nvcc:
        changed = differences(table, found, sampled)
        if changed:
            return (
                "machine code differs from tools/machine_code.txt (if meant: make kernels UPDATE=1):\n  "
                + "\n  ".join(changed)
            )
    if table.sources != sources:
        return (
            f"sources of the kernels have changed since tools/machine_code.txt was made (they are {sources}, it is of "
            f"{table.sources}): make kernels compiles and checks all of them, and records it"
        )
    return ""


def read_build(build):
    """The version of nvcc, the hash of each kernel, and whether they are a sample."""
    commands = [
        (entry, shlex.split(entry["command"]))
        for entry in json.loads((build / "compile_commands.json").read_text())
        if entry["file"].endswith(".cu") and FOLDER in entry["file"]
    ]
    if not commands:
        sys.exit(f"{build}: holds no CUDA sources of {FOLDER}")
    nvcc = next(word for word in commands[0][1] if word.endswith("nvcc"))
    version = re.search(r"V([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)[1]
    found = {}
    for entry, words in commands:
        built = pathlib.Path(entry["directory"], words[words.index("-o") + 1])
        code = dict(kernels(built.read_bytes()))
        if not code:
            sys.exit(f"{built}: holds no device code, or compressed")
        found |= code
    return version, found, any(SAMPLE in words for _, words in commands)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--record"], ["--update"]):
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    version, found, sampled = read_build(build)
    if sys.argv[2:] and sampled:
        sys.exit(f"{build}: holds a sample of the kernels, of which no table can be made (TANGRAM_SM90_KERNELS=sample)")
    table = Table.parse(TABLE.read_text())
    sources = kernel_sources.source_hash()
    if sys.argv[2:] == ["--update"]:
        table = Table(version, sources, found)
    elif sys.argv[2:] == ["--record"]:
        if table.nvcc != version:
            sys.exit(f"the table is of nvcc {table.nvcc}, this is {version}: make kernels UPDATE=1 makes it anew")
        table.sources = sources
    problem = verdict(table, version, sources, found, sampled)
    if problem:
        sys.exit(problem)
    if sys.argv[2:]:
        TABLE.write_text(table.text())
    if table.nvcc != version:
        print(f"machine code not compared: the table is of nvcc {table.nvcc}, this is {version}")
    else:
        print(f"  machine code of {len(found)} of {len(table.kernels)} kernels is as recorded")


if __name__ == "__main__":
    main()
