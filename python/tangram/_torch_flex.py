# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on torch tensors: an autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _cuda
from ._backends import float32_backend
from ._core import AttnOptions, FlexAttention
from ._core import are_plain as _are_plain
from ._named import rename
from ._prepared import new as _new
from ._torch_flex_compiled import attend_compiled
from ._torch_pass import (
    Options,
    Ranges,
    _attention,
    _Call,
    _check,
    _options,
    _rows,
    check_grad_dtype,
    check_scale,
    check_sink,
    refuse_batched,
    refuse_second_derivatives,
    require_no_transform,
    warn_of_float32,
)
from ._watched import Results, is_watched
from .errors import Error, InvalidArgument
from .mask_buffer import MaskBuffer, MaskOfBuffer


@torch.compiler.assume_constant_result
def _float32_backend(device: int) -> str | None:
    return float32_backend(device)


class _FlexAttn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, call: _Call) -> Results:
        results = call.forward(q, k, v, sink)
        ctx.save_for_backward(q, k, v, sink, results[0], results[1])
        ctx.call = call
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if dout is None:
            return (None,) * 5
        saved = ctx.saved_tensors  # once, or checkpointing refuses
        try:
            if not torch.is_grad_enabled():
                return (*ctx.call.backward(dout, saved), None)
            with torch.no_grad():
                grads = (*ctx.call.backward(dout, saved), None)
        except RuntimeError:
            refuse_batched("flex_flash_attn_func", dout)
            raise
        return refuse_second_derivatives("flex_flash_attn_func", grads, (dout, *saved))


# What apply of torch.autograd.Function comes to where no transform of torch.func is active, which is checked before.
_apply_flex: Any = super(torch.autograd.Function, _FlexAttn).apply


def _begin_backward(
    attention: FlexAttention | MaskOfBuffer, inputs: tuple[Tensor, ...], options: AttnOptions, plain: bool
) -> None:
    """Has the lists of the backward pass of a new mask made beside the forward pass, if there will be one."""
    try:
        attention_is_new = _new.pop() is attention
    except IndexError:  # another thread was here
        return
    if attention_is_new and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        attention.prepare_backward_async(options.deterministic, plain)  # type: ignore[union-attr]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Ranges,
    sink: Tensor | None,
    sink_layout: str,
    options: Options,
    out_dtype: torch.dtype | None,
    max_logits: bool,
    backend: str | None,
    grad_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(out, lse, max_logits) of flex_flash_attn_func."""
    if q.is_cuda and backend is None and q.dtype in _cuda.HOST_DTYPES:
        backend = _float32_backend(_cuda.device_of(q))
        warn_of_float32("flex_flash_attn_func", backend)
        backend = backend or "reference"
    if q.is_cuda and backend == "reference":
        _check(q, k, v, sink)
        out, lse, peaks = attend(
            q.cpu(),
            k.cpu(),
            v.cpu(),
            ranges,
            None if sink is None else sink.cpu(),
            sink_layout,
            options,
            out_dtype,
            max_logits,
            backend,
            grad_dtype,
        )
        return out.to(q.device), lse.to(q.device), None if peaks is None else peaks.to(q.device)
    scale, softcap, deterministic, sm_margin = options
    if scale is not None:
        scale = check_scale("flex_flash_attn_func", scale)
        options = (scale, softcap, deterministic, sm_margin)
    if torch.compiler.is_compiling():
        if isinstance(ranges[0], MaskBuffer):
            raise InvalidArgument(
                "flex_flash_attn_func: a MaskBuffer must be used outside torch.compile, whose graphs know no state"
            )
        return attend_compiled(q, k, v, ranges, sink, sink_layout, options, out_dtype, max_logits, backend)
    plain = not is_watched() and _are_plain(q, k, v)  # fake tensors have no memory to look at
    if sink is not None or not plain:
        _check(q, k, v, sink)
    require_no_transform("flex_flash_attn_func")
    if sink is not None:
        check_sink("flex_flash_attn_func", sink, sink_layout, q.shape[0], q.shape[1])
        sink = sink.to(torch.float32).contiguous()
    if grad_dtype is not None:
        check_grad_dtype("flex_flash_attn_func", grad_dtype, q)
    try:
        attention, watched = _attention(q, k, v, ranges, backend)
        of_call = _options(scale, softcap, deterministic, sm_margin)
        if _new:
            _begin_backward(attention, (q, k, v), of_call, sink is None and softcap == 0)
        call = _Call(attention, sink_layout, of_call, out_dtype, max_logits, grad_dtype, watched, backend)
        if not plain:
            q, k, v = _rows(q), _rows(k), _rows(v)
        results = _apply_flex(q, k, v, sink, call)
    except (Error, TypeError) as error:
        rename(error, "flex_flash_attn_func")
        raise
    return results if max_logits else (*results, None)
