#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Medians of bench_new_mask in the schema of `tangram bench`.

build/dev/bin/bench_new_mask --benchmark_repetitions=9 --benchmark_format=json | benchmarks/schedule/new_mask_csv.py
"""

import json
import sys
from pathlib import Path

HEADER = (
    "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,backend,"
    "transport,strategy,figure,unit,value"
)


def machine():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")


def main():
    version = (Path(__file__).parents[2] / "VERSION").read_text().strip()
    print(HEADER)
    for line in json.load(sys.stdin)["benchmarks"]:
        if line.get("aggregate_name") != "median":
            continue
        part, mask, rows = line["run_name"].split("/")
        shape = f"{rows},{rows},1,,64,8,128,128,bfloat16,sm90,,"
        print(f'{version},"{machine()}","{mask}",{shape},{part},{line["time_unit"]},{line["cpu_time"]:.3f}')


if __name__ == "__main__":
    main()
