#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# image_install.sh DIST PREFIX PACKAGES: on a bare Debian, a virtual environment PREFIX with the wheel of DIST that fits
# and PACKAGES from PyPI. No compiler is installed, and nothing that is only needed here stays.
set -euo pipefail
dist=$1 prefix=$2
read -ra packages <<< "$3"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 python3-venv libstdc++6 > /dev/null
python3 -m venv "$prefix"
pip=("$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir)
"${pip[@]}" --no-index --find-links "$dist" tangram-attention
((${#packages[@]} == 0)) || "${pip[@]}" "${packages[@]}"
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
