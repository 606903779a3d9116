# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes of a forest in preorder: rows of a node, then the rows of its children. So the rows below a node follow it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvalidArgument
from ._arrays import Array


@dataclass(frozen=True, eq=False)
class Nodes:
    """Arrays of int64, one value a node; nodes are numbered in preorder."""

    parent: Array
    """-1 for roots."""
    length: Array
    """Rows of the node itself."""
    after: Array
    """The first node behind its subtree."""
    source: Array
    """Where its first token is in what the tree was made of."""

    @cached_property
    def border(self) -> Array:
        """`[nodes + 1]`: node i has the rows `[border[i], border[i + 1])`."""
        return np.concatenate([np.zeros(1, np.int64), self.length.cumsum()])

    @property
    def begin(self) -> Array:
        return self.border[:-1]

    @property
    def end(self) -> Array:
        return self.border[1:]

    @property
    def below(self) -> Array:
        """The row behind its subtree."""
        return self.border[self.after]

    @cached_property
    def offset(self) -> Array:
        """Position of its first row: the rows of all its ancestors."""
        return _sums_above(self.parent, self.length)[1]

    @cached_property
    def joined(self) -> Nodes:
        """Nodes of the same rows, a node and its only child as one node: what a mask needs."""
        n = self.parent.size
        is_head = np.ones(n, bool)
        is_head[1:] = (self.parent[1:] != np.arange(n - 1)) | (self.after[1:] != self.after[:-1])
        if is_head.all():
            return self
        head = np.flatnonzero(is_head)
        number = np.append(is_head.cumsum() - 1, [head.size, -1])  # of n, and of -1
        length = np.add.reduceat(self.length, head)
        return Nodes(number[self.parent[head]], length, number[self.after[head]], self.source[head])

    def subset(self, kept: Array) -> tuple[Nodes, Array]:
        """The nodes for which the bool array `kept` is true. And for each node the new number of its nearest kept
        ancestor or itself, else -1."""
        nearest = np.where(kept, np.arange(kept.size), self.parent)
        while True:
            inner = np.flatnonzero(nearest >= 0)
            further = nearest[nearest[inner]]
            if (further == nearest[inner]).all():
                break
            nearest[inner] = further
        number = np.concatenate([np.zeros(1, np.int64), kept.cumsum()])  # of kept nodes before each
        holder = np.where(nearest < 0, -1, number[nearest])
        parent = np.append(holder, -1)[self.parent[kept]]
        return Nodes(parent, self.length[kept], number[self.after[kept]], self.source[kept]), holder


def _sums_above(parent: Array, length: Array) -> tuple[Array, Array, Array]:
    """For each node: how many ancestors it has, their rows, and a node of a cycle that it leads to, else -1.

    Pointer jumping: after k steps a node knows the sums over its next 2^k ancestors.
    """
    jump = parent.copy()
    level = (parent >= 0).astype(np.int64)
    rows = np.where(parent >= 0, length[parent], 0) if parent.size else length.copy()
    for _ in range(max(parent.size, 1).bit_length()):
        inner = np.flatnonzero(jump >= 0)
        if inner.size == 0:
            break
        via = jump[inner]
        level[inner] += level[via]
        rows[inner] += rows[via]
        jump[inner] = jump[via]
    return level, rows, jump


def check_forest(function: str, parent: Array) -> None:
    """Every parent must be -1 or another node, and following parents must end."""
    n = parent.size
    outside = np.flatnonzero((parent < -1) | (parent >= n))
    if outside.size:
        at = int(outside[0])
        raise InvalidArgument(
            f"{function}: parents must be -1 for a root or the number of a node in [0, {n}) "
            f"(got parents[{at}]={int(parent[at])})"
        )
    # Rows may overflow in a cycle; they are not used here.
    on_cycle = _sums_above(parent, np.zeros(n, np.int64))[2]
    if (on_cycle >= 0).any():
        first = at = int(on_cycle[on_cycle >= 0][0])
        path = [at]
        while (at := int(parent[at])) != first and len(path) < 8:
            path.append(at)
        shown = " -> ".join(map(str, path)) + (f" -> {first}" if at == first else " -> ...")
        raise InvalidArgument(f"{function}: parents must lead to a root, without cycles (got {shown})")


def in_preorder(parent: Array, length: Array, source: Array, key: Array) -> tuple[Nodes, Array]:
    """The nodes of a checked forest, siblings in the order of `key`, and the new number of each node.

    Level by level: the work is O(nodes log nodes), the number of NumPy calls grows with the depth.
    """
    n = parent.size
    level = _sums_above(parent, np.zeros(n, np.int64))[0]
    arranged = np.lexsort((key, parent, level))
    borders = np.searchsorted(level[arranged], np.arange(int(level.max(initial=-1)) + 2))
    levels = [arranged[a:b] for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)]
    count = np.ones(n, np.int64)  # nodes of the subtree
    for nodes in reversed(levels[1:]):
        np.add.at(count, parent[nodes], count[nodes])
    number = np.empty(n, np.int64)
    for depth, nodes in enumerate(levels):
        before = count[nodes].cumsum() - count[nodes]
        if depth == 0:
            number[nodes] = before
            continue
        above = parent[nodes]
        is_first = np.concatenate([np.ones(1, bool), above[1:] != above[:-1]])
        first = np.flatnonzero(is_first)[is_first.cumsum() - 1]  # of each node its first sibling
        number[nodes] = number[above] + 1 + before - before[first]
    order = np.empty(n, np.int64)
    order[number] = np.arange(n)
    above = parent[order]
    above = np.where(above < 0, -1, number[above]) if n else above
    return Nodes(above, length[order], np.arange(n) + count[order], source[order]), number
