# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Lists of token indices for tests, and what they show."""

import numpy as np


def random_lists(seed, rows, heads_kv, topk, keys):
    """[rows, heads_kv, topk] int32: distinct keys, a quarter of the entries -1, of every fifth row all."""
    random = np.random.default_rng(seed)
    lists = np.stack([[random.permutation(keys)[:topk] for _ in range(heads_kv)] for _ in range(rows)])
    lists[random.random(lists.shape) < 0.25] = -1
    lists[1::5] = -1
    return lists.astype(np.int32)


def cells_of(lists, keys):
    """The dense mask of the lists [rows, topk] of one K/V head."""
    cells = np.zeros((len(lists), keys), bool)
    for row, named in enumerate(lists):
        cells[row, named[named >= 0]] = True
    return cells
