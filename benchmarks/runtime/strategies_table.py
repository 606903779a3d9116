#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Every strategy x masks: measured steps beside what `tangram simulate` predicts.

A cell is a mask over a number of ranks. Without --measured, cells that a CPU can do are measured over threads, with the
machine's constants measured first for as many ranks; the steps of a cell are taken in turns, so that other load meets
all strategies alike; one thread for each rank. With --measured FILES the table comes from these instead:
what this script wrote, or CSV of `bench_dist_gpu` or `tangram bench`, for which the constants of --machine are taken.
How often the prediction orders two strategies of a cell as the measurement does goes to stderr, and with --again FILES,
the same cells measured once more, how often the two measurements agree: no prediction can do better.
"""

import argparse
import csv
import io
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

from simulate_error import run

DIST_MASKS = str(Path(__file__).resolve().parents[2] / "tests" / "data" / "dist_masks.json")
CASES = {
    "full": ["--family", "full", "--seqlen", "2048"],
    "causal": ["--family", "causal", "--seqlen", "3072"],
    "window": ["--family", "sliding_window", "--window", "512,0", "--seqlen", "8192"],
    "block_causal": ["--family", "block_causal", "--block", "512", "--seqlen", "3072"],
    "documents": ["--total-seqlen", "8192", "--seed", "1"],
}
# Published masks of 16 K tokens that a core computes in a second or two.
for published in ("varlen_causal_uniform:16384", "varlen_block_causal_uniform:16384"):
    CASES[published] = ["--mask", DIST_MASKS, "--case", published]
STRATEGIES = ["tangram", "ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp"]
BY_HEADS = ["ulysses", "hcms", "usp", "loong_train"]
HEADS = ["--heads-q", "8", "--heads-kv", "8", "--head-dim", "64"]
EQUAL = 1e-3
# Memory that a step frees stays with the process, as with an allocator that caches: page faults are not compared.
REUSE = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("arena_max=1", "mmap_max=0", "trim_threshold=17179869184", "top_pad=268435456")
)
COLUMNS = ["case", "cp_size", "strategy", "ran", "predicted_s", "seconds", "processor_s", "predicted_bytes", "bytes"]


def measured(arguments, strategy, options, environment):
    repeats = ["--repeat", str(arguments.repeats)]
    text = run([arguments.tangram, "bench", *options, "--strategy", strategy, *repeats], environment)
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["transport"] == "local"]
    figures = {row["figure"]: float(row["value"]) for row in rows}
    passes = ("forward", "backward")
    return {
        "ran": rows[0]["strategy"],
        "seconds": sum(figures[f"{name}_time_fastest"] for name in passes),
        "processor_s": sum(figures[f"{name}_processor_time"] for name in passes),
        "bytes": sum(figures[f"{name}_traffic"] for name in passes),
    }


def predictions(tangram, strategies, options, environment):
    text = run([tangram, "simulate", *options, "--json", "--strategies", ",".join(strategies)], environment)
    return {row["strategy"]: row for row in json.loads(text)["predictions"]}


def measured_cell(arguments, environment, case, cp_size, options):
    """The fastest of several turns of each strategy, and its prediction."""
    names = [*STRATEGIES, "auto"]
    found = predictions(
        arguments.tangram, names, [*options, "--dtype", "fp32", "--machine-transport", "local"], environment
    )
    names = [name for name in names if "step_s" in found[name]]
    best = {}
    for _ in range(arguments.turns):
        for name in names:
            turn = measured(arguments, name, options, environment)
            known = best.setdefault(name, turn)
            for figure in ("seconds", "processor_s"):
                known[figure] = min(known[figure], turn[figure])
    rows = []
    for name in names:
        rows.append({"case": case, "cp_size": cp_size, "strategy": name, "predicted_s": found[name]["step_s"]})
        rows[-1]["predicted_bytes"] = found[name]["forward_bytes"] + found[name]["backward_bytes"]
        rows[-1].update(best[name])
    return rows


def measure_table(arguments):
    environment = {"GLIBC_TUNABLES": REUSE, **os.environ}
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        for cp_size in arguments.cp_sizes.split(","):
            environment["TANGRAM_NUM_THREADS"] = cp_size
            machine = (arguments.machine or os.path.join(folder, "{cp_size}.json")).format(cp_size=cp_size)
            if not os.path.exists(machine):
                os.sched_setaffinity(0, sorted(cores)[: int(cp_size)])  # as many ranks as cores are measured
                measure = ["doctor", "--measure", machine, "--head-dims", "64", "--dtypes", "float32"]
                run([arguments.tangram, *measure], environment)
                os.sched_setaffinity(0, cores)
            for case in arguments.cases.split(",") if arguments.cases else CASES:
                options = [*CASES[case], "--cp-size", cp_size, *HEADS, "--machine", machine]
                yield measured_cell(arguments, environment, case, cp_size, options)


def strategy_of(row):
    """The strategy of a row; nothing for ways to run one that are not what is simulated.

    That is with the layout of heads kept from forward to backward, see keeps_heads.
    """
    name = row.get("strategy") or row["overlap"]
    if name == "single:1":
        return "tangram"
    name = name.removesuffix(":keep") if name.split(":")[0] in BY_HEADS else name
    return name if name in (*STRATEGIES, "auto") else None


def keeps_heads(row):
    return "strategy" in row or row["overlap"].endswith(":keep")


def step_seconds(row):
    """What a row of a table adds to the step."""
    if row.get("seconds"):
        return float(row["seconds"])
    if "time_ms" in row:
        return float(row["time_ms"]) * 1e-3 if row["pass"] == "both" else 0.0
    return float(row["value"]) if row["figure"] in ("forward_time", "backward_time") else 0.0


def read_tables(paths):
    """Rows of cells by strategy, the passes added up."""
    cells = {}
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                strategy = strategy_of(row)
                if strategy is None or row.get("mode", "eager") != "eager":
                    continue
                case = row.get("case") or f"{row['mask']}:{row['seqlen']}"
                cp_size = row.get("cp_size") or row["gpus"]
                heads = tuple(row.get(name, "") for name in ("heads_q", "heads_kv", "head_dim"))
                cell = cells.setdefault((case, cp_size, heads, row.get("transport", "")), {})
                named = {
                    **row,
                    "case": case,
                    "cp_size": cp_size,
                    "strategy": strategy,
                    "seconds": 0.0,
                    "keeps": keeps_heads(row),
                }
                known = cell.setdefault(strategy, named)
                if named["keeps"] and not known["keeps"]:
                    known = cell[strategy] = named  # instead of the one that sends everything again
                if named["keeps"] == known["keeps"]:
                    known["seconds"] += step_seconds(row)
    return cells


def read_table(arguments):
    for (case, cp_size, heads, transport), cell in read_tables(arguments.measured).items():
        rows = [row for row in cell.values() if row["seconds"] > 0]
        if not all(row.get("predicted_s") for row in rows):
            options = ["--mask", DIST_MASKS, "--case", case, "--cp-size", cp_size, "--dtype", "bf16"]
            options += ["--heads-q", heads[0], "--heads-kv", heads[1], "--head-dim", heads[2]]
            options += ["--machine-backend", "sm90"] if not arguments.machine else ["--machine", arguments.machine]
            options += ["--engine", "workers"] if transport == "nccl" else []
            found = predictions(arguments.tangram, [row["strategy"] for row in rows], options, dict(os.environ))
            for row in rows:
                row["predicted_s"] = found[row["strategy"]].get("step_s", "")
                row["ran"] = row["strategy"]
        for row in rows:
            row["predicted_s"] = float(row["predicted_s"])
            if row.get("processor_s"):
                row["processor_s"] = float(row["processor_s"])
        yield rows


def have_an_order(a, b):
    return abs(a["predicted_s"] - b["predicted_s"]) > EQUAL * min(a["predicted_s"], b["predicted_s"])


def report_again(cells, paths):
    """How often another measurement of the cells orders pairs as this one."""
    again = {(case, cp): cell for (case, cp, _, _), cell in read_tables(paths).items()}
    by_ranks = {}
    for rows in cells:
        other = again.get((rows[0]["case"], rows[0]["cp_size"]), {})
        named = [row for row in rows if row["strategy"] != "auto" and row["strategy"] in other]
        for a, b in itertools.combinations(named, 2):
            if have_an_order(a, b):
                seconds = [other[row["strategy"]]["seconds"] for row in (a, b)]
                alike = (a["seconds"] < b["seconds"]) == (seconds[0] < seconds[1])
                by_ranks.setdefault(rows[0]["cp_size"], []).append(alike)
    for cp_size, alike in by_ranks.items():
        share = 100 * sum(alike) / len(alike)
        print(
            f"{cp_size} ranks: both runs order {sum(alike)} of {len(alike)} pairs alike ({share:.0f} %)",
            file=sys.stderr,
        )


def agreement(cells, figure, apart):
    """Counts pairs of strategies whose measured times differ by a share `apart`, and how many are ordered as predicted.

    Pairs with equal predictions, within what the planner counts as equal, are left out: they are the same here (USP of
    one head rank is Ring, and on two ranks so is AllGather), and the prediction names no order.
    """
    right = total = 0
    for rows in cells:
        named = [row for row in rows if row["strategy"] != "auto" and row.get(figure)]
        for a, b in itertools.combinations(named, 2):
            if not have_an_order(a, b):
                continue
            if max(a[figure], b[figure]) < (1 + apart) * min(a[figure], b[figure]):
                continue
            total += 1
            right += (a[figure] < b[figure]) == (a["predicted_s"] < b["predicted_s"])
    return right, total


def report(cells):
    for figure in ("seconds", "processor_s"):
        for apart in (0, 0.05, 0.1):
            right, total = agreement(cells, figure, apart)
            if total == 0:
                continue
            share = 100 * right / total
            print(
                f"{figure}: {right} of {total} pairs at least {apart:.0%} apart in order ({share:.0f} %)",
                file=sys.stderr,
            )
    named = [[row for row in rows if row["strategy"] != "auto"] for rows in cells]
    named = [rows for rows in named if len(rows) > 1]
    chosen = [min(rows, key=lambda row: row["predicted_s"])["seconds"] for rows in named]
    lost = [took / min(row["seconds"] for row in rows) - 1 for rows, took in zip(named, chosen, strict=True)]
    print(
        f"the strategy predicted to be fastest: the fastest in {sum(share == 0 for share in lost)} of {len(lost)} "
        f"cells, within 5 % of it in {sum(share <= 0.05 for share in lost)}, {max(lost):.0%} off at most",
        file=sys.stderr,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tangram", help="the program")
    parser.add_argument("--turns", type=int, default=5, help="steps of each strategy in a cell")
    parser.add_argument("--repeats", type=int, default=3, help="of which each step is the fastest")
    parser.add_argument("--cp-sizes", default="2,4")
    parser.add_argument("--cases", help="some of " + ", ".join(CASES))
    parser.add_argument("--machine", help="constants, {cp_size} in the name; measured if there is no such file")
    parser.add_argument("--measured", nargs="+", help="tables to compare with instead of measuring one")
    parser.add_argument("--again", nargs="+", help="tables of the same cells, measured once more")
    arguments = parser.parse_args()
    writer = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    cells = []
    for rows in read_table(arguments) if arguments.measured else measure_table(arguments):
        cells.append(rows)
        writer.writerows(rows)
        sys.stdout.flush()
    report(cells)
    if arguments.again:
        report_again(cells, arguments.again)


if __name__ == "__main__":
    main()
