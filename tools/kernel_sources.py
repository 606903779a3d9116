#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the attention kernels are made of: their CUDA sources, with all headers of the project that these include, and
one hash of it, by which tools/check_machine_code.py knows whether tools/machine_code.txt speaks of these sources.

usage: kernel_sources.py    (prints the hash, and the files)
"""

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = "src/attn"
INCLUDE_FOLDERS = ("src", "include")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# Literals first, so that what looks like a comment inside of one stays.
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


def files(root):
    """The sources of the kernels below `root`, and what they include, in order."""
    waiting = sorted((root / KERNELS).rglob("*.cu"))
    found = set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            waiting += [root / folder / name for folder in INCLUDE_FOLDERS if (root / folder / name).is_file()]
    return sorted(found)


def code(text):
    """What a compiler sees of a source: neither comments nor line breaks reach the machine code."""
    return " ".join(COMMENT.sub(lambda match: match.group(1) or " ", text).split())


def source_hash(root=ROOT):
    total = hashlib.sha256()
    for path in files(root):
        total.update(f"{path.relative_to(root)}\n{code(path.read_text(encoding='utf-8'))}\n".encode())
    return total.hexdigest()[:16]


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    print(source_hash())
    for path in files(ROOT):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
