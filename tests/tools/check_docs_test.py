# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tools/check_docs.py finds each kind of rot, and nothing in a tree without any. Needs nothing but Python."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_docs import check_tree  # noqa: E402

SOUND = {
    "README.md": "# Top\n\n[a page](docs/design/page.md), [a part](docs/design/page.md#the-second-part-1), [x](#top)\n"
    "`src/a.cpp`, `src/<name>.cpp`, ![x](docs/x.svg), [out](https://example.org/no)\n"
    "```\n[no](link.md)\n# no heading\n```\n",
    "docs/x.svg": "",
    "docs/design/README.md": "[page](page.md)\n",
    "docs/design/page.md": "# Page\n\n## Problem\n\n### The `second` part\n\n### The second part\n\n"
    "## Data structure\n\n## Invariants\n\nSee NOTE [order].\n\n## Cost\n\n## Files\n",
    "docs/devlog/README.md": "[log](2026-11-20-log.md)\n",
    "docs/devlog/2026-11-20-log.md": "`src/gone.cpp`\n\n| " + "x" * 300 + " |\n",
    "src/a.cpp": '// NOTE [order]\n// See docs/design/page.md, "The second part".\n',
}


class CheckDocs(unittest.TestCase):
    def problems(self, changed=()):
        with tempfile.TemporaryDirectory() as folder:
            files = {**SOUND, **dict(changed)}
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_tree(Path(folder), list(files))

    def finds(self, file, text, what):
        problems = self.problems({file: text})
        self.assertEqual(len(problems), 1, problems)
        self.assertTrue(what in problems[0], problems)

    def test_a_sound_tree(self):
        self.assertEqual(self.problems(), [])

    def test_broken_links_and_anchors(self):
        self.finds("docs/a.md", "[x](gone.md)", "docs/a.md:1: link to a file that does not exist (gone.md)")
        self.finds("docs/a.md", "a\n[x](design/page.md#none)", "docs/a.md:2: link to a heading")
        self.finds("docs/a.md", "a [over\ntwo lines](gone.md)", "docs/a.md:1: link to a file")
        self.finds("docs/a.md", "# One\n[x](#two)", "link to a heading")
        self.finds("docs/a.md", "![x](gone.svg)", "does not exist (gone.svg)")

    def test_files_and_notes_that_are_gone(self):
        self.finds("docs/a.md", "look at `src/gone.cpp`", "names a file")
        self.finds("docs/a.md", "NOTE [nowhere]", "cites a note")

    def test_pages_that_nothing_lists(self):
        self.finds("docs/design/hidden.md", SOUND["docs/design/page.md"], "not listed in docs/design/README.md")
        self.finds("docs/devlog/2026-11-21-log.md", "# Hidden", "not listed in docs/devlog/README.md")

    def test_design_pages_have_fixed_headings(self):
        page = SOUND["docs/design/page.md"]
        self.finds(
            "docs/design/page.md",
            page.replace("## Cost\n", "## Costs\n"),
            "needs these headings, no others: Problem, Data",
        )
        self.finds("docs/design/page.md", page + "\n" * 400, "400 is the limit")

    def test_results_say_when_where_and_how_they_were_measured(self):
        index = {"docs/results/README.md": "[a](a.md)\n"}
        page = "# A\n\n*Measured 2026-11-20 · one GPU · `bench`*\n"
        self.assertEqual(self.problems({**index, "docs/results/a.md": page}), [])
        found = self.problems({**index, "docs/results/a.md": "# A\n\nOne GPU.\n"})
        self.assertEqual(len(found), 1, found)
        self.assertTrue("needs a line under its title" in found[0], found)
        found = self.problems({"docs/results/a.md": page})
        self.assertTrue("not listed in docs/results/README.md" in found[0], found)

    def test_data_of_results_that_nothing_names(self):
        files = {"docs/results/data/README.md": "`a.csv`: one\n", "docs/results/data/a.csv": ""}
        self.assertEqual(self.problems(files), [])
        found = self.problems({**files, "docs/results/data/b.csv": ""})
        self.assertEqual(found, ["docs/results/data/b.csv: not named in docs/results/data/README.md"])

    def test_comments_that_cite_what_is_gone(self):
        self.finds("src/b.cpp", "// docs/design/gone.md", "src/b.cpp: cites a page")
        self.finds("src/b.cpp", '// docs/design/page.md, "Log"', "cites a section")


if __name__ == "__main__":
    unittest.main()
