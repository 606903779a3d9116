# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The edges of a tree on which losses are computed, and how values of edges become values of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ._arrays import Array, Device, is_tensor, on_host, placed

Tree = Any
"""The class of _tree.py, which imports this module."""


class Targets:
    """Edges of a tree: `rows, labels, weights = targets`, one value for each edge, in the order of their labels' rows.

    rows: the row whose logits predict, int64; labels: the token that it predicts, in the dtype of the tokens;
    weights: floating.
    """

    def __init__(self, tree: Tree, has_edge: Array, rows: Array, weights: Array, num_rows: int) -> None:
        self._tree = tree
        self._has_edge = has_edge
        """By row of the tree whether its token is the label of an edge."""
        self._rows = rows
        self._weights = weights
        self._num_rows = num_rows
        """Rows of the tree, or of the shard of a rank."""
        self._device: Device = tree._device
        self._of_token: Any = None
        self.rows = placed(rows, self._device)
        self.weights = placed(weights, self._device)
        tokens = tree._tokens()
        assert tokens is not None
        self.labels = placed(tokens[has_edge], self._device)

    def __len__(self) -> int:
        return int(self._rows.size)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.rows, self.labels, self.weights))

    def __repr__(self) -> str:
        return f"Targets(edges={len(self)}, rows={self._num_rows})"

    @property
    def edge_of_token(self) -> Any:
        """For each token of the sequences, one after the other, its edge; -1 if it has none here. int64."""
        if self._of_token is None:
            edge_of_row = np.full(self._tree.num_rows, -1, np.int64)
            edge_of_row[self._has_edge] = np.arange(len(self))
            every = np.arange(self._tree.num_sequences)
            self._of_token = placed(edge_of_row[self._tree._rows_of(every)], self._device)
        return self._of_token

    def gather(self, values: Any) -> Any:
        """Values of edges as values of the sequences' tokens, one sequence after the other: `[edges, ...]` to
        `[tokens, ...]`, 0 where a token has no edge. Autograd adds the gradients of shared edges up.

        For losses that are not linear in log p: clipped ratios, KL to a reference, GRPO and PPO.
        """
        if not hasattr(values, "shape") or not values.shape or values.shape[0] != len(self):
            raise InvalidArgument(
                f"Targets.gather: values must have one for each of the {len(self)} edges "
                f"(got shape={list(getattr(values, 'shape', []))})"
            )
        edge = self.edge_of_token
        if is_tensor(values):
            import torch

            edge = torch.as_tensor(edge, device=values.device)
            given = torch.cat([values, values.new_zeros(1, *values.shape[1:])])  # -1 becomes the row of zeros
            return given.index_select(0, torch.where(edge < 0, len(self), edge))
        return np.concatenate([values, np.zeros((1, *values.shape[1:]), values.dtype)])[on_host(edge)]

    def local(self, key: Any) -> Targets:
        """The edges whose rows `tangram.dispatch(x, key)` gave this rank, as rows of its shard. Sends nothing."""
        from .._runtime_key import require_key
        from ..distributed import get_loss_mask, get_position_ids

        key = require_key("Targets.local", key)
        if key.total_seqlen_q != self._num_rows or self._num_rows != self._tree.num_rows:
            raise InvalidArgument(
                f"Targets.local: key must be of the tree's mask, {self._tree.num_rows} rows, and the targets of the "
                f"whole tree (got a key of {key.total_seqlen_q} rows, targets of {self._num_rows})"
            )
        held = get_position_ids(key).numpy()
        is_real = get_loss_mask(key).numpy().astype(bool)  # padded rows have the position of another row
        shard_row = np.full(self._num_rows, -1, np.int64)
        shard_row[held[is_real]] = np.flatnonzero(is_real)
        rows = shard_row[self._rows]
        here = rows >= 0
        has_edge = self._has_edge.copy()
        has_edge[has_edge] = here
        return Targets(self._tree, has_edge, rows[here], self._weights[here], held.size)


def targets_of(tree: Tree, weights: Any) -> Targets:
    nodes = tree._nodes
    if tree._flat is None:
        raise InvalidArgument("Tree.targets: the tree must have tokens; pass tokens= to from_parents (got none)")
    if weights is None:
        # Sequences that end at or below a node, which are numbered in preorder.
        ends = np.bincount(tree._ends[tree._ends >= 0], minlength=tree.num_nodes)
        before = np.concatenate([np.zeros(1, np.int64), ends.cumsum()])
        of_node = before[nodes.after] - before[:-1]
        of_row = np.repeat(of_node.astype(np.float32), nodes.length)
    else:
        of_row = _weights_of_rows(tree, weights)
    of_row[nodes.begin[nodes.parent < 0]] = 0  # nothing predicts the first token of a sequence
    has_edge = of_row != 0
    rows = np.arange(-1, tree.num_rows - 1)  # the row before, or the last one of the parent
    inner = nodes.parent >= 0
    rows[nodes.begin[inner]] = nodes.end[nodes.parent[inner]] - 1
    return Targets(tree, has_edge, rows[has_edge], of_row[has_edge], tree.num_rows)


def _weights_of_rows(tree: Tree, weights: Any) -> Array:
    """Sums over sequences, in float64; float32 unless float64 was given."""
    flat = _flat_weights(tree, weights)
    of_row: Array
    if flat.size >> 7 > tree.num_sequences:
        # Long sequences: sums of slices are quicker than a number for each token.
        of_row = np.zeros(tree.num_rows)
        whole, nodes = tree._pieces(np.arange(tree.num_sequences))
        start = tree._borders[whole] + tree._nodes.offset[nodes]
        columns = (start, tree._nodes.begin[nodes], tree._nodes.length[nodes])
        for at, row, length in zip(*(column.tolist() for column in columns), strict=True):
            of_row[row : row + length] += flat[at : at + length]
    else:
        rows = tree._rows_of(np.arange(tree.num_sequences))
        of_row = np.bincount(rows, weights=flat, minlength=tree.num_rows)
    return of_row.astype(flat.dtype if flat.dtype == np.float64 else np.float32)


def _flat_weights(tree: Tree, weights: Any) -> Array:
    """One for each token of the sequences."""
    total = int(tree._borders[-1])
    if is_tensor(weights) or isinstance(weights, np.ndarray):
        flat = np.asarray(on_host(weights))
        if flat.shape != (total,) or flat.dtype.kind not in "fiub":
            raise InvalidArgument(
                f"Tree.targets: weights must have one for each of the {total} tokens of the sequences, or be a list "
                f"with an array or number for each sequence (got {flat.dtype}, shape={list(flat.shape)})"
            )
        return flat
    if not isinstance(weights, Sequence) or len(weights) != tree.num_sequences:
        given = len(weights) if isinstance(weights, Sequence) else type(weights).__name__
        raise InvalidArgument(
            f"Tree.targets: weights must be a list with an entry for each of the {tree.num_sequences} sequences, or "
            f"one array of all tokens (got {given})"
        )
    lengths = tree._lengths.tolist()
    parts = []
    for s, (one, length) in enumerate(zip(weights, lengths, strict=True)):
        part = np.asarray(on_host(one))
        if part.dtype.kind not in "fiub" or part.shape not in ((), (length,)):
            raise InvalidArgument(
                f"Tree.targets: weights[{s}] must be a number or have one for each of its {length} tokens "
                f"(got {part.dtype}, shape={list(part.shape)})"
            )
        parts.append(np.broadcast_to(part, (length,)))
    flat = np.concatenate(parts) if parts else np.empty(0)
    is_double = any(hasattr(w, "dtype") and str(w.dtype).endswith("float64") for w in weights)
    return flat if is_double else flat.astype(np.float32)
