# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of float64 tensors, which the published SDPA backend takes: dense, by torch and its autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from .._torch_group import ranks_of
from ..errors import InvalidArgument


def cells_of(mask: _core.Mask) -> Tensor:
    """`[queries, keys]` bool in host memory: True where a query sees a key."""
    cells = torch.zeros(mask.seqlen_q, mask.seqlen_k, dtype=torch.bool)
    for s in mask.slices:
        i = torch.arange(s.q_range.begin, s.q_range.end)[:, None]
        j = torch.arange(s.k_range.begin, s.k_range.end)[None]
        seen = (j - i >= s.min_diag) & (j - i <= s.max_diag)
        cells[s.q_range.begin : s.q_range.end, s.k_range.begin : s.k_range.end] |= seen
    return cells


def _sinks(function: str, sink: Tensor | None, layout: str, rows: int, heads: int) -> Tensor | None:
    """`[heads, rows, sinks]`."""
    if sink is None:
        return None
    wanted = (heads,) if layout == "sh" else (rows, heads)
    got = tuple(sink.shape[1:]) if layout == "sh" else (sink.shape[0], *sink.shape[2:])
    if sink.ndim != len(wanted) + 1 or got != wanted:
        shape = "[sinks, heads of q]" if layout == "sh" else "[rows of q, sinks, heads of q]"
        raise InvalidArgument(
            f"{function}: sink must be {shape} for {rows} rows and {heads} heads (got {list(sink.shape)})"
        )
    whole = sink[None].expand(rows, *sink.shape) if layout == "sh" else sink
    return whole.permute(2, 0, 1)


def dense_attention(
    function: str,
    qkv: tuple[Tensor, Tensor, Tensor],
    cells: Sequence[Tensor],
    sink: Tensor | None,
    sink_layout: str,
    softmax_scale: float | None,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out `[rows, heads, dim_v]`, lse `[rows, heads]`, max_logits `[heads]`) in the dtype of q.

    Args:
        cells: what each of equal groups of heads sees, `[rows of q, rows of k]` bool.
    """
    q, k, v = qkv
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    logits = torch.einsum("ihd,jhd->hij", q, k) * scale
    each = q.shape[1] // len(cells)
    visible = torch.stack([group.to(q.device) for group in cells for _ in range(each)])
    max_logits = logits.detach().masked_fill(~visible, -torch.inf).amax((1, 2))
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    sinks = _sinks(function, sink, sink_layout, q.shape[0], q.shape[1])
    # A row without a visible key has no softmax; all of it is computed as if visible, and left out below.
    some = visible.any(-1, keepdim=True)
    logits = logits.masked_fill(~(visible if sinks is not None else visible | ~some), -torch.inf)
    if sinks is not None:
        logits = torch.cat([sinks.to(q.dtype), logits], -1)
    lse = logits.logsumexp(-1).detach()
    probabilities = logits.softmax(-1)[..., -k.shape[0] :].masked_fill(~visible, 0.0)
    out = torch.einsum("hij,jhd->ihd", probabilities, v)
    if sinks is None:
        lse = lse.masked_fill(~some[..., 0], -torch.inf)
    return out, lse.transpose(0, 1), max_logits


def of_all_ranks(x: Tensor, op: Any, group_or_mesh: Any) -> None:
    """all_reduce over a group, or over a mesh of several dimensions one after the other. Collective."""
    mesh = group_or_mesh if hasattr(group_or_mesh, "mesh") else None
    groups = [group_or_mesh] if mesh is None else [mesh.get_group(i) for i in range(mesh.ndim)]
    for group in groups:
        dist.all_reduce(x, op, group)


class SumOfGradients(torch.autograd.Function):
    """x, whose gradient is that of all ranks: added up, or averaged. Backward is collective."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, op: str) -> Tensor:
        ctx.group, ctx.op = group, op
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total = grad.clone()
        of_all_ranks(total, dist.ReduceOp.SUM, ctx.group)
        return total / len(ranks_of(ctx.group)) if ctx.op == "avg" else total, None, None
