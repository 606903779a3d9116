#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Makes the API reference of the public headers in build/docs/html. Fails on comments that doxygen cannot
# read.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh doxygen
mkdir -p build/docs
(cat docs/Doxyfile; echo "PROJECT_NUMBER=$(head -1 VERSION)") | doxygen - > build/docs/doxygen.log 2>&1 || {
  tail -40 build/docs/doxygen.log >&2
  exit 1
}
# doxygen 1.9 does not know what to do with a specialisation of a class that it has not read.
grep -E 'warning:|error:' build/docs/doxygen.log | grep -v 'scope for class std::hash' > build/docs/warnings.txt || true
if [[ -s build/docs/warnings.txt ]]; then
  head -40 build/docs/warnings.txt >&2
  echo "docs: $(wc -l < build/docs/warnings.txt) warnings" >&2
  exit 1
fi
echo "docs: build/docs/html/index.html, $(find build/docs/html -name '*.html' | wc -l) pages"
