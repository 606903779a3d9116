#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Merges outputs of dispatch_search into the table of the fewest rows known.

    dispatch_search tests/data/dist_masks.json varlen 0 0 0 1 > planned.csv     # no search: the planner's own rows
    dispatch_search tests/data/dist_masks.json varlen 0 1e9 0.001 5 > found.csv
    dispatch_search tests/data/dist_masks.json varlen_causal:131072 8 600 1 FOLDER > found.csv     # ten minutes
    benchmarks/plan/rows_best_known.py docs/results/data/rows_best_known.csv planned.csv found.csv > merged.csv

The first argument is the table so far, whose best rows stay unless fewer were found. What the planner moves is taken
from the last output that names a pair. Prints a summary to stderr.
"""

import csv
import math
import sys

COLUMNS = "case,cp_size,rows_planned,balance_planned,rows_best_known,ratio,found_by"


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def name_of(row: dict[str, str]) -> str:
    """What found the rows of a line, empty where nothing searched."""
    if "seconds" in row:
        if int(row["searches"]) == 0:
            return ""
        return f"{row['seconds']} s of {row['searches']} searches seed {row['seed']} (by number {row['found_by']})"
    return f"search work {row['work']} heat {row['heat']} seed {row['seed']}" if float(row["work"]) > 0 else ""


def merge(table: list[dict[str, str]], outputs: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    pairs = {(row["case"], row["cp_size"]): dict(row) for row in table}
    for output in outputs:
        for row in output:
            pair = pairs.get((row["case"], row["cp_size"]))
            if pair is None:
                continue
            pair["rows_planned"] = row["rows_planned"]
            pair["balance_planned"] = row["balance_planned"]
            name = name_of(row)
            if name and int(row["rows_found"]) <= int(pair["rows_best_known"]):
                pair["rows_best_known"] = row["rows_found"]
                pair["found_by"] = name
    for pair in pairs.values():
        planned, best = int(pair["rows_planned"]), int(pair["rows_best_known"])
        if planned < best:
            best = planned
            pair["rows_best_known"], pair["found_by"] = str(best), "planned"
        pair["ratio"] = f"{planned / best:.3f}" if best > 0 else ("1.000" if planned == 0 else "inf")
    return list(pairs.values())


def summarise(pairs: list[dict[str, str]]) -> None:
    # Full and causal masks have one best dispatch.
    searched = [pair for pair in pairs if not pair["case"].startswith(("full", "causal"))]
    large = [p for p in searched if int(p["rows_best_known"]) >= 0.02 * int(p["case"].split(":")[1])]
    for name, group in (("all", searched), ("at least 2 % must move", large)):
        within = sum(int(pair["rows_planned"]) <= 1.1 * int(pair["rows_best_known"]) for pair in group)
        # One row more on both sides, so that pairs that need not move any have a ratio.
        logs = [math.log((int(pair["rows_planned"]) + 1) / (int(pair["rows_best_known"]) + 1)) for pair in group]
        mean = math.exp(sum(logs) / len(logs))
        print(f"{name}: {within} of {len(group)} within 1.1, geometric mean {mean:.3f}", file=sys.stderr)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} TABLE OUTPUT...")
    pairs = merge(read(sys.argv[1]), [read(path) for path in sys.argv[2:]])
    print(COLUMNS)
    for pair in pairs:
        print(",".join(pair[column] for column in COLUMNS.split(",")))
    summarise(pairs)


if __name__ == "__main__":
    main()
