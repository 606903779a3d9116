# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A changed source of a kernel does not pass for what tools/machine_code.txt was made of. Needs nothing but Python."""

import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import check_machine_code  # noqa: E402
import kernel_sources  # noqa: E402
from check_machine_code import Table, verdict  # noqa: E402

TREE = {
    "src/attn/a.cu": '#include "attn/a.cuh"\n#include <cstdint>\nint a;\n',
    "src/attn/a.cuh": '#include "tangram/plain.hpp"\n// why\nint b;  // here\n',
    "include/tangram/plain.hpp": 'const char* url = "http://x";\n',
    "src/attn/host.cpp": "int c;\n",
    "src/attn/unused.cuh": "int d;\n",
}


class KernelSources(unittest.TestCase):
    def hash_of(self, changed=()):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**TREE, **dict(changed)}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return kernel_sources.source_hash(Path(folder))

    def test_changes_of_code_count(self):
        before = self.hash_of()
        self.assertEqual(before, self.hash_of())
        for name in ["src/attn/a.cu", "src/attn/a.cuh", "include/tangram/plain.hpp"]:
            self.assertNotEqual(before, self.hash_of({name: TREE[name] + "int more;\n"}), name)
        self.assertNotEqual(before, self.hash_of({"src/attn/b.cu": "int b;\n"}))
        self.assertNotEqual(before, self.hash_of({"include/tangram/plain.hpp": 'const char* url = "http://y";\n'}))

    def test_other_changes_do_not(self):
        before = self.hash_of()
        self.assertEqual(before, self.hash_of({"src/attn/host.cpp": "int e;\n", "src/attn/unused.cuh": "int f;\n"}))
        commented = '#include "tangram/plain.hpp"\n/* other\n   words */\nint\n  b;\n'
        self.assertEqual(before, self.hash_of({"src/attn/a.cuh": commented}))

    def test_all_that_a_kernel_includes_is_found(self):
        names = {str(path.relative_to(kernel_sources.ROOT)) for path in kernel_sources.files(kernel_sources.ROOT)}
        for name in ["src/attn/sm90/forward/consumer.cuh", "src/attn/sm90/common/shapes.hpp", "src/cuda/ptx/wgmma.cuh"]:
            self.assertTrue(name in names)
        self.assertFalse("src/attn/sm90/sm90_backend.cpp" in names)


class Verdict(unittest.TestCase):
    table = Table("13.0", "s1", {"f": "1", "g": "2"})

    def test_as_recorded(self):
        self.assertEqual(verdict(self.table, "13.0", "s1", {"f": "1", "g": "2"}, False), "")
        self.assertEqual(verdict(self.table, "13.0", "s1", {"g": "2"}, True), "")

    def test_changed_sources_without_a_new_table(self):
        for sampled in [False, True]:
            problem = verdict(self.table, "13.0", "s2", {"f": "1", "g": "2"}, sampled)
            self.assertTrue("make kernels" in problem)
            self.assertTrue("s2" in problem)
        self.assertTrue("make kernels" in verdict(self.table, "12.9", "s2", {"f": "3"}, True))  # code is not compared

    def test_changed_code(self):
        self.assertTrue("  f" in verdict(self.table, "13.0", "s1", {"f": "3", "g": "2"}, False))
        self.assertTrue("  f" in verdict(self.table, "13.0", "s1", {"f": "3"}, True))
        self.assertTrue("  h" in verdict(self.table, "13.0", "s1", {"h": "3"}, True))  # not in the table
        self.assertTrue("  g" in verdict(self.table, "13.0", "s1", {"f": "1"}, False))  # one that is gone
        self.assertEqual(verdict(self.table, "12.9", "s1", {"f": "3"}, False), "")  # another compiler's

    def test_the_table_is_read_as_it_is_written(self):
        text = check_machine_code.TABLE.read_text()
        table = Table.parse(text)
        self.assertEqual(table.text(), text)
        self.assertGreater(len(table.kernels), 100)


if __name__ == "__main__":
    unittest.main()
