#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds a sanitizer preset and runs its tests: sanitize.sh PRESET [--target TARGET ...] [-- CTEST_ARGUMENT ...]. With
# clang, which compiles sanitized code in half the time that g++ takes and checks more; with g++ where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
build=()
while (($# > 0)) && [[ $1 != -- ]]; do
  build+=("$1")
  shift
done
[[ ${1:-} != -- ]] || shift

compiler=$(tools/find_clang.sh)
if [[ -z $compiler ]]; then
  echo "sanitize: with g++, there is no clang with sanitizers here (Debian: clang-19 libclang-rt-19-dev)" >&2
  compiler=g++
fi
# A build folder keeps its compiler.
fresh=()
if [[ -e build/$preset/CMakeCache.txt ]] && ! grep -q "^CMAKE_CXX_COMPILER:.*/$compiler\$" "build/$preset/CMakeCache.txt"; then
  fresh=(--fresh)
fi
cmake --preset "$preset" "${fresh[@]}" -DCMAKE_CXX_COMPILER="$(command -v "$compiler")" > /dev/null
cmake --build --preset "$preset" "${build[@]}"

# Names of functions in reports: clang's runtime asks a program for them, the llvm-symbolizer of its version or binutils'.
if [[ $compiler == clang* ]]; then
  symbolizer=$(command -v "llvm-symbolizer-${compiler##*-}" || command -v addr2line || true)
  export ASAN_SYMBOLIZER_PATH=$symbolizer TSAN_SYMBOLIZER_PATH=$symbolizer UBSAN_SYMBOLIZER_PATH=$symbolizer
fi
ctest --preset "$preset" "$@"
