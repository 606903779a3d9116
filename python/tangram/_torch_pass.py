# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A pass of attention on one device over torch tensors: the memory of its results, what kernels read, and checks of
arguments. flex_flash_attn_func, its operator for torch.compile and calc_attn use it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from . import _core, _cuda, _meter, _workspace
from ._backends import backend_named
from ._core import AttnOptions, FlexAttention
from ._prepared import prepared
from ._shapes import check_shapes, dtype_remedy
from ._tensor_values import Watched, raise_if_changed
from ._watched import Results, as_operator, forward_pass, is_watched
from .errors import InvalidArgument
from .mask_buffer import MaskOfBuffer

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
for _dtype, _name in _NAMES.items():
    _core.register_torch_dtype(_dtype, _name)
_core.register_torch_exchange(getattr(Tensor, "__dlpack_c_exchange_api__", None))  # since PyTorch 2.10

_NAME = "flex_flash_attn_func"
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


_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _stream(tensor: Tensor) -> int:
    device = tensor.get_device()
    return _raw_stream(device) if device >= 0 else 0


def _check(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *of_batches: str) -> None:
    check_shapes(q.shape, k.shape, v.shape, *of_batches)
    if q.dtype not in _NAMES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise InvalidArgument(
            "flex_flash_attn_func: q, k and v must share one dtype of float32, bfloat16, float16"
            f" (got q={q.dtype}, k={k.dtype}, v={v.dtype}){dtype_remedy(q.dtype, k.dtype, v.dtype)}"
        )
    if k.device != q.device or v.device != q.device or (sink is not None and sink.device != q.device):
        raise InvalidArgument(
            "flex_flash_attn_func: q, k, v and sink must lie on one device "
            f"(got q={q.device}, k={k.device}, v={v.device}, sink={None if sink is None else sink.device})"
        )


def _attention(
    q: Tensor, k: Tensor, v: Tensor, ranges: Ranges, backend: str | None
) -> tuple[FlexAttention | MaskOfBuffer, Watched | None]:
    heads = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], _NAMES[q.dtype])
    prepare = prepared if _meter.current is None else _meter.planned(prepared)
    return prepare(*ranges, q.shape[0], k.shape[0], heads, backend_named(backend, q.is_cuda, q.get_device()))


@dataclass(slots=True)
class _Call:
    """What a call has beside its tensors; one argument, because autograd looks at each."""

    attention: FlexAttention | MaskOfBuffer
    sink_layout: str
    options: AttnOptions
    out_dtype: torch.dtype | None
    max_logits: bool
    grad_dtype: torch.dtype | None = None
    watched: Watched | None = None
    """Ranges in GPU memory, to which the forward pass compares."""
    backend: str | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Results:
        if not is_watched():
            return forward_pass(_NAME, self.run, q, k, v, sink)
        results: Results = as_operator(
            self, torch.ops.tangram.flex_attn, (q, k, v, *self._of_operator(sink)), (self.out_dtype, self.max_logits)
        )
        return results if self.max_logits else results[:2]

    def backward(self, dout: Tensor, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        q, k, v, sink, out, lse = saved
        if not is_watched():
            return _backward(self, dout, q, k, v, out, lse, sink)
        *grads, dsink = as_operator(
            self, torch.ops.tangram.flex_attn_backward, (dout, q, k, v, out, lse, *self._of_operator(sink))
        )
        return (*grads, None if sink is None else dsink)

    def run(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Results:
        return _forward(self, q, k, v, sink)

    def _of_operator(self, sink: Tensor | None) -> tuple[Any, ...]:
        """What its operators say of a call; they compute by the call itself, which knows the mask."""
        options = self.options
        of_call = (options.softmax_scale, options.softcap, options.deterministic, options.sm_margin)
        return (sink, None, None, None, [], -1, self.sink_layout, *of_call, self.backend or "")


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


@lru_cache(1024)
def _lse_pattern(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return _pattern(shape[:2], torch.float32, device)


def _empty_lse(q: Tensor) -> Tensor:
    return torch.empty_like(_lse_pattern(q.shape, q.device))


def _rows_of_dout(dout: Tensor, q: Tensor) -> Tensor:
    """Kernels on GPUs read it in the dtype of q, to which that of a float32 output is rounded."""
    return _rows(dout if dout.dtype is q.dtype or not q.is_cuda else dout.to(q.dtype))


def _forward(call: _Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Results:
    out = _empty_out(q, v, call.out_dtype)
    lse = _empty_lse(q)
    peaks = q.new_empty(q.shape[1], dtype=torch.float32) if call.max_logits else None
    stream = _stream(q)
    measured = None if _meter.current is None else _meter.begin("forward", q)
    space, place = _workspace.take(call.attention.forward_workspace_bytes, q, stream)
    try:
        call.attention.forward(q, k, v, out, lse, peaks, sink, call.sink_layout, call.options, stream, place)
    finally:
        _workspace.release(space)
    if call.watched is not None:
        call.watched.poison_if_changed(out, lse, peaks)
    if measured is not None:
        measured.end()
    return (out, lse) if peaks is None else (out, lse, peaks)


def _backward(
    call: _Call, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    if call.watched is not None:
        raise_if_changed("flex_flash_attn_func")
    dtype = call.grad_dtype
    if dtype is None and q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    else:
        dq, dk, dv = _empty_like(q, dtype), _empty_like(k, dtype), _empty_like(v, dtype)
    dsink = None if sink is None else torch.empty_like(sink)
    if not dout.is_contiguous() or dout.data_ptr() % 16 != 0 or dout.dtype is not q.dtype:
        dout = _rows_of_dout(dout, q)
    stream = _stream(q)
    plain = sink is None and call.options.softcap == 0
    needed = call.attention.backward_workspace_bytes(call.options.deterministic, plain)
    measured = None if _meter.current is None else _meter.begin("backward", q)
    space, place = _workspace.take(needed, q, stream)
    try:
        call.attention.backward(
            q, k, v, out, lse, dout, dq, dk, dv, dsink, sink, call.sink_layout, call.options, stream, place
        )
    finally:
        _workspace.release(space)
    if measured is not None:
        measured.end()
    return dq, dk, dv, dsink


def refuse_batched(function: str, dout: Tensor) -> None:
    """Refuses gradients that torch.autograd.grad(is_grads_batched=True) stacks, which have no memory of their own."""
    if torch._C._functorch.is_legacy_batchedtensor(dout):
        raise InvalidArgument(
            f"{function}: batched gradients are not supported: call torch.autograd.grad once for each, with "
            "retain_graph=True (got is_grads_batched=True, or a vectorized jacobian)"
        ) from None


class _RefusedDerivatives(torch.autograd.Function):
    """The first `count` tensors as they are; differentiating them raises, by whichever of the tensors it is asked."""

    @staticmethod
    def forward(ctx: Any, function: str, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.function = function
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        raise InvalidArgument(f"{ctx.function}: second derivatives are not supported (got a gradient of a gradient)")


def refuse_second_derivatives(
    function: str, grads: tuple[Any, ...], inputs: tuple[Tensor | None, ...]
) -> tuple[Any, ...]:
    """The gradients, which raise when they are differentiated: they depend on `inputs` by ways that are not known.

    torch's once_differentiable lets them pass as constants where the incoming gradient is one. If a node has no path to
    the inputs, torch never calls it for their derivatives: it takes the node for unused, or the derivative for zero.
    """
    refused: tuple[Any, ...] = _RefusedDerivatives.apply(  # type: ignore[no-untyped-call]
        function, len(grads), *grads, *inputs
    )
    return refused


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


def warn_of_float32(function: str, backend: str | None) -> None:
    """Once for a place in the caller's program. `backend`: of a GPU, which computes it; None: the host does."""
    if torch.compiler.is_compiling():
        return
    how = f"by plain kernels (backend {backend})" if backend else "on the host"
    warnings.warn(
        f"{function}: float32 is computed {how}, which is slow: pass bfloat16 or float16 (got float32)",
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
