#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# How long a newcomer waits: clones the commit that is checked out into a fresh folder, turns the compiler cache off, and
# times each command, with its processor seconds. Prints the table of CONTRIBUTING.md, and leaves the logs in the folder.
# Packages of the system stay as they are: on a machine without them `make demo` takes their installation besides.
#
# usage: tools/measure_build.sh [FOLDER] [COMMAND ...]
#   FOLDER    where to clone to (default: a temporary one)
#   COMMAND   what to time instead of the usual ones, each a word list, e.g. "make demo" ".ci/run"
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-$(mktemp -d)}
shift || true
commands=("$@")
((${#commands[@]} > 0)) || commands=("make demo" "make test" "make test" "FRESH .ci/run" "FRESH pip wheel")

export CCACHE_DISABLE=1
commit=$(git rev-parse --short HEAD)
clone() {
  rm -rf "$folder/tangram"
  git clone --quiet . "$folder/tangram"
  git -C "$folder/tangram" checkout --quiet "$commit"
}
mkdir -p "$folder"
clone
echo "commit $commit, $(nproc) cores, $(date -u +%Y-%m-%d), compiler cache off"
echo
echo "| command | minutes:seconds | processor seconds | ends with |"
echo "|---|---|---|---|"
number=0
for command in "${commands[@]}"; do
  number=$((number + 1))
  note=""
  if [[ $command == FRESH* ]]; then
    clone
    command=${command#FRESH }
    note=", fresh clone"
  fi
  run=$command
  if [[ $command == "pip wheel" ]]; then
    python3 -m venv "$folder/wheel-venv"
    run="$folder/wheel-venv/bin/python -m pip wheel --no-deps -w $folder/wheels ."
  fi
  status=0
  (cd "$folder/tangram" && TIMEFORMAT='%R %U %S' && time bash -c "$run" > "$folder/$number.log" 2>&1) 2> "$folder/$number.time" || status=$?
  read -r wall user sys < <(tail -1 "$folder/$number.time")
  awk -v c="$command$note" -v w="$wall" -v cpu="$(awk "BEGIN { print $user + $sys }")" -v s="$status" \
    'BEGIN { printf "| `%s` | %d:%02d | %d | %s |\n", c, w / 60, w % 60, cpu, s }'
done
echo
echo "logs: $folder"
