#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that everything the build needs is there, and the packages named as arguments. Installs what is missing where it may, and otherwise prints the
# one command that does. Python tools go to .venv, never into the system.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache mold python3 python3-dev python3-venv
  libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin
  "$@"
)

if ! command -v dpkg-query > /dev/null; then
  echo "setup: this is no Debian or Ubuntu; please install the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2> /dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done

if ((${#missing[@]} > 0)); then
  install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [[ $(id -u) == 0 ]]; then
    run=(env DEBIAN_FRONTEND=noninteractive bash -c "$install")
  elif command -v sudo > /dev/null && sudo -n true 2> /dev/null; then
    run=(sudo env DEBIAN_FRONTEND=noninteractive bash -c "$install")
  else
    echo "setup: some packages are missing and installing them needs root. Please run:" >&2
    echo "  sudo bash -c '$install'" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  log=$(mktemp)
  "${run[@]}" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
  rm -f "$log"
fi
