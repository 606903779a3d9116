# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Forests that tests of tangram.trees draw, and what holds for them by definition, row by row."""

import numpy as np


def random_sequences(rng, most=9):
    """Token lists over few tokens that branch anywhere, with empty, equal, nested and one-token ones among them."""
    tokens = int(rng.integers(2, 6))
    sequences = []
    for _ in range(rng.integers(0, most)):
        known = sequences[rng.integers(len(sequences))] if sequences and rng.random() < 0.8 else []
        cut = int(rng.integers(0, len(known) + 1))
        more = rng.integers(0, tokens, rng.choice([0, 0, 1, 1, 3, 8])).tolist()
        sequences.append(known[:cut] + more)
    rng.shuffle(sequences)
    return sequences


def shared_rows(sequences, min_shared):
    """The rows of each sequence, in preorder: the definition of from_sequences, recursively."""
    rows = [[] for _ in sequences]
    count = 0

    def extend(ids, end):
        nonlocal count
        length = end - len(rows[ids[0]])
        for s in ids:
            rows[s] += range(count, count + length)
        count += length

    def grow(ids):
        groups = {}
        for s in ids:
            least = len(rows[s]) + min_shared
            together = tuple(sequences[s][:least]) if len(sequences[s]) >= least else (None, s)
            groups.setdefault(together, []).append(s)
        for members in groups.values():
            if len(members) == 1:
                extend(members, len(sequences[members[0]]))
                continue
            common = 0
            while len({tuple(sequences[s][: common + 1]) for s in members}) == 1 and all(
                len(sequences[s]) > common for s in members
            ):
                common += 1
            extend(members, common)
            grow(members)

    grow(range(len(sequences)))
    return rows


def random_parents(rng, most=12):
    """(lengths, parents, ends) of a forest whose nodes are numbered in any order, some without rows."""
    n = int(rng.integers(0, most))
    order = rng.permutation(n)
    parents = np.full(n, -1, np.int64)
    for i in range(1, n):
        if rng.random() < 0.8:
            parents[order[i]] = order[rng.integers(max(0, i - 4), i)]
    lengths = rng.choice([0, 1, 1, 2, 5], n)
    ends = rng.integers(-1, n, rng.integers(0, 8)) if n and rng.random() < 0.5 else None
    return lengths, parents, ends


def node_rows(lengths, parents, ends):
    """(rows of each sequence, of which node each row is) by a walk in preorder."""
    begin, of_row = {}, []

    def walk(node):
        begin[node] = len(of_row)
        of_row.extend([node] * int(lengths[node]))
        for child in np.flatnonzero(parents == node):
            walk(child)

    for root in np.flatnonzero(parents == -1):
        walk(root)
    leaves = [node for node in range(len(lengths)) if not (parents == node).any()]
    rows = []
    for end in leaves if ends is None else ends:
        path, node = [], int(end)
        while node >= 0:
            path = list(range(begin[node], begin[node] + int(lengths[node]))) + path
            node = int(parents[node])
        rows.append(path)
    return rows, of_row


def visible_cells(num_rows, rows, left=None):
    """The mask of sequences with these rows; rows of no sequence are left out."""
    cells = np.zeros((num_rows, num_rows), bool)
    for path in rows:
        for at, row in enumerate(path):
            cells[row, path[0 if left is None else max(0, at - left) : at + 1]] = True
    return cells


def edges_of(rows, tokens, weights):
    """{row of a label: (row before it, label, summed weight)} of separate sequences."""
    edges = {}
    for path, of_sequence in zip(rows, weights, strict=True):
        for before, row, weight in zip(path[:-1], path[1:], of_sequence[1:], strict=True):
            known = edges.get(row, (before, tokens[row], 0.0))
            assert known[:2] == (before, tokens[row])
            edges[row] = (before, tokens[row], known[2] + weight)
    return {row: edge for row, edge in edges.items() if edge[2] != 0}
