#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs nvcc (the command given), and keeps what ptxas says about its kernels in OBJECT.ptxas, for tools/check_ptxas.py,
# and their code uncompressed, for tools/check_machine_code.py.
set -uo pipefail
for ((i = 1; i < $#; ++i)); do
  if [[ ${!i} == -o ]]; then
    next=$((i + 1))
    report=${!next}.ptxas
  fi
done
status=0
"$@" --resource-usage --no-compress > "$report" 2>&1 || status=$?
grep -vE '^ptxas info|bytes stack frame' "$report" >&2
exit $status
