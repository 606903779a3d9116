# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tools/check_language.py finds old identifiers and words, and nothing in a sound tree. Needs nothing but Python."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_language import TABLE, check_tree  # noqa: E402

TRAVELS, NOBODY = "tra" + "vels", "no" + "body"  # written so that this file passes the check itself


class CheckLanguage(unittest.TestCase):
    def problems(self, file, text, budgets=None):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return check_tree(Path(folder), [file], TABLE.read_text(encoding="utf-8"), budgets)

    def test_a_sound_file(self):
        self.assertEqual(self.problems("src/schedule/a.hpp", "int work_tiles = 0;  // one item per CTA\n"), [])
        self.assertEqual(self.problems("docs/a.md", "Each remote row moves once.\n"), [])

    def test_old_identifiers_are_refused_with_the_new_name(self):
        self.assertEqual(
            self.problems("python/tangram/a.py", "x = 1\nkey = mask_key_ahead(mask)\n"),
            ["python/tangram/a.py:2: mask_key_ahead was renamed (write mask_key_async)"],
        )
        found = self.problems("src/schedule/a.hpp", "struct ForwardItems {};\n")
        self.assertEqual(len(found), 1, found)
        self.assertTrue("ForwardItems was renamed" in found[0], found)

    def test_generic_names_are_refused_only_in_their_folder(self):
        self.assertEqual(len(self.problems("src/schedule/a.hpp", "int items = 0;\n")), 1)
        self.assertEqual(self.problems("src/cli/a.hpp", "int items = 0;\n"), [])

    def test_comments_and_strings_may_cite_identifiers(self):
        self.assertEqual(self.problems("src/schedule/a.hpp", '// ForwardItems\nconst char* a = "ForwardItems";\n'), [])

    def test_words_are_refused_in_code_comments_and_pages(self):
        for file, text in [
            ("src/a.hpp", f"// {NOBODY} waits\n"),
            ("docs/a.md", f"A row {TRAVELS} once."),
            ("tests/a.py", "# keys come" + " late\n"),
        ]:
            found = self.problems(file, text)
            self.assertEqual(len(found), 1, found)
            self.assertTrue("docs/glossary.md" in found[0], found)

    def test_comments_without_a_subject_are_refused(self):
        for file, text in [("src/a.hpp", "/// Of one mask.\nint a;\n"), ("python/a.py", 'def f():\n    """As f."""\n')]:
            found = self.problems(file, text)
            self.assertEqual(len(found), 1, found)
            self.assertTrue("name what it describes" in found[0], found)
        self.assertEqual(self.problems("src/a.hpp", "// A line,\n// of two.\nint a;  // Of a field\n"), [])

    def test_folders_have_no_more_long_sentences_than_their_budget(self):
        long = " ".join(["word"] * 26) + "."
        for file, text in [
            ("src/plan/a.cpp", f"// Word. {long.capitalize()}\n"),
            ("tests/a.py", f'"""\nArgs:\n    a: {long}\n"""\n'),
            ("docs/guide/a.md", f"# Title\n\n- Word [word](a.md).\n- {long.capitalize()}\n"),
        ]:
            found = self.problems(file, text)
            self.assertEqual(len(found), 1, found)
            self.assertTrue("1 sentences of more than 25 words" in found[0], found)
        self.assertEqual(self.problems("src/plan/a.cpp", f"// {long}\n", {"src/plan": 1}), [])
        self.assertEqual(self.problems("docs/a.md", f"```\n{long}\n```\n\n| {long} |\n\n    {long}\n"), [])
        table = f"//   {long[:60]}    {long[60:]}\n"
        self.assertEqual(self.problems("src/plan/a.cpp", "// " + "word " * 20 + "\n//\n" + "// word\n" * 9 + table), [])

    def test_logs_stay_as_they_were_written(self):
        self.assertEqual(self.problems("docs/devlog/a.md", f"{NOBODY} {TRAVELS}\n"), [])


if __name__ == "__main__":
    unittest.main()
