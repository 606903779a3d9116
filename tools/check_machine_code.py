#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of the attention kernels of a build folder with tools/machine_code.txt.

A change that is not meant for a kernel must leave its code as it is, to the byte: whoever gives head_dim 64 another
shape need not measure head_dim 128 again. A deliberate change updates the table, and its diff says which kernels it
has reached.

usage: check_machine_code.py BUILD_DIR [--update]    (of a build with TANGRAM_PTXAS_REPORT=ON, after check_ptxas.py)
"""

import hashlib
import json
import pathlib
import re
import shlex
import struct
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("machine_code.txt")
SOURCES = "/src/attn/"
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


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--update"]):
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    commands = [
        (entry, shlex.split(entry["command"]))
        for entry in json.loads((build / "compile_commands.json").read_text())
        if entry["file"].endswith(".cu") and SOURCES in entry["file"]
    ]
    if not commands:
        sys.exit(f"{build}: holds no CUDA sources of {SOURCES}")
    nvcc = next(word for word in commands[0][1] if word.endswith("nvcc"))
    version = re.search(r"V([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)[1]
    found = {}
    for entry, words in commands:
        built = pathlib.Path(entry["directory"], words[words.index("-o") + 1])
        code = dict(kernels(built.read_bytes()))
        if not code:
            sys.exit(f"{built}: holds no device code, or compressed")
        found |= code
    if sys.argv[2:]:
        TABLE.write_text("".join([f"nvcc {version}\n", *(f"{found[name]} {name}\n" for name in sorted(found))]))
        return
    first, *lines = TABLE.read_text().splitlines()
    if first != f"nvcc {version}":
        print(f"machine code not compared: the table is of {first}, this is nvcc {version}")
        return
    wanted = {name: code for code, name in (line.split(" ", 1) for line in lines)}
    changed = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if changed:
        sys.exit(
            "machine code differs from tools/machine_code.txt (if meant: check_machine_code.py BUILD_DIR --update):\n  "
            + "\n  ".join(changed)
        )
    print(f"  machine code of {len(found)} kernels is as recorded")


if __name__ == "__main__":
    main()
