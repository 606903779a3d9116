#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# All checks that need no build; `--fix` rewrites instead of complaining. The tools are pinned and live in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

pins=(clang-format==19.1.7 ruff==0.8.4 gersemi==0.17.1 codespell==2.3.0)
stamp=.venv/lint-$(printf '%s\n' "${pins[@]}" | cksum | cut -d' ' -f1)
if [[ ! -e $stamp ]]; then
  python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check "${pins[@]}"
  touch "$stamp"
fi

fix=${1:-}
failed=0
check() {
  local what=$1
  shift
  "$@" || { echo "lint: $what failed" >&2; failed=1; }
}

mapfile -t files < <(git ls-files --cached --others --exclude-standard | while read -r file; do [[ -f $file ]] && echo "$file"; done)
only() { printf '%s\n' "${files[@]}" | grep -E "$1" || true; }

mapfile -t cxx < <(only '\.(hpp|cpp|cuh|cu)$')
mapfile -t python < <(only '\.py$')
mapfile -t cmake < <(only '(CMakeLists\.txt|\.cmake)$')
mapfile -t text < <(only '\.(hpp|cpp|cuh|cu|py|md|sh|cmake|toml|html|css|js)$|CMakeLists\.txt|Makefile')

if [[ $fix == --fix ]]; then
  .venv/bin/clang-format -i "${cxx[@]}"
  ((${#python[@]} == 0)) || { .venv/bin/ruff check --fix --quiet "${python[@]}"; .venv/bin/ruff format --quiet "${python[@]}"; }
  .venv/bin/gersemi -i "${cmake[@]}"
else
  check "clang-format (make format mends it)" .venv/bin/clang-format --dry-run --Werror "${cxx[@]}"
  if ((${#python[@]} > 0)); then
    check "ruff check" .venv/bin/ruff check --quiet "${python[@]}"
    check "ruff format" .venv/bin/ruff format --check --quiet "${python[@]}"
  fi
  check "gersemi" .venv/bin/gersemi --check "${cmake[@]}"
fi
check "codespell" .venv/bin/codespell --ignore-words tools/codespell-ignore.txt "${text[@]}"
check "layers" python3 tools/check_layers.py
check "docs" python3 tools/check_docs.py
check "Python reference" python3 tools/python_api.py --check
check "language" python3 tools/check_language.py
check "places that check_sampling.py breaks" python3 tools/check_sampling.py --places
check "generated wgmma shapes" python3 tools/generate_wgmma.py --check

trailing=$(grep -nE '[[:space:]]+$' "${text[@]}" || true)
[[ -z $trailing ]] || { echo "$trailing"; echo "lint: trailing white space" >&2; failed=1; }
missing_licence=$(for file in "${cxx[@]}" "${python[@]}"; do head -3 "$file" | grep -q SPDX-License-Identifier || echo "$file"; done)
[[ -z $missing_licence ]] || { echo "$missing_licence"; echo "lint: no SPDX head" >&2; failed=1; }

exit "$failed"
