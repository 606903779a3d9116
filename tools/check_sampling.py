#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Shows that the sampled tests of `make test` see what the whole ones of `make test-long` see: breaks the library in
ten places, one after the other, and compares which tests fail. Needs a clean working tree, which it leaves clean.

usage: check_sampling.py BUILD_DIR    (as of preset cpu, with tests; a quarter of an hour on two cores)
       check_sampling.py --places     (only whether the ten places are where they are said to be; part of lint)
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ["plan", "runtime", "runtime_program", "runtime_movement"]
# File, what stands there, what is put instead.
MUTATIONS = [
    ("plan/grid/grid_bytes.cpp", "q_rows * (row.dq + sinks)", "q_rows * row.dq"),
    ("plan/rank_plan.cpp", "at->row + (part.begin - at->global.begin)", "at->row"),
    ("plan/program/rows.cpp", "if (s != last) call.sink = {};", ""),
    (
        "plan/program/memory.cpp",
        "last[static_cast<size_t>(region)] = op;",
        "last[static_cast<size_t>(region)] = begin;",
    ),
    (
        "plan/program/heads.hpp",
        "int64_t{member} * num_heads_ / ulysses_degree_",
        "member * (num_heads_ / ulysses_degree_)",
    ),
    ("plan/program/rows.cpp", "if (group == rank.group()) continue;", "if (group <= rank.group()) continue;"),
    (
        "runtime/host/merge.cpp",
        "lse = static_cast<float>(largest + std::log(total));",
        "lse = static_cast<float>(total);",
    ),
    ("plan/program/movement_writer.cpp", "!call.fetched && call.stage > 0", "call.stage > 0"),
    ("plan/program/emit_kv.cpp", "if (i == last && call_", "if (i + 1 == calls.size() && call_"),
    ("plan/program/heads.cpp", "shard_row[member] += size;", ""),
]


def failing(build, whole):
    """Names of the tests that fail, and of the programs that die."""
    names = set()
    for program in PROGRAMS:
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            command = [build / "bin" / f"test_{program}", f"--gtest_output=json:{report.name}", "--gtest_brief=1"]
            env = {**os.environ, "TANGRAM_TEST_LONG": "1" if whole else "0"}
            try:
                done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=600)
            except subprocess.TimeoutExpired:
                names.add(f"{program} hangs")
                continue
            if done.returncode not in (0, 1):
                names.add(f"{program} dies")
                continue
            for suite in json.loads(pathlib.Path(report.name).read_text())["testsuites"]:
                # Cases of one test over many masks count as that test.
                names |= {
                    f"{suite['name']}.{case['name'].split('/')[0]}"
                    for case in suite["testsuite"]
                    if case.get("failures")
                }
    return names


def check_places():
    """A place that has moved would else be noticed only in a run of the whole script."""
    for name, before, _ in MUTATIONS:
        path = ROOT / "src" / name
        if not path.exists() or path.read_text().count(before) != 1:
            sys.exit(f"check_sampling: {name} must be there and hold once: {before}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    check_places()
    if sys.argv[1] == "--places":
        return
    build = pathlib.Path(sys.argv[1]).resolve()
    if subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode != 0:
        sys.exit("check_sampling: the working tree must be clean")
    make = ["cmake", "--build", build, "--target", *[f"test_{program}" for program in PROGRAMS]]
    lost = 0
    print("| broken | tests that fail, sampled | whole | missed by the sample |\n|---|---|---|---|")
    for name, before, after in MUTATIONS:
        path = ROOT / "src" / name
        text = path.read_text()
        try:
            path.write_text(text.replace(before, after))
            subprocess.run(make, check=True, capture_output=True)
            sampled, whole = failing(build, False), failing(build, True)
        finally:
            path.write_text(text)
        missed = whole - sampled
        lost += bool(missed) or not whole
        print(
            f"| {name}: `{before}` | {len(sampled)} | {len(whole)} | {', '.join(sorted(missed)) or '-'} |", flush=True
        )
    subprocess.run(make, check=True, capture_output=True)
    sys.exit(f"check_sampling: {lost} mutations are seen by fewer tests, or by none" if lost else 0)


if __name__ == "__main__":
    main()
