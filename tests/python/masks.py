# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks that several tests draw."""


def random_typed(rng, rows=24):
    """Disjoint typed ranges: query rows are cut, each part sees one or two separate key ranges."""
    q_ranges, k_ranges, types = [], [], []
    at = 0
    while at < rows:
        end = min(rows, at + rng.randint(1, 9))
        cut = rng.randint(0, rows)
        for k0, k1 in ((0, cut), (cut, rows)):
            if rng.random() < 0.7:
                q_ranges.append((at, end))
                k_ranges.append((k0, k1))
                types.append(rng.randint(0, 3))
        at = end
    return q_ranges, k_ranges, types
