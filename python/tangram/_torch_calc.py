# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""calc_attn as operators of torch.compile, which name a key by its number. The number is an input of the graph, so that
a new key does not compile it anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _cuda, _flops, _meter, _workspace
from ._core import AttnOptions, DistAttention, KeptKv
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
from ._watched import NO_CALL, Results, call_of, forward_pass

_ARGS = (
    "Tensor? sink, SymInt key, str sink_layout, float? scale, float softcap, bool deterministic, str dsink_reduce, "
    "str backend, int call"
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
        NO_CALL,
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


def forward_of(
    attention: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    sink_layout: str,
    kept: KeptKv | None,
    options: AttnOptions,
    out_dtype: torch.dtype | None,
    max_logits: bool,
) -> Results:
    """(out, lse), or with max_logits (out, lse, peaks), of an executor, or of a PlanOfBuffer."""
    out, lse = _empty_out(q, v, out_dtype), _empty_lse(q)
    peaks = q.new_empty(q.shape[1], dtype=torch.float32) if max_logits else None
    stream = _stream(q)
    measured = None if _meter.current is None else _meter.begin("forward", q)
    space, place = _workspace.take(attention.forward_workspace_bytes, q, stream)
    try:
        attention.forward(q, k, v, out, lse, peaks, sink, sink_layout, kept, options, stream, place)
    finally:
        _workspace.release(space)
    if measured is not None:
        measured.end(attention)
    return (out, lse) if peaks is None else (out, lse, peaks)


def backward_of(
    attention: Any,
    dout: Tensor,
    saved: tuple[Tensor, ...],
    sink: Tensor | None,
    sink_layout: str,
    kept: KeptKv | None,
    dsink_reduce: str,
    options: AttnOptions,
    grad_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(dq, dk, dv, dsink) likewise; `saved`: q, k, v, out, lse."""
    q, k, v, out, lse = saved
    dq, dk, dv = (_empty_like(x, grad_dtype) for x in (q, k, v))
    dsink = None if sink is None else torch.empty_like(sink)
    stream = _stream(q)
    measured = None if _meter.current is None else _meter.begin("backward", q)
    space, place = _workspace.take(attention.backward_workspace_bytes, q, stream)
    try:
        attention.backward(
            q,
            k,
            v,
            out,
            lse,
            _rows_of_dout(dout, q),
            dq,
            dk,
            dv,
            dsink,
            sink,
            sink_layout,
            kept,
            dsink_reduce,
            options,
            stream,
            place,
        )
    finally:
        _workspace.release(space)
    if measured is not None:
        measured.end(attention)
    return dq, dk, dv, dsink


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
    call: int,
    out_dtype: torch.dtype | None,
    max_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if call != NO_CALL:
        results = forward_pass("calc_attn", call_of(call).run, q, k, v, sink)
    else:

        def compute(q: Tensor) -> Results:
            attention = _attention(q, v, sink, key, sink_layout, backend, out_dtype)
            options = _options(scale, softcap, deterministic)
            k_rows, v_rows, sinks = kv_rows(k), kv_rows(v), sink_values(sink)
            return forward_of(
                attention, _rows(q), k_rows, v_rows, sinks, sink_layout, None, options, out_dtype, max_logits
            )

        results = forward_pass("calc_attn", compute, q)
    out, lse, *peaks = results
    return out, lse, peaks[0] if peaks else q.new_empty(0, dtype=torch.float32)


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
    call: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if call != NO_CALL:
        grads = call_of(call).run_backward(dout, (q, k, v, sink, out, lse))
    else:
        attention = _attention(q, v, sink, key, sink_layout, backend, out.dtype)
        saved = (_rows(q), kv_rows(k), kv_rows(v), _rows(out), lse.contiguous())
        options = _options(scale, softcap, deterministic)
        grads = backward_of(attention, dout, saved, sink_values(sink), sink_layout, None, dsink_reduce, options)
    *of_rows, dsink = grads
    if sink is None or dsink is None:
        return (*of_rows, q.new_empty(0))
    return (*of_rows, dsink.to(sink.dtype))


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


def _visible_pairs(handle: int) -> int:
    """Visible pairs of the rows that this rank owns, over all query heads: ranks add up to the whole, whatever
    moves."""
    key = key_of_handle(handle)
    num_masks = len(key.masks or (0,))  # a plan of several adds up their areas
    area: int = key.plan.ranks[key.rank].area
    return area * key.config.heads.num_heads_q // num_masks


def _pairs(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, key: int, *_: Any) -> int:
    return _visible_pairs(key)


def _pairs_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None, key: int, *_: Any
) -> int:
    return _visible_pairs(key)


_flops.register(torch.ops.tangram.calc_attn, _pairs)
_flops.register_backward(torch.ops.tangram.calc_attn_backward, _pairs_backward)
