# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A forest of shared prefixes as rows in preorder."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any

import numpy as np

from .._core import AttnSlice, Mask, Range
from ..errors import InvalidArgument
from ._arrays import Array, Device, picked, placed, ranges
from ._nodes import Nodes
from ._targets import Targets, targets_of


class Tree:
    """Sequences that share prefixes, as rows in preorder: each row is one token behind one prefix.

    Made by from_sequences, from_parents and split; immutable. What it returns are NumPy arrays, or tensors of torch
    where the tokens were such; `to` chooses.
    """

    def __init__(
        self, nodes: Nodes, ends: Array, flat: Array | None, device: Device, sequences: Array | None = None
    ) -> None:
        self._nodes = nodes
        self._ends = ends
        """For each sequence the node where it ends; -1: it is empty."""
        self._flat = flat
        self._device = device
        self._sequences = np.arange(ends.size) if sequences is None else sequences
        self._masks: dict[int, Mask] = {}

    def to(self, device: Any) -> Tree:
        """Equal tree whose results are tensors on this device of torch; None: NumPy arrays."""
        if device is not None:
            import torch

            device = torch.device(device)
        return Tree(self._nodes, self._ends, self._flat, device, self._sequences)

    def __repr__(self) -> str:
        whole = int(self._lengths.sum())
        return (
            f"Tree(rows={self.num_rows}, nodes={self.num_nodes}, sequences={self.num_sequences}, "
            f"tokens of sequences={whole})"
        )

    @property
    def num_rows(self) -> int:
        return int(self._nodes.border[-1])

    @property
    def num_nodes(self) -> int:
        return int(self._nodes.length.size)

    @property
    def num_sequences(self) -> int:
        return int(self._ends.size)

    @cached_property
    def _lengths(self) -> Array:
        depth = np.append(self._nodes.offset + self._nodes.length, 0)  # [-1] is 0
        return depth[self._ends]

    @cached_property
    def _borders(self) -> Array:
        return np.concatenate([np.zeros(1, np.int64), self._lengths.cumsum()])

    @property
    def lengths(self) -> Any:
        """Tokens of each sequence, int64."""
        return placed(self._lengths.copy(), self._device)

    @property
    def cu_seqlens(self) -> Any:
        """Borders of the sequences one after the other, int64 `[num_sequences + 1]`: packs them without a tree."""
        return placed(self._borders.copy(), self._device)

    @property
    def sequences(self) -> Any:
        """For each sequence its number in the tree that was split; else 0, 1, 2 and on."""
        return placed(self._sequences.copy(), self._device)

    @property
    def node_lengths(self) -> Any:
        """Rows of each node; nodes are in preorder."""
        return placed(self._nodes.length.copy(), self._device)

    @property
    def node_parents(self) -> Any:
        """For each node the number of its parent, -1 for a root."""
        return placed(self._nodes.parent.copy(), self._device)

    @property
    def sources(self) -> Any:
        """For each row the place of its token in the input: in the sequences one after the other, or in the nodes that
        from_parents got. `x[tree.sources]` are other values of tokens, such as images' features."""
        return placed(ranges(self._nodes.source, self._nodes.length), self._device)

    def _tokens(self) -> Array | None:
        """A new array: callers may write to theirs."""
        return None if self._flat is None else picked(self._flat, self._nodes.source, self._nodes.length)

    @property
    def tokens(self) -> Any:
        """`[num_rows]`, in the dtype in which they were given; None if the tree was made of lengths alone."""
        tokens = self._tokens()
        return None if tokens is None else placed(tokens, self._device)

    def positions(self) -> Any:
        """Position of each row in its sequences, int64 `[num_rows]`: what rotary embeddings need."""
        return placed(ranges(self._nodes.offset, self._nodes.length), self._device)

    def mask(self, window: tuple[int, int] | None = None) -> Mask:
        """Each row sees itself and the rows before it in its sequences: its ancestors, no other branch.

        Args:
            window: `(left, 0)`: at most `left` keys before the query, counted by positions; None or left=-1: all.
                Models whose window of w tokens counts the query itself take `(w - 1, 0)`.
        """
        left = _left_of(window)
        if left not in self._masks:
            self._masks[left] = self._whole_mask() if left < 0 else self._window_mask(left)
        return self._masks[left]

    def _whole_mask(self) -> Mask:
        nodes = self._nodes.joined
        own = np.stack([nodes.begin, nodes.end], 1)
        is_inner = nodes.below > nodes.end
        below = np.stack([nodes.end, nodes.below], 1)[is_inner]
        types = np.zeros(own.shape[0] + below.shape[0], np.int64)
        types[: own.shape[0]] = 1  # causal
        queries, keys = np.concatenate([own, below]), np.concatenate([own, own[is_inner]])
        return Mask.from_ranges(queries, keys, types, self.num_rows, self.num_rows)

    def _window_mask(self, left: int) -> Mask:
        """A band for each node and each of its ancestors in reach. Rows minus positions is constant in a node, so a
        bound on positions is one on diagonals."""
        nodes = self._nodes.joined
        shift = nodes.begin - nodes.offset
        slices = []
        query = key = np.arange(nodes.length.size)
        while query.size:
            begin, end = nodes.begin, nodes.end
            low = shift[key] - shift[query] - left
            high = np.where(query == key, 0, self.num_rows)
            columns = (begin[query], end[query], begin[key], end[key], low, high)
            for q0, q1, k0, k1, min_diag, max_diag in zip(*(column.tolist() for column in columns), strict=True):
                slices.append(AttnSlice(Range(q0, q1), Range(k0, k1), min_diag, max_diag))
            key = nodes.parent[key]
            # The last key of an ancestor is just before the rows of the node below it.
            reached = (key >= 0) & (nodes.offset[key] + nodes.length[key] - 1 >= nodes.offset[query] - left)
            query, key = query[reached], key[reached]
        return Mask(self.num_rows, self.num_rows, slices)

    def _pieces(self, sequences: Array) -> tuple[Array, Array]:
        """(which of `sequences`, node) for each node of their paths, from the root down."""
        which = np.flatnonzero(self._ends[sequences] >= 0)
        node = self._ends[sequences][which]
        pairs = []
        while node.size:
            pairs.append((which, node))
            node = self._nodes.parent[node]
            which, node = which[node >= 0], node[node >= 0]
        if not pairs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # The sort is stable and roots are last, so nodes from the last level to the first.
        whole, nodes = (np.concatenate(column) for column in zip(*reversed(pairs), strict=True))
        order = np.argsort(whole, kind="stable")
        return whole[order], nodes[order]

    def _rows_of(self, sequences: Array) -> Array:
        nodes = self._pieces(sequences)[1]
        return ranges(self._nodes.begin[nodes], self._nodes.length[nodes])

    def rows_of(self, sequence: Any = None) -> Any:
        """The rows of a sequence, int64: `logits[tree.rows_of(s)]` are those of sequence s, and autograd adds the
        gradients of shared rows up.

        Args:
            sequence: its number; or a list of numbers, whose rows come one after the other; None: all sequences.
        """
        if sequence is None:
            return placed(self._rows_of(np.arange(self.num_sequences)), self._device)
        try:
            chosen = [operator.index(one) for one in (sequence if hasattr(sequence, "__iter__") else [sequence])]
        except TypeError:
            raise InvalidArgument(
                f"Tree.rows_of: sequence must be the number of a sequence, or a list of them (got {sequence!r:.60})"
            ) from None
        for number in chosen:
            if not 0 <= number < self.num_sequences:
                raise InvalidArgument(
                    f"Tree.rows_of: sequence must be in [0, {self.num_sequences}) (got sequence={number})"
                )
        return placed(self._rows_of(np.array(chosen, np.int64)), self._device)

    def targets(self, weights: Any = None) -> Targets:
        """The edges of a loss: a row has a label for each of its children, so labels belong to edges, not to rows.

        Each token behind another one is an edge from the row before it. Its weight is the sum over the sequences that
        it belongs to: `-(weights * log_p[rows, labels]).sum()` and its gradients equal those of separate sequences.
        Edges whose weight is 0 are left out, so prompts cost no logits.

        Args:
            weights: weight of the log probability of each token of the sequences. A list with one array (or number) for
                each sequence, or one array of all tokens, see cu_seqlens.
                None: 1. The first token of a sequence has no edge. For a loss that is not linear in log p pass its
                mask, then see Targets.gather.

        Raises:
            InvalidArgument: the tree has no tokens; weights of another length.
        """
        return targets_of(self, weights)

    def local(self, key: Any, weights: Any = None) -> Targets:
        """The targets whose rows `tangram.dispatch(x, key)` gave this rank, as rows of its shard. Sends nothing.

        Over all ranks each edge occurs once. key: a runtime key of this tree's mask.
        """
        return self.targets(weights).local(key)


def _left_of(window: Any) -> int:
    if window is None:
        return -1
    try:
        left, right = (operator.index(side) for side in window)
    except (TypeError, ValueError):
        left, right = 0, -1
    if right != 0 or left < -1:
        raise InvalidArgument(
            "Tree.mask: window must be (left, 0), left keys before a query, -1 for all, and none after it "
            f"(got window={window!r:.60})"
        )
    return left
