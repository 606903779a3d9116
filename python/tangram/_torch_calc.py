# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""calc_attn as operators of torch.compile, which name a key by its number: an input of the graph, so that a new key of
every step does not compile it anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _cuda, _workspace
from ._core import DistAttention
from ._runtime_key import DistAttnRuntimeKey, key_of_handle
from ._torch_flex_compiled import _no_second_derivatives, _nothing_to_save, shapes_of_backward, shapes_of_forward
from ._torch_pass import (
    _empty_like,
    _empty_lse,
    _empty_out,
    _options,
    _rows,
    _rows_of_dout,
    _stream,
)

_ARGS = (
    "Tensor? sink, SymInt key, str sink_layout, float? scale, float softcap, bool deterministic, str dsink_reduce, "
    "str backend"
)
torch.library.define(
    "tangram::calc_attn",
    f"(Tensor q, Tensor k, Tensor v, {_ARGS}, ScalarType? out_dtype, bool max_logits) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "tangram::calc_attn_backward",
    f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_ARGS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


def kv_rows(tensor: Tensor) -> Tensor:
    """Keys or values as an executor reads them; those in GPU memory are sent as they lie."""
    return _rows(tensor) if _cuda.device_of(tensor) < 0 else _cuda.dense(tensor)


def sink_values(sink: Tensor | None) -> Tensor | None:
    return None if sink is None else kv_rows(sink.to(torch.float32).contiguous())


def calc_compiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: DistAttnRuntimeKey,
    sink: Tensor | None,
    sink_layout: str,
    options: tuple[float | None, float, bool],
    dsink_reduce: str,
    backend: str | None,
    out_dtype: torch.dtype | None,
    max_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, max_logits); the last is empty unless asked for."""
    scale, softcap, deterministic = options
    results: tuple[Tensor, Tensor, Tensor] = torch.ops.tangram.calc_attn(
        q,
        k,
        v,
        sink,
        key.handle,
        sink_layout,
        scale,
        softcap,
        deterministic,
        dsink_reduce,
        backend or "",
        out_dtype,
        max_logits,
    )
    return results


def _attention(
    q: Tensor,
    v: Tensor,
    sink: Tensor | None,
    handle: int,
    sink_layout: str,
    backend: str,
    out_dtype: torch.dtype | None,
) -> DistAttention:
    key, device = key_of_handle(handle), _cuda.device_of(q)
    row_sinks = key.sinks_that_move(sink, sink_layout, device)
    results = key.dtypes_that_move(q.dtype, out_dtype, None, device)
    return key.attention(q.dtype, v.shape[2], backend or None, device, row_sinks, results)


@torch.library.impl("tangram::calc_attn", "CompositeExplicitAutograd")
def _calc(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    key: int,
    sink_layout: str,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    _: str,
    backend: str,
    out_dtype: torch.dtype | None,
    max_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    attention = _attention(q, v, sink, key, sink_layout, backend, out_dtype)
    out = _empty_out(q, v, out_dtype)
    lse = _empty_lse(q)
    peaks = q.new_empty(q.shape[1] if max_logits else 0, dtype=torch.float32)
    options = _options(scale, softcap, deterministic)
    stream = _stream(q)
    space, place = _workspace.take(attention.forward_workspace_bytes, q, stream)
    try:
        attention.forward(
            _rows(q),
            kv_rows(k),
            kv_rows(v),
            out,
            lse,
            peaks if max_logits else None,
            sink_values(sink),
            sink_layout,
            None,
            options,
            stream,
            place,
        )
    finally:
        _workspace.release(space)
    return out, lse, peaks


@torch.library.impl("tangram::calc_attn_backward", "CompositeExplicitAutograd")
def _calc_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sink: Tensor | None,
    key: int,
    sink_layout: str,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    dsink_reduce: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    attention = _attention(q, v, sink, key, sink_layout, backend, out.dtype)
    q, k, v = _rows(q), kv_rows(k), kv_rows(v)
    dq, dk, dv = _empty_like(q), _empty_like(k), _empty_like(v)
    as_float = sink_values(sink)
    dsink = None if as_float is None else torch.empty_like(as_float)
    stream = _stream(q)
    space, place = _workspace.take(attention.backward_workspace_bytes, q, stream)
    try:
        attention.backward(
            q,
            k,
            v,
            _rows(out),
            lse.contiguous(),
            _rows_of_dout(dout, q),
            dq,
            dk,
            dv,
            dsink,
            as_float,
            sink_layout,
            None,
            dsink_reduce,
            _options(scale, softcap, deterministic),
            stream,
            place,
        )
    finally:
        _workspace.release(space)
    if sink is None or dsink is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, dsink.to(sink.dtype)


torch.library.register_fake("tangram::calc_attn", shapes_of_forward)
torch.library.register_fake("tangram::calc_attn_backward", shapes_of_backward)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, sink, *rest = inputs
    out, lse, peaks = output
    ctx.save_for_backward(q, k, v, out, lse, sink)
    ctx.rest = rest[:-2]
    ctx.num_others = len(rest)  # inputs that have no gradient
    ctx.mark_non_differentiable(lse, peaks)


def _operator_backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
    *tensors, sink = ctx.saved_tensors
    dq, dk, dv, dsink = torch.ops.tangram.calc_attn_backward(dout, *tensors, sink, *ctx.rest)
    return (dq, dk, dv, None if sink is None else dsink, *[None] * ctx.num_others)


torch.library.register_autograd("tangram::calc_attn", _operator_backward, setup_context=_setup_context)
torch.library.register_autograd("tangram::calc_attn_backward", _no_second_derivatives, setup_context=_nothing_to_save)
