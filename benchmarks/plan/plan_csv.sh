#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Figures of planning for the masks of tests/data/dist_masks.json as one CSV, in the schema of `tangram bench`:
#   benchmarks/plan/plan_csv.sh build/dev/bin/tangram > docs/results/data/plan_cpu.csv
set -euo pipefail

program=$(realpath "$1")
masks=$(dirname "$0")/../../tests/data/dist_masks.json
python3 - "$masks" <<'LIST' |
import json, sys
for case in json.load(open(sys.argv[1]))["cases"]:
    if case["seqlen"] in (32768, 131072, 1048576):
        print(f"{case['mask']}:{case['seqlen']}", "8 64" if case["seqlen"] == 1048576 else "8")
LIST
  while read -r case cp_sizes; do
    for cp_size in $cp_sizes; do
      "$program" bench --plan-only --mask "$masks" --case "$case" --cp-size "$cp_size" --heads-q 64 --heads-kv 8 --dtype bf16
    done
  done | awk 'NR == 1 || !/^version/'
