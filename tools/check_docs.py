#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checks what can rot in the documentation without a test noticing: links, anchors, names of files.

Rules, for every Markdown file of the tree unless said otherwise:
- a relative link leads to a file, and its anchor to a heading of that file;
- a path in back quotes that begins with a folder of the tree exists, but for what dated logs and the change log name;
- every NOTE [tag] that a page cites is written down in a source;
- the README of docs/design lists every page of it; so do those of docs/devlog and docs/results;
- the README of docs/results/data names every file of it;
- a page of docs/design has the headings of DESIGN_HEADINGS, in this order, and at most MAX_DESIGN_LINES lines;
- a page of docs/results says under its title when, where and how it was measured.
Comments of sources that cite `docs/page.md` or `docs/page.md, "Section"` must find both.
"""

import re
import subprocess
import sys
from pathlib import Path

SOURCES = {".hpp", ".cpp", ".cuh", ".cu", ".py", ".sh", ".txt", ".cmake", ".toml"}
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
CITED = re.compile(r'(docs/[\w/-]+\.md)(?:, "([^"]+)")?')
TAG = re.compile(r"NOTE\s+\[([^\]]+)\]")
DESIGN_HEADINGS = ["Problem", "Data structure", "Invariants", "Cost", "Files"]
MAX_DESIGN_LINES = 400
MEASURED = re.compile(r"(?m)^# .*\n\n\*Measured 20\d\d-\d\d-\d\d[^*·]* · [^*·]+ · [^*·]+\*$")
PATH = re.compile(r"`((?:\.ci|benchmarks|cmake|docs|examples|include|python|src|tests|tools)/[\w./+-]+)`")


def without_code(text: str) -> str:
    """The text with its fenced blocks and code in back quotes blanked, line by line."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append("" if fenced or fence else re.sub(r"`[^`]*`", "``", line))
        fenced ^= fence
    return "\n".join(lines)


def headings(text: str) -> list[str]:
    """Titles of sections, as they read."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (match := re.match(r"#{1,6} +(.*?) *#*$", line)):
            lines.append(match[1])
    return lines


def anchors(text: str) -> set[str]:
    """The names under which headings can be linked to, made as GitHub makes them."""
    found: set[str] = set()
    for title in headings(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = 0
        while (name := f"{slug}-{count}" if count else slug) in found:
            count += 1
        found.add(name)
    return found


def with_lines(pattern: re.Pattern[str], text: str) -> list[tuple[int, str]]:
    """What the first group of a pattern matches, which may go over line ends, with the numbers of the lines."""
    return [(text.count("\n", 0, match.start()) + 1, match[1]) for match in pattern.finditer(text)]


def check_links(root: Path, page: str, text: str) -> list[str]:
    problems = []
    for number, target in with_lines(LINK, without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (root / page).parent / file if file else root / page
        if not path.exists():
            problems.append(f"{page}:{number}: link to a file that does not exist ({target})")
        elif anchor and (path.suffix != ".md" or anchor not in anchors(path.read_text(encoding="utf-8"))):
            problems.append(f"{page}:{number}: link to a heading that does not exist ({target})")
    return problems


def check_names(root: Path, page: str, text: str, tags: set[str]) -> list[str]:
    problems = []
    for number, path in with_lines(PATH, text):
        if not (root / path).exists():
            problems.append(f"{page}:{number}: names a file that does not exist ({path})")
    for number, tag in with_lines(TAG, text):
        if " ".join(tag.split()) not in tags:
            problems.append(f"{page}:{number}: cites a note that no source has ({tag})")
    return problems


def check_source(root: Path, source: str, text: str) -> list[str]:
    problems = []
    for page, section in CITED.findall(text):
        if not (root / page).exists():
            problems.append(f"{source}: cites a page that does not exist ({page})")
        elif section and section not in headings((root / page).read_text(encoding="utf-8")):
            problems.append(f"{source}: cites a section that {page} does not have ({section})")
    return problems


def check_tree(root: Path, files: list[str]) -> list[str]:
    """What is wrong in the files of a tree, one line each."""
    texts = {}
    for file in files:
        suffix = Path(file).suffix
        if (suffix == ".md" or suffix in SOURCES) and (root / file).is_file():
            texts[file] = (root / file).read_text(encoding="utf-8")
    pages = {file: text for file, text in texts.items() if file.endswith(".md")}
    # These programs and their tests speak of pages and notes that are none.
    sources = {
        file: text for file, text in texts.items() if file not in pages and not re.search("check_(docs|language)", file)
    }
    tags = {tag for text in sources.values() for tag in TAG.findall(re.sub(r"\s*\n\s*(?://+|#) ?", " ", text))}
    problems = []
    for page, text in pages.items():
        problems += check_links(root, page, text)
        dated = page.startswith("docs/devlog/") or page == "CHANGELOG.md"
        if not dated:
            problems += check_names(root, page, text, tags)
        folder, _, name = page.rpartition("/")
        if folder in ("docs/design", "docs/devlog", "docs/results") and name != "README.md":
            if f"({name}" not in pages.get(f"{folder}/README.md", ""):
                problems.append(f"{page}: not listed in {folder}/README.md")
        if folder == "docs/design" and name != "README.md":
            if re.findall(r"(?m)^## (.*)$", re.sub(r"(?ms)^```.*?^```", "", text)) != DESIGN_HEADINGS:
                problems.append(f"{page}: needs these headings, no others: {', '.join(DESIGN_HEADINGS)}")
            if (lines := text.count("\n")) > MAX_DESIGN_LINES:
                problems.append(f"{page}: has {lines} lines, {MAX_DESIGN_LINES} is the limit")
        if folder == "docs/results" and name not in ("README.md", "summary.md") and not MEASURED.search(text):
            problems.append(f"{page}: needs a line under its title: *Measured DATE · MACHINE · COMMAND*")
    for source, text in sources.items():
        problems += check_source(root, source, text)
    for file in files:
        folder, _, name = file.rpartition("/")
        if folder == "docs/results/data" and name != "README.md" and (root / file).is_file():
            if f"`{name}`" not in pages.get(f"{folder}/README.md", ""):
                problems.append(f"{file}: not named in {folder}/README.md")
    return problems


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    problems = check_tree(root, listed.stdout.splitlines())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
