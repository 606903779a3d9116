#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses identifiers that were renamed and words that docs/glossary.md replaces, so that one term stays per concept.

- Identifiers: code outside of comments and strings must not contain an old name of tools/renamed_identifiers.tsv
  (columns: files as a regular expression, old identifier as a regular expression, new name).
- Words: texts, comments and code must not contain an expression of WORDS.
- Subjects: a comment must not begin with a word of NO_SUBJECT, which only the line above it would explain.
- Lengths: folders have at most as many sentences of more than MAX_WORDS words in comments, docstrings and pages as
  tools/long_sentences.tsv says (columns: folder, sentences). These numbers may only fall: `--update` lowers them.

Logs (docs/devlog) stay as they were written. Each finding is one line: file, line, what to write instead.

usage: check_language.py [--update] [--long FOLDER]    (--long prints the long sentences below a folder)
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).with_name("renamed_identifiers.tsv")
BUDGETS = Path(__file__).with_name("long_sentences.tsv")
MAX_WORDS = 25
CODE = re.compile(r"\.(cpp|hpp|cuh|cu|py)$")
TEXT = re.compile(r"\.(cpp|hpp|cuh|cu|py|md|sh|cmake|js|html)$|(^|/)(Makefile|CMakeLists\.txt)$")
MEASURED = re.compile(r"\.(cpp|hpp|cuh|cu|py)$|^(?!docs/api/python\.md).*\.md$")  # that page repeats docstrings
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
NO_SUBJECT = re.compile(r"(Of|Those|The same|As(?! (many|much|long|soon)))\b")
COMMENT = {False: re.compile(r"\s*//+<? ?(.*)"), True: re.compile(r"\s*#(?!!) ?(.*)")}  # by whether it is Python
FIELDS = ("Args:", "Raises:", "Returns:")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`0-9\[('\"]|\w+(?:, \w+)*: |\w*_\w+|\w+\(\)|d[A-Z])")


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


def comments(text: str, python: bool) -> Iterator[tuple[int, list[str]]]:
    """Blocks of comment lines and docstrings, without marks, with the number of their first line."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        match = COMMENT[python].match(line)
        if match and "SPDX" not in line:
            block.append(match[1])
        elif block:
            yield number - len(block), block
            block = []
    for match in re.finditer(r'"""([\s\S]*?)"""', text if python else ""):
        yield text.count("\n", 0, match.start()) + 1, match[1].split("\n")


def is_table(line: str) -> bool:
    return re.search(r"\S {3,}\S", line) is not None


def paragraphs(first: int, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Sentences that belong together: up to an empty line, the next item of a list, the next argument or a table."""
    paragraph: list[str] = []
    for number, line in enumerate([*lines, ""], first):
        is_argument = re.match(r"\s*\w+(, \*{0,2}\w+)*: ", line) and paragraph and paragraph[-1].rstrip()[-1:] in ".:"
        ends = not line.strip() or is_table(line) or line.strip() in FIELDS
        if paragraph and (ends or is_argument or re.match(r"\s*([-*] |\d+\. |>>>|\.\.\.)", line)):
            yield number - len(paragraph), " ".join(" ".join(paragraph).split())
            paragraph = []
        if not ends:
            paragraph.append(line)


def prose(text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a page, with code, tables, headings and the targets of links blanked."""
    text = re.sub(r"(?ms)^```.*?^```|<!--.*?-->|^(\||#|    ).*?$", blanked, text)
    yield 1, re.sub(r"\]\([^)]*\)", "]", text).split("\n")


def long_sentences(file: str, text: str) -> Iterator[tuple[int, int, str]]:
    """Line of the paragraph, words and text of each sentence of more than MAX_WORDS words."""
    for first, lines in prose(text) if file.endswith(".md") else comments(text, file.endswith(".py")):
        for number, paragraph in paragraphs(first, lines):
            if paragraph.startswith(">>>"):
                continue
            for sentence in SENTENCE_END.split(re.sub(r"^([-*]|\d+\.) ", "", paragraph)):
                words = len(
                    re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", re.sub(r"^\w+(, \w+)*: ", "", sentence)))
                )
                if words > MAX_WORDS:
                    yield number, words, sentence


def folder_of(file: str) -> str:
    """The folder whose sentences are counted together: src/plan, tests, ..."""
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] in ("docs", "include", "python", "src") else parts[0]


def check_subjects(file: str, text: str, python: bool) -> list[str]:
    problems = []
    for first, lines in comments(text, python):
        if match := NO_SUBJECT.match(lines[0]):
            problems.append(f"{file}:{first}: a comment begins with '{match.group()}' (name what it describes)")
    return problems


def read_budgets(text: str) -> dict[str, int]:
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return {folder: int(sentences) for folder, sentences in rows}


def check_lengths(counts: Counter[str], budgets: dict[str, int]) -> list[str]:
    return [
        f"{folder}: {count} sentences of more than {MAX_WORDS} words, {budgets.get(folder, 0)} were left: "
        f"shorten what you wrote (tools/check_language.py --long {folder} prints all)"
        for folder, count in sorted(counts.items())
        if count > budgets.get(folder, 0)
    ]


def count_long(root: Path, files: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for file in files:
        if MEASURED.search(file) and not FROZEN.search(file) and (root / file).is_file():
            text = (root / file).read_text(encoding="utf-8")
            counts[folder_of(file)] += sum(1 for _ in long_sentences(file, text))
    return counts


def check_tree(root: Path, files: list[str], table: str, budgets: dict[str, int] | None = None) -> list[str]:
    """What is wrong in the files of a tree, one line each."""
    renamed = Renamed(table)
    problems = check_lengths(count_long(root, files), budgets or {})
    for file in files:
        if FROZEN.search(file) or not TEXT.search(file) or not (root / file).is_file():
            continue
        text = (root / file).read_text(encoding="utf-8")
        problems += check_words(file, text)
        if CODE.search(file):
            problems += check_identifiers(file, text, renamed)
            problems += check_subjects(file, text, file.endswith(".py"))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the numbers of tools/long_sentences.tsv")
    parser.add_argument("--long", metavar="FOLDER", help="print the long sentences below a folder")
    args = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    if args.long is not None:
        for file in files:
            if file.startswith(args.long) and MEASURED.search(file) and (root / file).is_file():
                for number, words, sentence in long_sentences(file, (root / file).read_text(encoding="utf-8")):
                    print(f"{file}:{number}: {words} words: {sentence}")
        return 0
    table = BUDGETS.read_text(encoding="utf-8")
    budgets = read_budgets(table)
    if args.update:
        counts = count_long(root, files)
        budgets = {folder: min(left, counts[folder]) for folder, left in budgets.items()}
        head = [line for line in table.splitlines() if line.startswith("#")]
        rows = [f"{folder}\t{left}" for folder, left in sorted(budgets.items()) if left > 0]
        BUDGETS.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    problems = check_tree(root, files, TABLE.read_text(encoding="utf-8"), budgets)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
