#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Prints the first clang that has sanitizers and libFuzzer, or nothing; installs one where it may. Debian 12 and Ubuntu
# 24.04 both offer one. clang 14 cannot read libstdc++ 12.
set -euo pipefail
cd "$(dirname "$0")/.."

find_clang() {
  local version probe
  probe=$(mktemp)
  for version in 19 18 17 16; do
    command -v "clang++-$version" > /dev/null || continue
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
      "clang++-$version" -fsanitize=fuzzer,address,undefined -x c++ - -o "$probe" 2> /dev/null; then
      rm -f "$probe"
      echo "clang++-$version"
      return
    fi
  done
  rm -f "$probe"
}

clang=$(find_clang)
if [[ -z $clang ]]; then
  for version in 19 18; do
    if apt-cache show "libclang-rt-$version-dev" > /dev/null 2>&1; then
      tools/setup.sh "clang-$version" "libclang-rt-$version-dev" >&2 || true
      break
    fi
  done
  clang=$(find_clang)
fi
echo "$clang"
