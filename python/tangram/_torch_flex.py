# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on torch tensors: an autograd function, and the same as an operator for torch.compile."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from . import _core, _cuda
from ._core import AttnOptions, FlexAttention, Mask
from ._prepared import backend_named, prepared
from ._shapes import check_shapes
from .errors import InvalidArgument

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
for _dtype, _name in _NAMES.items():
    _core.register_torch_dtype(_dtype, _name)
_core.register_torch_exchange(getattr(Tensor, "__dlpack_c_exchange_api__", None))  # since PyTorch 2.10

Ranges = tuple[Any, Any, Any]
Options = tuple[float | None, float, bool, int]


_options = lru_cache(1024)(AttnOptions)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it: the last dimension contiguous, no rows or heads on top of each other."""
    if tensor.is_cuda:
        return _cuda.rows(tensor)
    if tensor.is_contiguous():
        return tensor
    stride, shape = tensor.stride(), tensor.shape
    dense = stride[2] == 1 and stride[1] >= shape[2] and stride[0] >= shape[2]
    return tensor if dense else tensor.contiguous()


def _stream(tensor: Tensor) -> int:
    return _cuda.stream_of(tensor) if tensor.is_cuda else 0


def _check(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> None:
    check_shapes(q.shape, k.shape, v.shape)
    if q.dtype not in _NAMES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise InvalidArgument(
            "flex_flash_attn_func: q, k and v must share one dtype of float32, bfloat16, float16 "
            f"(got q={q.dtype}, k={k.dtype}, v={v.dtype})"
        )
    if k.device != q.device or v.device != q.device or (sink is not None and sink.device != q.device):
        raise InvalidArgument(
            "flex_flash_attn_func: q, k, v and sink must lie on one device "
            f"(got q={q.device}, k={k.device}, v={v.device}, sink={None if sink is None else sink.device})"
        )


def _attention(q: Tensor, k: Tensor, v: Tensor, ranges: Ranges, backend: str | None) -> FlexAttention:
    heads = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], _NAMES[q.dtype])
    return prepared(*ranges, q.shape[0], k.shape[0], heads, backend_named(backend, q.is_cuda, q.get_device()))


@dataclass(slots=True)
class _Call:
    """What a call has beside its tensors; one argument, because autograd looks at each."""

    attention: FlexAttention
    sink_layout: str
    options: AttnOptions
    out_dtype: torch.dtype | None
    max_logits: bool
    grad_dtype: torch.dtype | None = None


@lru_cache(1024)
def _pattern(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of this shape that holds no memory: empty_like of it takes a third of the time of torch.empty."""
    pattern = torch.empty(shape, dtype=dtype, device=device)
    pattern.untyped_storage().resize_(0)
    return pattern


def _empty_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory of this shape. Kept strides could be those of rows that lie on top of each other."""
    if dtype is None and tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(_pattern(tensor.shape, dtype or tensor.dtype, tensor.device))


def _empty_out(q: Tensor, v: Tensor, dtype: torch.dtype | None) -> Tensor:
    if (dtype is None or dtype == q.dtype) and q.shape[2] == v.shape[2]:
        return _empty_like(q)
    if dtype is not None and dtype not in _NAMES:
        raise InvalidArgument(f"tangram: out_dtype must be that of q or torch.float32 (got {dtype})")
    return torch.empty_like(_pattern((q.shape[0], q.shape[1], v.shape[2]), dtype or q.dtype, q.device))


def _empty_lse(q: Tensor) -> Tensor:
    return torch.empty_like(_pattern(q.shape[:2], torch.float32, q.device))


_NO_WORKSPACE = (0, 0)


# By device, the largest workspace so far: masks that need a little less ask for as much, so that torch finds the same
# block for all of them and never keeps several.
_most_bytes: dict[torch.device, int] = {}


def _workspace_bytes(num_bytes: int, device: torch.device) -> int:
    quarter = 1 << max(num_bytes.bit_length() - 3, 9)  # of a power of two: few different sizes
    rounded = -(-num_bytes // quarter) * quarter
    most = _most_bytes.get(device, 0)
    if rounded <= most <= 2 * rounded:
        return most
    _most_bytes[device] = max(rounded, most)
    return rounded


def workspace(num_bytes: int, device: torch.device) -> tuple[Tensor | None, tuple[int, int]]:
    """Memory for one call on the current stream, to be held until it is enqueued, and its address and size.

    Of torch's allocator, so that it is shared with activations, and part of a graph's own memory where one is captured.
    """
    if num_bytes == 0:
        return None, _NO_WORKSPACE
    num_bytes = _workspace_bytes(num_bytes, device)
    space = torch.empty_like(_pattern((num_bytes,), torch.uint8, device))
    return space, (space.data_ptr(), num_bytes)


def _forward(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    out = _empty_out(q, v, call.out_dtype)
    lse = _empty_lse(q)
    peaks = q.new_empty(q.shape[1], dtype=torch.float32) if call.max_logits else None
    space, place = workspace(call.attention.forward_workspace_bytes, q.device)
    call.attention.forward(q, k, v, out, lse, peaks, sink, call.sink_layout, call.options, _stream(q), place)
    del space
    return (out, lse) if peaks is None else (out, lse, peaks)


def _backward(
    call: _Call, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    dtype = call.grad_dtype
    dq, dk, dv = _empty_like(q, dtype), _empty_like(k, dtype), _empty_like(v, dtype)
    dsink = None if sink is None else torch.empty_like(sink)
    space, place = workspace(call.attention.backward_workspace_bytes, q.device)
    call.attention.backward(
        q, k, v, out, lse, _rows(dout), dq, dk, dv, dsink, sink, call.sink_layout, call.options, _stream(q), place
    )
    del space
    return dq, dk, dv, dsink


class _FlexAttn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, call: _Call
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
        results = _forward(call, q, k, v, sink)
        ctx.save_for_backward(q, k, v, sink, results[0], results[1])
        ctx.call = call
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, *_: Any) -> tuple[Any, ...]:
        return _backward_with_graph(ctx, dout) if torch.is_grad_enabled() else _backward_of(ctx, dout)


# What apply of torch.autograd.Function comes to where no transform of torch.func is active, which is checked before.
_apply_flex: Any = super(torch.autograd.Function, _FlexAttn).apply


def _backward_of(ctx: Any, dout: Tensor | None) -> tuple[Any, ...]:
    if dout is None:
        return (None,) * 5
    q, k, v, sink, out, lse = ctx.saved_tensors
    return (*_backward(ctx.call, dout, q, k, v, out, lse, sink), None)


def _backward_with_graph(ctx: Any, dout: Tensor | None) -> tuple[Any, ...]:
    with torch.no_grad():
        grads = _backward_of(ctx, dout)
    return refuse_second_derivatives("flex_flash_attn_func", grads)


def refuse_second_derivatives(function: str, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradients, which raise when they are differentiated: they depend on inputs by ways that are not known.

    torch's once_differentiable lets them pass as constants where the incoming gradient is one.
    """
    text = f"{function}: second derivatives are not supported (got a gradient of a gradient)"
    raising = torch._C._functions.DelayedError(text.encode(), len(grads))
    leaves: Any = [None if g is None else g.detach().requires_grad_() for g in grads]
    return tuple(raising(*leaves))


def require_no_transform(function: str) -> None:
    """Refuses vmap, grad and jvp of torch.func, whose own words do not help."""
    if torch._C._are_functorch_transforms_active():
        raise InvalidArgument(
            f"{function}: transforms of torch.func are not supported (got vmap, grad or jvp); for a batch, put its "
            "sequences into the mask as documents"
        )


def check_grad_dtype(function: str, dtype: torch.dtype | None, q: Tensor) -> None:
    if dtype is not None and dtype != torch.float32 and dtype != q.dtype:
        raise InvalidArgument(f"{function}: grad_dtype must be that of q or torch.float32 (got {dtype})")


def warn_of_float32(function: str) -> None:
    """Once for a place in the caller's program."""
    if torch.compiler.is_compiling():
        return
    warnings.warn(
        f"{function}: no kernel for GPUs takes float32, it is computed on the host, which is slow: pass bfloat16 or "
        "float16 (got float32)",
        stacklevel=4,
    )


def check_scale(function: str, scale: Any) -> float | None:
    """A number. A tensor would be remembered by its identity, and get no gradient."""
    if scale is None:
        return None
    if isinstance(scale, Tensor) or not hasattr(scale, "__float__"):
        raise InvalidArgument(f"{function}: softmax_scale must be a number or None (got {type(scale).__name__})")
    if not 0 < scale < inf:
        raise InvalidArgument(
            f"{function}: softmax_scale must be finite and positive, None is 1 / sqrt(head_dim) "
            f"(got softmax_scale={scale})"
        )
    return float(scale)


def check_sink(function: str, sink: Tensor | None, sink_layout: str, rows: int, heads: int) -> None:
    """A sink for each head of q."""
    if sink is None or sink_layout not in ("sh", "ssh"):
        return
    lead = () if sink_layout == "sh" else (rows,)
    if sink.ndim != len(lead) + 2 or tuple(sink.shape[: len(lead)]) != lead or sink.shape[-1] != heads:
        raise InvalidArgument(
            f"{function}: sink must have shape [seqlen_sink, {heads}], the heads of q, with sink_layout='sh', and "
            f"[{rows}, seqlen_sink, {heads}] with 'ssh' (got sink={list(sink.shape)}, sink_layout={sink_layout!r})"
        )


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
    if q.is_cuda and (backend == "reference" or (backend is None and q.dtype in _cuda.HOST_DTYPES)):
        _check(q, k, v, sink)
        if backend is None:
            warn_of_float32("flex_flash_attn_func")
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
        return _attend_compiled(q, k, v, ranges, sink, sink_layout, options, out_dtype, max_logits, backend)
    _check(q, k, v, sink)
    require_no_transform("flex_flash_attn_func")
    if sink is not None:
        check_sink("flex_flash_attn_func", sink, sink_layout, q.shape[0], q.shape[1])
        sink = sink.to(torch.float32).contiguous()
    if grad_dtype is not None:
        check_grad_dtype("flex_flash_attn_func", grad_dtype, q)
    attention = _attention(q, k, v, ranges, backend)
    of_call = _options(scale, softcap, deterministic, sm_margin)
    call = _Call(attention, sink_layout, of_call, out_dtype, max_logits, grad_dtype)
    results = _apply_flex(_rows(q), _rows(k), _rows(v), sink, call)
    return results if max_logits else (*results, None)


# ---- the operator ----

_ARGS = (
    "Tensor? sink, Tensor? q_ranges, Tensor? k_ranges, Tensor? types, int[] flat, int mask, str sink_layout, "
    "float? scale, float softcap, bool deterministic, int sm_margin, str backend"
)
torch.library.define(
    "tangram::flex_attn",
    f"(Tensor q, Tensor k, Tensor v, {_ARGS}, ScalarType? out_dtype, bool max_logits) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "tangram::flex_attn_backward",
    f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_ARGS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


# Masks that compiled graphs name by their place here. A graph holds its masks as long as the process lives.
_graph_masks: list[Mask] = []
_place_of_mask: dict[Mask, int] = {}
NO_MASK = -1


def _place(mask: Mask) -> int:
    place = _place_of_mask.setdefault(mask, len(_graph_masks))
    if place == len(_graph_masks):
        _graph_masks.append(mask)
    return place


def _flatten(ranges: Ranges) -> list[int]:
    """Ranges that are lists as integers, which an operator can take: q0 q1 k0 k1 type for each slice."""
    q_ranges, k_ranges, types = ranges
    flat: list[int] = []
    for i in range(len(q_ranges)):
        kind = 0 if types is None else int(types[i])
        flat += [q_ranges[i][0], q_ranges[i][1], k_ranges[i][0], k_ranges[i][1], kind]
    return flat


def _attend_compiled(
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
) -> tuple[Tensor, Tensor, Tensor | None]:
    scale, softcap, deterministic, sm_margin = options
    if isinstance(ranges[0], Mask):
        tensors = (q, k, v) if sink is None else (q, k, v, sink)
        scales = () if scale is None else (scale,)
        dtype = "" if out_dtype is None else _NAMES[out_dtype]
        out, lse, peaks = _attend_mask(
            tensors,
            ranges[0],
            sink_layout,
            scales,
            softcap,
            deterministic,
            sm_margin,
            backend or "",
            dtype,
            max_logits,
        )
    else:
        flat: list[int] = []
        if not isinstance(ranges[0], Tensor):
            ranges, flat = (None, None, None), _flatten(ranges)
        q_ranges, k_ranges, types = ranges
        out, lse, peaks = torch.ops.tangram.flex_attn(
            q,
            k,
            v,
            sink,
            q_ranges,
            k_ranges,
            types,
            flat,
            NO_MASK,
            sink_layout,
            scale,
            softcap,
            deterministic,
            sm_margin,
            backend or "",
            out_dtype,
            max_logits,
        )
    return out, lse, peaks if max_logits else None


def _call_with_mask(
    tensors: tuple[Tensor, ...],
    mask: Mask,
    sink_layout: str,
    scales: tuple[float, ...],
    softcap: float,
    deterministic: bool,
    sm_margin: int,
    backend: str,
    out_dtype: str,
    max_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Without None, which nonstrict_trace does not know: what is empty stands for it."""
    q, k, v, *sink = tensors
    results: tuple[Tensor, Tensor, Tensor] = torch.ops.tangram.flex_attn(
        q,
        k,
        v,
        sink[0] if sink else None,
        None,
        None,
        None,
        [],
        _place(mask),
        sink_layout,
        scales[0] if scales else None,
        softcap,
        deterministic,
        sm_margin,
        backend,
        _DTYPES.get(out_dtype),
        max_logits,
    )
    return results


# Since PyTorch 2.7 a graph can have a mask as a constant, guarded by equality.
if hasattr(torch._dynamo, "nonstrict_trace"):
    torch.utils._pytree.register_constant(Mask)
    _attend_mask = torch._dynamo.nonstrict_trace(_call_with_mask)
else:
    _attend_mask = _call_with_mask


def _of_operator(
    q: Tensor, k: Tensor, v: Tensor, tensors: Ranges, flat: list[int], mask: int, backend: str
) -> FlexAttention:
    ranges = tensors
    if mask != NO_MASK:
        ranges = (_graph_masks[mask], None, None)
    elif tensors[0] is None:
        pieces = [flat[i : i + 5] for i in range(0, len(flat), 5)]
        ranges = ([(p[0], p[1]) for p in pieces], [(p[2], p[3]) for p in pieces], [p[4] for p in pieces])
    return _attention(q, k, v, ranges, backend or None)


@torch.library.impl("tangram::flex_attn", "CompositeExplicitAutograd")
def _flex_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    q_ranges: Tensor | None,
    k_ranges: Tensor | None,
    types: Tensor | None,
    flat: list[int],
    mask: int,
    sink_layout: str,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    sm_margin: int,
    backend: str,
    out_dtype: torch.dtype | None,
    max_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(q, k, v, sink)
    attention = _of_operator(q, k, v, (q_ranges, k_ranges, types), flat, mask, backend)
    options = _options(scale, softcap, deterministic, sm_margin)
    sink = None if sink is None else sink.to(torch.float32).contiguous()
    call = _Call(attention, sink_layout, options, out_dtype, max_logits)
    out, lse, *peaks = _forward(call, _rows(q), _rows(k), _rows(v), sink)
    return out, lse, peaks[0] if peaks else q.new_empty(0, dtype=torch.float32)


@torch.library.impl("tangram::flex_attn_backward", "CompositeExplicitAutograd")
def _flex_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sink: Tensor | None,
    q_ranges: Tensor | None,
    k_ranges: Tensor | None,
    types: Tensor | None,
    flat: list[int],
    mask: int,
    sink_layout: str,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    sm_margin: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    attention = _of_operator(q, k, v, (q_ranges, k_ranges, types), flat, mask, backend)
    options = _options(scale, softcap, deterministic, sm_margin)
    as_float = None if sink is None else sink.to(torch.float32).contiguous()
    call = _Call(attention, sink_layout, options, None, False)
    dq, dk, dv, dsink = _backward(call, dout, _rows(q), _rows(k), _rows(v), _rows(out), lse.contiguous(), as_float)
    if sink is None or dsink is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, dsink.to(sink.dtype)


def shapes_of_forward(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What an operator of attention returns, for torch.compile: out, lse, max logits. calc_attn's is the same."""
    out_dtype, max_logits = args[-2], args[-1]
    return (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2]), dtype=out_dtype or q.dtype),
        q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32),
        q.new_empty((q.shape[1] if max_logits else 0,), dtype=torch.float32),
    )


def shapes_of_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of a backward operator: dq, dk, dv, dsink."""
    dsink = q.new_empty(0) if sink is None else sink.new_empty(sink.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


torch.library.register_fake("tangram::flex_attn", shapes_of_forward)
torch.library.register_fake("tangram::flex_attn_backward", shapes_of_backward)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, sink, q_ranges, k_ranges, types, flat, *rest = inputs
    out, lse, peaks = output
    ctx.save_for_backward(q, k, v, out, lse, sink, q_ranges, k_ranges, types)
    ctx.flat, ctx.rest = flat, rest[:-2]
    ctx.mark_non_differentiable(lse, peaks)


def _operator_backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    dq, dk, dv, dsink = torch.ops.tangram.flex_attn_backward(dout, q, k, v, out, lse, *rest, ctx.flat, *ctx.rest)
    return (dq, dk, dv, None if rest[0] is None else dsink, *[None] * 13)


torch.library.register_autograd("tangram::flex_attn", _operator_backward, setup_context=_setup_context)


def _no_second_derivatives(ctx: Any, *_: Any) -> None:
    raise InvalidArgument("tangram: second derivatives are not supported (got a gradient of a gradient)")


def _nothing_to_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


torch.library.register_autograd("tangram::flex_attn_backward", _no_second_derivatives, setup_context=_nothing_to_save)
