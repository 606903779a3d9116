#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Error of the simulator's kernel model: `tangram simulate` against measured kernels (docs/results/data/sm90_h200.csv).

One rank, the masks of tests/data/masks.json, the default constants or those of --machine. Prints one CSV line for each
measured cell and the error of each pass.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLOPS = {"forward": lambda d: 2 * 2 * d, "backward": lambda d: 2 * 5 * d}  # of a visible cell of one head


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tangram", help="the program")
    parser.add_argument("--csv", default=ROOT / "docs/results/data/sm90_h200.csv", help="measured rates")
    parser.add_argument("--head-dim", default="128")
    parser.add_argument("--machine", help="constants instead of the default ones")
    arguments = parser.parse_args()
    masks = ROOT / "tests/data/masks.json"
    areas = {(case["mask"], case["seqlen"]): case["area"] for case in json.loads(masks.read_text())["cases"]}
    errors = {"forward": [], "backward": []}
    print("mask,seqlen,heads_q,heads_kv,pass,predicted_s,measured_s,ratio")
    predictions = {}
    for row in csv.DictReader(open(arguments.csv, encoding="utf-8")):
        case = (row["mask"], int(row["seqlen"]))
        if row["head_dim"] != arguments.head_dim or case not in areas or not row["tflops"]:
            continue
        call = (*case, row["heads_q"], row["heads_kv"])
        if call not in predictions:
            command = [
                arguments.tangram,
                "simulate",
                "--mask",
                ROOT / "tests/data/masks.json",
                "--case",
                f"{case[0]}:{case[1]}",
            ]
            command += ["--cp-size", "1", "--strategies", "tangram", "--json", "--head-dim", arguments.head_dim]
            command += ["--heads-q", row["heads_q"], "--heads-kv", row["heads_kv"]]
            command += ["--machine", arguments.machine] if arguments.machine else []
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            predictions[call] = json.loads(output)["predictions"][0]
        name = row["pass"]
        flops = areas[case] * int(row["heads_q"]) * FLOPS[name](int(arguments.head_dim))
        measured_s = flops / (float(row["tflops"]) * 1e12)
        predicted_s = predictions[call][name + "_s"]
        errors[name].append(abs(predicted_s / measured_s - 1))
        print(f"{','.join(map(str, call))},{name},{predicted_s:.6g},{measured_s:.6g},{predicted_s / measured_s:.3f}")
    for name, values in errors.items():
        median = statistics.median(values)
        print(
            f"{name}: off by {median:.3f} in the median, {max(values):.3f} at most, {len(values)} cells",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
