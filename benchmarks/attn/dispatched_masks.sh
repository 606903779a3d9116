#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Kernel rates of the masks that ranks get from plans over 4 and 8 ranks, each on one GPU alone, beside the rate of the
# whole mask on the same GPU in the same process (`rank_kernel_*_share`). Prints figures of `tangram bench` as one CSV;
# needs a Hopper GPU.
#
# usage: benchmarks/attn/dispatched_masks.sh PROGRAM [CASE ...]    (cases of tests/data/dist_masks.json)
set -euo pipefail
program=$1
masks=$(dirname "$0")/../../tests/data/dist_masks.json
shift
cases=("$@")
if [[ ${#cases[@]} -eq 0 ]]; then
  cases=(causal:32768 varlen_causal:32768 varlen_causal_long:32768 varlen_block_causal:32768
    sliding_window_causal:32768 varlen_causal_uniform:65536 varlen_block_causal_uniform:65536 varlen_causal:131072)
fi
head=version
for case in "${cases[@]}"; do
  for cp_size in 4 8; do
    "$program" bench --backend sm90 --mask "$masks" --case "$case" --cp-size $cp_size \
      --heads-q 64 --heads-kv 8 --head-dim 128 --dtype bf16 | grep -E "^$head,|kernel_"
    head=none
  done
done
