#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the kernels of a build folder and fails on register spills, serialised wgmma and ignored setmaxnreg.

usage: check_ptxas.py BUILD_DIR    (of a build with TANGRAM_PTXAS_REPORT=ON, as preset ci)
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

# setmaxnreg ignored; wgmma serialised, for one reason or another; warpgroup.arrive added by the compiler.
WARNING = re.compile(r"\(C75(08|1[0-9]|20)\)[^\n]*")
ENTRY = re.compile(r"Compiling entry function '(\S+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
# Kernels that may spill a little, with the most they may. The backward pass with softcap keeps one more value an
# element through the step than fits beside dK and dV at head_dim 128 (docs/design/backward_sm90.md, "Cost").
# So does the forward pass of sm80 with softcap below head_dim 256, where a warp holds the scores of 32 rows.
MAY_SPILL = [
    (re.compile(r"backward_kernel.*Li128ELb1E"), 64),
    (re.compile(r"4sm808backward15backward_kernel.*Li128ELi128ELb"), 24),
    (re.compile(r"4sm8014forward_kernel.*Lb1E"), 88),
    (re.compile(r"4sm8014forward_kernel.*Li64ELi64ELb0E"), 12),
    (re.compile(r"4sm8014forward_kernel.*Li192ELi128ELb0E"), 8),
]
USED = re.compile(r"Used (\d+) registers")


def check(report):
    """Prints one line a kernel; returns what is wrong."""
    problems = [match.group(0) for match in WARNING.finditer(report)]
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        name, spill, used = ENTRY.search(part), SPILL.search(part), USED.search(part)
        if spill is None or used is None:
            problems.append(f"{name.group(1)}: no resource report")
            continue
        print(f"  {used.group(1):>3} registers, {spill.group(2)} + {spill.group(3)} bytes spilled: {name.group(1)}")
        allowed = max([most for kernel, most in MAY_SPILL if kernel.search(name.group(1))], default=0)
        if max(int(spill.group(2)), int(spill.group(3))) > allowed:
            problems.append(f"{name.group(1)}: spills {spill.group(2)} + {spill.group(3)} bytes")
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    database = pathlib.Path(sys.argv[1]) / "compile_commands.json"
    sources = [entry for entry in json.loads(database.read_text()) if entry["file"].endswith(".cu")]
    if not sources:
        sys.exit(f"{database}: holds no CUDA sources")
    words = [shlex.split(entry["command"]) for entry in sources]
    objects = [command[command.index("-o") + 1] for command in words]
    # Objects that were there already have their reports beside them.
    subprocess.run(["cmake", "--build", sys.argv[1], "--target", *objects], check=True)
    problems = []
    for entry, built in zip(sources, objects, strict=True):
        print(entry["file"])
        report = pathlib.Path(entry["directory"], f"{built}.ptxas").read_text()
        problems += [f"{entry['file']}: {problem}" for problem in check(report)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
