#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures distributed attention over all GPUs of a host in one command with a limit, beside published figures.

    python benchmarks/runtime/all_gpus.py build/cuda/bin/bench_dist_gpu --gpus 8 --limit 580 --csv dist_gpu.csv

Every transport, launch order and strategy, 8,192 and 32,768 rows a GPU, the masks of tests/data/dist_masks.json, both
passes. What matters most runs first, each part no longer than what is left; parts that failed or were left out are
named at the end and make the exit status 1. CSV of all parts goes to --csv, a table with a line for each mask to
stdout.
"""

import argparse
import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIGHT = "sliding_window_causal,varlen_causal,varlen_causal_long,varlen_causal_uniform"
BLOCKS = "varlen_block_causal,varlen_block_causal_uniform"
EXCHANGES = "single:1,ulysses:keep,hcms:keep,ring,all_gather,usp:keep,loong_train:keep,hybrid_cp,auto:keep"
GOALS = {8192: 0.97, 32768: 0.99}  # of the same kernels on the whole mask on one GPU


class Part(NamedTuple):
    name: str
    options: str
    most_s: float  # a part that hangs must not take the others' time


def parts():
    quick = "--seconds 0.25"
    brief = "--seconds 0.1 --without-single"
    own, engines, eager = "--overlap single:1", "--transports copy_engine", "--modes eager"
    rows8, rows32 = "--rows 8192", "--rows 32768"
    exchanges = f"{engines} {eager} {brief} --overlap {EXCHANGES}"
    found = [
        Part("own, 8K", f"{rows8} {engines} {own} {quick}", 90),
        Part("own, 32K, light masks", f"{rows32} {engines} {own} {quick} --masks {LIGHT},{BLOCKS}", 60),
        Part("strategies, 8K", f"{rows8} {exchanges}", 90),
        Part("own over NCCL, 8K", f"{rows8} --transports nccl --overlap none,stages:1 {brief}", 60),
        Part("own, 32K, causal", f"{rows32} {engines} {eager} {own} {quick} --masks causal", 60),
        Part("other overlap, 8K", f"{rows8} {engines} {eager} --overlap single:1,none,keep:1,stages:2 {brief}", 60),
        Part("strategies, 32K, light masks", f"{rows32} {exchanges} --masks {LIGHT}", 60),
    ]
    for order in ("sm_margin", "high_priority", "kernel_barrier"):
        masks = "--masks causal,varlen_causal_uniform,sliding_window_causal"
        options = f"{rows8} --transports nccl {eager} {brief} --overlap stages:1 {masks} --launch-order {order}"
        found.append(Part(f"launch order {order}", options, 30))
    return [
        *found,
        Part("own, 32K, full", f"{rows32} {engines} {eager} {own} {quick} --masks full", 90),
        Part("own over NCCL, 32K", f"{rows32} --transports nccl {eager} --overlap none {brief}", 60),
        Part("strategies, 32K, blocks", f"{rows32} {exchanges} --masks {BLOCKS}", 60),
        Part("strategies, 32K, causal", f"{rows32} {exchanges} --masks causal", 90),
    ]


def run_part(arguments, part, remaining_s):
    """CSV lines of a part, also of one that was stopped, and why it is not whole (None: it is)."""
    limit_s = min(part.most_s, remaining_s)
    if limit_s < 5:
        return [], "left out: no time"
    command = [arguments.bench, "--gpus", str(arguments.gpus), *part.options.split(), *arguments.options.split()]
    begin = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        problem = None if process.returncode == 0 else f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its ranks too
        output, errors = process.communicate()
        problem = f"stopped after {limit_s:.0f} s"
    print(f"{part.name}: {time.monotonic() - begin:.0f} s", problem or "", errors.strip()[:300], file=sys.stderr)
    whole = output[: output.rfind("\n") + 1]  # a stopped program may leave half a line
    return list(csv.DictReader(io.StringIO(whole))), problem


def published_figures(gpus):
    with open(Path(__file__).with_name("published.csv"), newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["gpus"]) == gpus]


def ratio(value, other):
    return f"{value / other:.2f}" if other else "-"


def is_own(row):
    """Our own way as it is used by default, measured beside one GPU."""
    return row["overlap"] == "single:1" and row["mode"] == "eager" and float(row["single_tflops"]) > 0


def table_line(num_rows, mask, cell, published):
    """The fastest way of a mask and number of rows, our own eager way, and what was published beside them."""
    own = {row["pass"]: row for row in cell if is_own(row)}
    both = [row for row in cell if row["pass"] == "both"]
    fastest = min(both, key=lambda row: float(row["time_ms"]))
    rates = {name: float(row["tflops_per_gpu"]) for name, row in own.items()}
    figures = [row for row in published if row["mask"] == mask and int(row["rows_per_gpu"]) == num_rows]
    beside = [f"{figure['source'].split()[0]} {figure['pass']} {figure['tflops_per_gpu']}" for figure in figures]
    ahead = [ratio(rates[figure["pass"]], float(figure["tflops_per_gpu"])) for figure in figures]
    cells = [
        num_rows,
        mask,
        f"{rates['both']:.0f}",
        f"{ratio(rates['both'], float(own['both']['single_tflops']))} ({GOALS[num_rows]})",
        ratio(rates["both"], float(own["both"]["single_busy_tflops"])),
        ", ".join(beside) or "-",
        ", ".join(ahead) or "-",
        f"{fastest['overlap']} {fastest['mode']} over {fastest['transport']}",
        f"{float(fastest['tflops_per_gpu']):.0f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def print_table(rows, gpus):
    by_cell = {}
    for row in rows:
        by_cell.setdefault((int(row["rows_per_gpu"]), row["mask"]), []).append(row)
    published = published_figures(gpus)
    head = "rows a GPU | mask | own, TFLOP/s a GPU | ÷ one GPU (goal) | ÷ the slowest GPU | published | own ÷ it"
    print(f"| {head} | fastest way | TFLOP/s a GPU |\n|{'---|' * 9}")
    for (num_rows, mask), cell in sorted(by_cell.items()):
        if any(is_own(row) for row in cell):
            print(table_line(num_rows, mask, cell, published))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the program bench_dist_gpu")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--limit", type=float, default=580, help="seconds for everything")
    parser.add_argument("--csv", default="dist_gpu.csv", help="file for the lines of all parts")
    parser.add_argument("--options", default="", help="for every call of the program, such as --no-batch-copies")
    arguments = parser.parse_args()
    if arguments.gpus < 2:
        parser.error(f"--gpus must be at least 2 (got {arguments.gpus})")
    arguments.bench = str(Path(arguments.bench).resolve())
    end = time.monotonic() + arguments.limit
    rows, problems = [], []
    with open(arguments.csv, "w", newline="") as file:
        writer = None
        for part in parts():
            lines, problem = run_part(arguments, part, end - time.monotonic())
            if problem:
                problems.append(f"{part.name}: {problem}")
            for line in lines:
                writer = writer or csv.DictWriter(file, line.keys(), lineterminator="\n")
                if not rows:
                    writer.writeheader()
                writer.writerow(line)
                rows.append(line)
            file.flush()
    print_table(rows, arguments.gpus)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
