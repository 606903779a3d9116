#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds the fuzz targets with clang and runs each for a while (fuzz.sh SECONDS, 10 by default) from the corpus of
# tests/fuzz. New inputs stay in build/fuzz/corpus; an input that fails is kept in build/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-10}

clang=$(tools/find_clang.sh)
if [[ -z $clang ]]; then
  echo "fuzz: skipped, there is no clang with libFuzzer here (Debian: clang-19 libclang-rt-19-dev)" >&2
  exit 0
fi

cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" > /dev/null
cmake --build --preset fuzz > build/fuzz/build.log || { tail -40 build/fuzz/build.log >&2; exit 1; }
mkdir -p build/fuzz/found
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
for folder in tests/fuzz/corpus/*/; do
  name=$(basename "$folder")
  mkdir -p "build/fuzz/corpus/$name"
  log=build/fuzz/$name.log
  if ! "build/fuzz/bin/fuzz_$name" "build/fuzz/corpus/$name" "$folder" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -max_len=8192 -seed=1 -use_value_profile=1 \
    $([[ $name == *json ]] && echo -dict=tests/fuzz/json.dict) -artifact_prefix="build/fuzz/found/$name-" \
    -print_final_stats=1 > "$log" 2>&1; then
    tail -40 "$log" >&2
    echo "fuzz: $name failed; add the input in build/fuzz/found to tests/fuzz/corpus/$name and a test named for the symptom" >&2
    exit 1
  fi
  echo "fuzz: $name, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
done
