# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The program `tangram doctor` of the package: what this machine has, and checks of attention to run on it.

    tangram doctor                              which backend each GPU gets, and why
    tangram doctor --run --report report.json   checks and rates, two minutes on a GPU

`python -m tangram.doctor` is the same.
"""
