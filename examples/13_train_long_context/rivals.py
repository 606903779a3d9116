# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the systems beside Tangram are made of: an operator that attends, exchanges with gradients, layouts of rows.

A forward pass is an operator, so that checkpoints may keep its `out` and `lse` as they keep Tangram's.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from kernels import Segments
from torch import Tensor


class _Registered:
    """A kernel by its number, which the operator takes; it lives as long as what attends by it."""

    by_number: ClassVar[WeakValueDictionary[int, _Registered]] = WeakValueDictionary()
    made: ClassVar[int] = 0

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.number = kernel, _Registered.made
        _Registered.made += 1
        _Registered.by_number[self.number] = self


def register(kernel: Any) -> _Registered:
    return _Registered(kernel)


def attend(q: Tensor, k: Tensor, v: Tensor, core: _Registered) -> Tensor:
    out: Tensor = torch.ops.train_long_context.attend(q, k, v, core.number)[0]
    return out


@torch.library.custom_op("train_long_context::attend", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, number: int) -> tuple[Tensor, Tensor]:
    out, lse = _Registered.by_number[number].kernel.forward(q, k, v)
    return out, lse


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    *qkv, number = inputs
    ctx.save_for_backward(*qkv, *output)
    ctx.core = _Registered.by_number[number]


def _backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Any, ...]:
    with torch.no_grad():
        return *ctx.core.kernel.backward(dout, *ctx.saved_tensors), None


_attend.register_autograd(_backward, setup_context=_save)


class AllToAll(torch.autograd.Function):
    """[ranks, ...]: part i goes to rank i, whose part of this rank takes its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return AllToAll.forward(ctx, dy)


def rows_to_heads(q: Tensor, k: Tensor, v: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """[rows of a rank, heads, dim] to [all rows, heads of a rank, dim], in one exchange."""
    parts = [x.unflatten(1, (ranks, -1)) for x in (q, k, v)]
    whole = AllToAll.apply(torch.cat(parts, 2).transpose(0, 1)).flatten(0, 1)
    return tuple(x.contiguous() for x in whole.split([part.shape[2] for part in parts], 1))


def heads_to_rows(out: Tensor, ranks: int) -> Tensor:
    exchanged: Tensor = AllToAll.apply(out.unflatten(0, (ranks, -1)))
    return exchanged.transpose(0, 1).flatten(1, 2)


class AllGather(torch.autograd.Function):
    """[rows, ...] to [ranks * rows, ...]; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        out = x.new_empty(ranks * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        out = dy.new_empty(len(dy) // ctx.ranks, *dy.shape[1:])
        dist.reduce_scatter_tensor(out, dy.contiguous())
        return out, None


class Permutation:
    """Row i of the result is row order[i]. None where nothing moves."""

    def __init__(self, order: Tensor, device: torch.device) -> None:
        self.order = self.inverse = None
        if not torch.equal(order, torch.arange(len(order))):
            self.order, self.inverse = order.to(device), order.argsort().to(device)


class Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, permutation: Permutation) -> Tensor:
        ctx.permutation = permutation
        return x.view_as(x) if permutation.order is None else x.index_select(0, permutation.order)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        inverse = ctx.permutation.inverse
        return dy if inverse is None else dy.index_select(0, inverse), None


Layout = tuple[Tensor, Tensor, list[tuple[slice, slice, Segments]]]
"""Rows of the rank; which gathered row stands at each place of the keys; calls of a kernel: queries, keys, runs."""


def contiguous(borders: list[int], rank: int, ranks: int) -> Layout:
    total = borders[-1]
    per_rank = -(-total // ranks)
    if per_rank * ranks > total:
        borders = [*borders, per_rank * ranks]
    low, high = rank * per_rank, (rank + 1) * per_rank
    runs = [(a, b) for a, b in zip(borders, borders[1:], strict=False) if a < high and b > low]
    first = runs[0][0]
    queries = [max(a, low) - low for a, _ in runs] + [per_rank]
    keys = [a - first for a, _ in runs] + [high - first]
    segments = Segments(queries, keys, [b - a for a, b in zip(keys, keys[1:], strict=False)])
    rows = torch.arange(low, high)
    rows[rows >= total] = -1
    return rows, torch.arange(per_rank * ranks), [(slice(0, per_rank), slice(first, high), segments)]


def zigzag(borders: list[int], rank: int, ranks: int) -> Layout:
    """Documents are filled up to 2 * ranks equal pieces, of which a rank has pieces `rank` and 2 * ranks - 1 - `rank`.
    Its rows are first all fronts, then all backs."""
    pieces = 2 * ranks
    sizes = [-(-(b - a) // pieces) for a, b in zip(borders, borders[1:], strict=False)]
    filled = [0, *torch.tensor([size * pieces for size in sizes]).cumsum(0).tolist()]
    places = []  # by rank: places of its rows among the filled documents
    for each in range(ranks):
        for piece in (each, pieces - 1 - each):
            places += [torch.arange(a + piece * size, a + (piece + 1) * size) for a, size in zip(filled, sizes)]
    gathered = torch.cat(places)
    position = torch.full((filled[-1],), -1)
    for a, b, start in zip(borders, borders[1:], filled):
        position[start : start + b - a] = torch.arange(a, b)
    count = sum(sizes)
    starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    calls = []
    for half, piece in ((0, rank), (1, pieces - 1 - rank)):
        segments = Segments(starts, filled, [size * (piece + 1) for size in sizes])
        calls.append((slice(half * count, (half + 1) * count), slice(0, filled[-1]), segments))
    rows = position[gathered[rank * 2 * count : (rank + 1) * 2 * count]]
    return rows, gathered.argsort(), calls
