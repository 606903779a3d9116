#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# compute-sanitizer over the Hopper kernels on small shapes: both passes with random masks and options, the gradients of
# keys in one tensor and row by row, small blocks, keys named one by one, and what builds lists of masks. Fails on what
# memcheck, synccheck or initcheck report; racecheck's reports are counted for docs/design/gpu_backends.md, beside those
# about programs that show what memcheck, initcheck and racecheck cannot follow.
#
# usage: tools/sanitize_gpu.sh BIN_DIR    (the folder with test_attn_sm90, memcheck_, initcheck_ and racecheck_reproducer)
set -uo pipefail
bin=$1
logs=$(mktemp -d)
failed=0
export TANGRAM_TEST_ROUNDS=${TANGRAM_TEST_ROUNDS:-12}
filter='Sm90Random.*:Sm90RowTables.Rows*:Sm90BuildLists.*HostBuildsThem:Sm90BlockBuffer.Both*'
filter+=':Sm90Tokens.AgreeW*:Sm90TokenBackward.AgreesW*'
tests=(--gtest_filter="$filter" --gtest_brief=1)

for tool in memcheck synccheck initcheck; do
  log=$logs/$tool
  if compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/test_attn_sm90" "${tests[@]}" > "$log" 2>&1; then
    echo "$tool: clean"
  else
    failed=1
    echo "$tool: FAILED"
    grep '^=========' "$log" | grep -v 'Host Frame' | head -40
  fi
done

for mode in inside end; do
  compute-sanitizer --tool memcheck "$bin/memcheck_reproducer" $mode > "$logs/$mode" 2>&1
  echo "memcheck, reproducer $mode: $(grep -c 'Invalid __shared__ read' "$logs/$mode") reports"
done
for mode in stores bulk unwritten; do
  compute-sanitizer --tool initcheck "$bin/initcheck_reproducer" $mode > "$logs/$mode" 2>&1
  echo "initcheck, reproducer $mode: $(grep -c 'Uninitialized __global__' "$logs/$mode") reports"
done

hazards() { # counts by kernel, without template arguments
  grep -oE '(and|between) (Read|Write) access at [^+]*' "$1" | sed -E 's/.*access at (void )?//; s/<.*//' | sort | uniq -c
}
for mode in each warp meet race; do
  compute-sanitizer --tool racecheck "$bin/racecheck_reproducer" $mode > "$logs/$mode" 2>&1
  echo "racecheck, reproducer $mode: $(grep -c 'Race reported' "$logs/$mode") reports"
done
compute-sanitizer --tool racecheck "$bin/test_attn_sm90" "${tests[@]}" > "$logs/racecheck" 2>&1
echo "racecheck, kernels: $(grep 'RACECHECK SUMMARY' "$logs/racecheck")"
hazards "$logs/racecheck"
exit $failed
