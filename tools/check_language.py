#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses identifiers that were renamed and words that docs/glossary.md replaces, so that one term stays per concept.

- Identifiers: code outside of comments and strings must not contain an old name of tools/renamed_identifiers.tsv
  (columns: files as a regular expression, old identifier as a regular expression, new name).
- Words: texts, comments and code must not contain an expression of WORDS.

Logs (docs/devlog) stay as they were written. Each finding is one line: file, line, what to write instead.
"""

import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("renamed_identifiers.tsv")
CODE = re.compile(r"\.(cpp|hpp|cuh|cu|py)$")
TEXT = re.compile(r"\.(cpp|hpp|cuh|cu|py|md|sh|cmake|js|html)$|(^|/)(Makefile|CMakeLists\.txt)$")
FROZEN = re.compile(r"^docs/devlog/|^tests/data/|^tests/fuzz/corpus/|check_language|^tools/renamed_identifiers\.tsv$")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_CODE = re.compile(
    r'"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*|#(?!include)[^\n]*|/\*[\s\S]*?\*/'
)
WORDS = [
    (r"\b(nobody|whoever|somebody|anybody)\b", "the noun: which rank, row, caller or kernel"),
    (r"\b(dealt|deals|dealings?)\b", "sharded (rows), assigned (to ranks), scheduled (work tiles)"),
    (r"\btravel(s|led|ed|ling|ing)?\b", "move, transfer"),
    (r"\b(come|comes|came|coming) late\b", "awaited"),
    (r"\b(keys|queries|operands?) at rest\b", "KV-stationary, Q-stationary"),
    (r"\blanding tensors?\b", "receive buffer"),
]
WORDS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in WORDS]


class Renamed:
    """The table of old names. Words are looked up in one expression first, since nearly none is an old name."""

    def __init__(self, table: str) -> None:
        rows = [line.split("\t") for line in table.splitlines() if line and not line.startswith("#")]
        self._rules = [(re.compile(files), re.compile(old), re.sub(r"\\\d", "…", new)) for files, old, new in rows]
        self._any = re.compile("|".join(f"(?:{re.sub(r'[(](?![?])', '(?:', old)})" for _, old, _ in rows) or "(?!)")
        self._is_old: dict[str, bool] = {}

    def new_name(self, file: str, word: str) -> str | None:
        if word not in self._is_old:
            self._is_old[word] = self._any.fullmatch(word) is not None
        if not self._is_old[word]:
            return None
        matches = (new for files, old, new in self._rules if files.search(file) and old.fullmatch(word))
        return next(matches, None)


def blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def check_identifiers(file: str, text: str, renamed: Renamed) -> list[str]:
    problems = []
    for number, line in enumerate(NOT_CODE.sub(blanked, text).split("\n"), 1):
        for word in WORD.findall(line):
            new = renamed.new_name(file, word)
            if new is not None:
                problems.append(f"{file}:{number}: {word} was renamed (write {new})")
    return problems


def check_words(file: str, text: str) -> list[str]:
    text = re.sub(r"devlog/[\w.-]+", blanked, text)  # names of logs
    problems = []
    for pattern, instead in WORDS:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{file}:{line}: '{match.group()}' is not a term of docs/glossary.md (write {instead})")
    return problems


def check_tree(root: Path, files: list[str], table: str) -> list[str]:
    """What is wrong in the files of a tree, one line each."""
    renamed = Renamed(table)
    problems = []
    for file in files:
        if FROZEN.search(file) or not TEXT.search(file) or not (root / file).is_file():
            continue
        text = (root / file).read_text(encoding="utf-8")
        problems += check_words(file, text)
        if CODE.search(file):
            problems += check_identifiers(file, text, renamed)
    return problems


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    problems = check_tree(root, listed.stdout.splitlines(), TABLE.read_text(encoding="utf-8"))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
