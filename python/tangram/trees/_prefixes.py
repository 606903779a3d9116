# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Which sequences share their first tokens: sorted sequences, common prefixes of neighbours, nodes level by level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._arrays import Array

_FIRST_WIDTH, _LAST_WIDTH = 16, 4096
"""Tokens of a pair that are compared at once: few at first, since most neighbours part early or share much."""
_BLOCK = 1 << 18
"""Tokens that are compared in one NumPy call, so that temporaries stay in the cache."""


@dataclass
class Prefixes:
    """Nodes in no particular order, int64, and the node at which each sequence ends, -1 for an empty one."""

    parent: Array
    begin: Array
    """Position of the node's first token in its sequences."""
    length: Array
    first: Array
    """The first of its sequences."""
    ends: Array


def _narrow(flat: Array) -> Array:
    """Equal tokens as equal words of 32 bits where they fit, else of 64, and room behind them for whole blocks."""
    is_small = (
        flat.dtype.itemsize <= 4
        or flat.size == 0
        or int(flat.astype(np.int64, copy=False).view(np.uint64).max()) < 2**32
    )
    dtype = np.uint32 if is_small else np.int64
    words = np.zeros(flat.size + _LAST_WIDTH, dtype)
    # NumPy casts small negative numbers to large ones, one to one.
    np.copyto(words[: flat.size], flat, casting="unsafe")
    return words


def _sorted(words: Array, begins: Array, lengths: Array) -> Array:
    """Numbers of the sequences in an order in which all that share a prefix are neighbours: that of their bytes."""
    size = words.dtype.itemsize
    text = words.data.cast("B")
    keys = [bytes(text[b * size : (b + n) * size]) for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def _common(words: Array, one: Array, other: Array, limit: Array) -> Array:
    """How many tokens from `one[i]` and from `other[i]` on are equal, at most `limit[i]`."""
    common = np.zeros(one.size, np.int64)
    active, done, width = np.flatnonzero(limit > 0), 0, _FIRST_WIDTH
    while active.size:
        blocks = np.lib.stride_tricks.sliding_window_view(words, width)
        still = []
        step = max(_BLOCK // width, 1)
        for i in range(0, active.size, step):
            part = active[i : i + step]
            differ = blocks[one[part] + done] != blocks[other[part] + done]
            at = differ.argmax(1)
            equal = np.where(differ[np.arange(part.size), at], at, width)
            common[part] = np.minimum(done + equal, limit[part])
            still.append(part[(equal == width) & (limit[part] > done + width)])
        active = np.concatenate(still)
        done += width
        width = min(2 * width, _LAST_WIDTH)
    return common


def find_prefixes(flat: Array, lengths: Array, min_shared: int) -> Prefixes:
    """The nodes of sequences that lie one after the other in `flat`.

    Sequences stay together at a node only if they share at least `min_shared` tokens behind its parent.
    """
    ends = lengths.cumsum()
    begins = ends - lengths
    words = _narrow(flat)
    order = _sorted(words, begins, lengths)
    length = lengths[order]
    common = np.zeros(order.size, np.int64)  # with the sequence before it in the order
    common[1:] = _common(words, begins[order[:-1]], begins[order[1:]], np.minimum(length[:-1], length[1:]))

    made: list[tuple[Array, Array, Array, Array]] = []
    num_nodes = 0
    end_of = np.full(order.size, -1, np.int64)
    at = np.arange(order.size)  # places in the order that are in groups
    base = np.zeros(order.size, np.int64)  # tokens up to the node above
    parent = np.full(order.size, -1, np.int64)
    is_first = at == 0  # of its group
    while at.size:
        # Neighbours that share less than this part, and with them all on the left from all on the right.
        cut = is_first | (common[at] < base + min_shared)
        start = np.flatnonzero(cut)
        size = np.diff(np.append(start, at.size))
        number_of = order[at]
        depth = np.minimum.reduceat(np.where(cut, np.int64(2**62), common[at]), start)
        depth = np.where(size == 1, length[at[start]], depth)
        has_rows = depth > base[start]  # not so where one sequence ends at the node above
        node = np.where(has_rows, num_nodes + has_rows.cumsum() - 1, parent[start])
        num_nodes += int(has_rows.sum())
        firsts = np.minimum.reduceat(number_of, start)
        made.append((parent[start][has_rows], base[start][has_rows], depth[has_rows], firsts[has_rows]))
        alone = size == 1
        end_of[number_of[start[alone]]] = node[alone]
        group = np.repeat(np.arange(start.size), size)
        kept = ~alone[group]
        at, is_first = at[kept], cut[kept]
        base, parent = depth[group[kept]], node[group[kept]]
    columns = [np.concatenate(column) if column else np.empty(0, np.int64) for column in zip(*made, strict=True)]
    above, begin, depth, first = columns or [np.empty(0, np.int64)] * 4
    return Prefixes(above, begin, depth - begin, first, end_of)
