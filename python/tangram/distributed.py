# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Distributed attention over torch.distributed. Names and arguments are those of MagiAttention's functions.

A key stands for a mask, dealt out to the ranks of a context-parallel group. Every rank makes the same keys and the same
calls in the same order. `dispatch` takes this rank's rows of a tensor that all ranks hold, `calc_attn` computes on
them, `undispatch` gives the whole tensor back.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._core import AttnOptions, DistAttention, KeptKv
from ._keys import (
    DistAttnRuntimeKey,
    clear_keys,
    get_most_recent_key,
    magi_attn_flex_key,
    magi_attn_varlen_key,
    make_flex_key_for_new_mask_after_dispatch,
    make_mask_key_after_dispatch,
    make_varlen_key_for_new_mask_after_dispatch,
    mask_key,
)
from ._rows import dispatch, dispatch_labels, get_loss_mask, get_position_ids, roll, undispatch
from ._torch_flex import _NAMES, _rows
from .errors import InvalidArgument, NotAvailable
from .flex import AttnForwardMeta

flex_key = magi_attn_flex_key
varlen_key = magi_attn_varlen_key

__all__ = [
    "DistAttnRuntimeKey",
    "calc_attn",
    "clear_keys",
    "dispatch",
    "dispatch_labels",
    "flex_key",
    "get_loss_mask",
    "get_most_recent_key",
    "get_position_ids",
    "magi_attn_flex_key",
    "magi_attn_varlen_key",
    "make_flex_key_for_new_mask_after_dispatch",
    "make_mask_key_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch",
    "mask_key",
    "roll",
    "undispatch",
    "varlen_key",
]


class _CalcAttn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        attention: DistAttention,
        kept: KeptKv | None,
        sink_layout: str,
        options: AttnOptions,
        out_dtype: torch.dtype | None,
        max_logits: bool,
        dsink_reduce: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=out_dtype or q.dtype)
        lse = torch.empty((q.shape[0], q.shape[1]), dtype=torch.float32)
        peaks = torch.empty(q.shape[1] if max_logits else 0, dtype=torch.float32)
        attention.forward(q, k, v, out, lse, peaks if max_logits else None, sink, sink_layout, kept, options)
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.rest = (attention, kept, sink_layout, options, dsink_reduce)
        ctx.mark_non_differentiable(lse, peaks)
        return out, lse, peaks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
        q, k, v, sink, out, lse = ctx.saved_tensors
        attention, kept, layout, options, reduce = ctx.rest
        dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype) for t in (q, k, v))
        dsink = None if sink is None else torch.empty_like(sink)
        attention.backward(q, k, v, out, lse, _rows(dout), dq, dk, dv, dsink, sink, layout, kept, reduce, options)
        return (dq, dk, dv, dsink, *[None] * 7)


def calc_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: DistAttnRuntimeKey,
    *,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    out_dtype: torch.dtype | None = None,
    return_max_logits: bool = False,
    dsink_reduce: Literal["none", "sum", "avg"] = "sum",
    backend: str | None = None,
) -> tuple[Tensor, AttnForwardMeta]:
    """Attention of this rank's rows to all rows that the key's mask shows them. Collective, and so is its backward.

    Args:
        q `[rows, num_heads_q, head_dim]`, k, v `[rows, num_heads_kv, head_dim(_v)]`: this rank's rows.
        sink: `[seqlen_sink, num_heads_q]` ("sh"), alike on every rank, or `[rows, seqlen_sink, num_heads_q]` ("ssh").
        dsink_reduce: how the gradient of a sink that all ranks share is combined: none, sum or avg.

    Returns:
        `(out, meta)` as flex_flash_attn_func, for this rank's rows; meta.max_logits is the maximum over all ranks.

    Raises:
        InvalidArgument: on every rank when arguments of one do not fit. Timeout, CommError: a peer is gone.
    """
    if q.is_cuda:
        raise NotAvailable(f"calc_attn: tensors must lie in host memory (got {q.device})")
    if q.dtype not in _NAMES or q.ndim != 3 or v.ndim != 3 or k.ndim != 3:
        raise InvalidArgument(
            "calc_attn: q, k and v must be [rows, heads, dim] of float32, bfloat16 or float16 "
            f"(got q={q.dtype}{tuple(q.shape)}, k={k.dtype}{tuple(k.shape)}, v={v.dtype}{tuple(v.shape)})"
        )
    attention = key.attention(q.dtype, v.shape[2], backend)
    kept = KeptKv() if key.config.overlap.keep_remote_kv and torch.is_grad_enabled() else None
    if sink is not None:
        sink = sink.to(torch.float32).contiguous()
    options = AttnOptions(softmax_scale, softcap, deterministic)
    out, lse, peaks = _CalcAttn.apply(  # type: ignore[no-untyped-call]
        _rows(q),
        _rows(k),
        _rows(v),
        sink,
        attention,
        kept,
        sink_layout,
        options,
        out_dtype,
        return_max_logits,
        dsink_reduce,
    )
    return out, AttnForwardMeta(lse, peaks if return_max_logits else None)
