#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# The main job on real input, with the program given as the only argument: plans a packed batch of documents of real
# lengths, computes a smaller one over ranks, verifies it, and ends in a report.
set -euo pipefail
cd "$(dirname "$0")/.."
tangram=${1:?usage: tools/demo.sh PATH/TO/tangram}
mkdir -p out

say() { printf '\n\033[1m%s\033[0m\n%s\n\n' "$1" "$2"; }
[[ -t 1 ]] || say() { printf '\n%s\n%s\n\n' "$1" "$2"; }

say "1. Plan: 128 K tokens for 8 ranks" \
  "Documents of real lengths, packed, each causal. Who computes what, and which K/V rows move: only those that are seen."
"$tangram" plan --total-seqlen 131072 --seed 1 --cp-size 8 --heads-q 16 --heads-kv 4 --dtype bf16 --html out/demo_plan.html

say "2. Compute and verify: 8 K tokens over 4 ranks" \
  "Forward and backward on this CPU, ranks as threads with memory of their own, every row against a float64 reference."
"$tangram" verify --total-seqlen 8192 --seed 1 --cp-size 4 --heads-q 8 --heads-kv 2 --head-dim 64 --html out/demo_report.html

say "3. Look" \
  "out/demo_plan.html    the 128 K plan: mask, balance, who sends what, predicted time line
out/demo_report.html  the verified step: the same, with the measured time line and the errors
Both open offline in any browser."
