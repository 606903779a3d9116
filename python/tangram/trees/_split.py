# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A tree as packs of bounded size, which repeat the rows that their sequences share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._whole import whole
from ..errors import InvalidArgument
from ._tree import Tree


@dataclass
class _Part:
    """Sequences that are to be in one pack, and the rows that they add below the node under which they are packed."""

    rows: int
    sequences: list[int]


def _packed(parts: list[_Part], room: int) -> list[_Part]:
    """First fit, largest first: a part goes to the first bin where it has room."""
    bins: list[_Part] = []
    for part in sorted(parts, key=lambda part: -part.rows):  # stable, so alike on every rank
        for known in bins:
            if known.rows + part.rows <= room:
                known.rows += part.rows
                known.sequences += part.sequences
                break
        else:
            bins.append(_Part(part.rows, list(part.sequences)))
    return bins


def split(tree: Tree, max_rows: int) -> list[Tree]:
    """Packs of at most `max_rows` rows that hold each sequence once; shared rows are repeated in each pack that needs
    them.

    Subtrees that fit into a pack stay whole; of others the children are packed into as few bins as first fit finds.
    `pack.sequences` are the numbers of the pack's sequences in `tree`: weights are `[weights[s] for s in
    pack.sequences]`. Deterministic, so every rank makes the same packs.

    Raises:
        InvalidArgument: a sequence has more than `max_rows` tokens.
    """
    function = "trees.split"
    if not isinstance(tree, Tree):
        raise InvalidArgument(f"{function}: tree must be a Tree (got {type(tree).__name__})")
    if (max_rows := whole(function, "max_rows", max_rows)) < 1:
        raise InvalidArgument(f"{function}: max_rows must be at least 1 (got {max_rows})")
    lengths = tree._lengths
    if lengths.size and lengths.max() > max_rows:
        s = int(lengths.argmax())
        raise InvalidArgument(
            f"{function}: max_rows must be at least the length of the longest sequence "
            f"(got max_rows={max_rows}, sequence {s} of {int(lengths[s])} tokens)"
        )
    if tree.num_rows <= max_rows:
        return [tree]
    nodes = tree._nodes
    parents, above = nodes.parent.tolist(), nodes.offset.tolist()
    size, own, after = (nodes.below - nodes.begin).tolist(), nodes.length.tolist(), nodes.after.tolist()
    ending: list[list[int]] = [[] for _ in parents]
    for s, node in enumerate(tree._ends.tolist()):
        if node >= 0:
            ending[node].append(s)

    parts: list[list[_Part]] = [[] for _ in range(len(parents) + 1)]  # below each node; the last is above the roots
    opened: list[int] = []
    node = 0
    while node < len(parents):
        if above[node] + size[node] > max_rows:
            opened.append(node)
            node += 1
            continue
        inside = [s for below in range(node, after[node]) for s in ending[below]]
        if inside:
            parts[parents[node]].append(_Part(size[node], inside))
        node = after[node]
    for node in reversed(opened):  # children before their parents
        bins = _packed(parts[node], max_rows - above[node] - own[node])
        if ending[node]:
            if not bins:
                bins = [_Part(0, [])]
            bins[0].sequences += ending[node]
        parts[parents[node]] += [_Part(own[node] + one.rows, one.sequences) for one in bins]
    packs = _packed(parts[-1], max_rows)
    empty = np.flatnonzero(tree._ends < 0).tolist()
    if empty:
        packs = packs or [_Part(0, [])]
        packs[0].sequences += empty
    return [_pack(tree, sorted(pack.sequences)) for pack in packs]


def _pack(tree: Tree, sequences: list[int]) -> Tree:
    chosen = np.array(sequences, np.int64)
    kept = np.zeros(tree.num_nodes, bool)
    kept[tree._pieces(chosen)[1]] = True
    nodes, holder = tree._nodes.subset(kept)
    ends = np.append(holder, -1)[tree._ends[chosen]]
    return Tree(nodes, ends, tree._flat, tree._device, tree._sequences[chosen])
