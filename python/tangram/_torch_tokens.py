# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""token_attn_func on torch tensors: an autograd function."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _flops, _meter, _workspace
from ._backends import backend_named
from ._core import AttnOptions, HeadConfig, TokenAttention, token_refusal
from ._named import Named
from ._shapes import IN_A_ROW, check_indices, check_keys, check_tensor_of_indices
from ._torch_pass import (
    _NAMES,
    Options,
    _check,
    _empty_like,
    _empty_lse,
    _empty_out,
    _options,
    _rows,
    _stream,
    check_scale,
    refuse_batched,
    refuse_second_derivatives,
    require_no_transform,
)
from ._watched import Results, as_operator, call_of, forward_pass, is_watched
from .errors import InvalidArgument

_NAME = "token_attn_func"


@lru_cache(1024)
def _calls(
    rows: tuple[int, int], heads: tuple[int, int, int, int, str], topk: int, name: str | None, device: int
) -> TokenAttention:
    return TokenAttention(backend_named(name, device >= 0, device), rows, HeadConfig(*heads), topk)


def _key(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> tuple[Any, ...]:
    heads = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], _NAMES[q.dtype])
    return (q.shape[0], k.shape[0]), heads, indices.shape[2]


def refusal(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, backend: str | None) -> str:
    """What calls with such tensors would need, or nothing."""
    rows, heads, topk = _key(q, k, v, indices)
    found = backend_named(backend, q.is_cuda, q.get_device())
    return token_refusal(found, rows, HeadConfig(*heads), topk)


class _Call(NamedTuple):
    """What a call has beside its tensors."""

    calls: TokenAttention
    options: AttnOptions

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lists: Tensor) -> Results:
        if not is_watched():
            return forward_pass(_NAME, self.run, q, k, v, lists)
        results: Results = as_operator(self, torch.ops.tangram.token_attn, (q, k, v, lists))
        return results

    def backward(self, dout: Tensor, saved: tuple[Tensor, ...]) -> Results:
        if not is_watched():
            return self.run_backward(dout, *saved)
        grads: Results = as_operator(self, torch.ops.tangram.token_attn_backward, (dout, *saved))
        return grads

    def run(self, q: Tensor, k: Tensor, v: Tensor, lists: Tensor) -> Results:
        out, lse = _empty_out(q, v, None), _empty_lse(q)
        stream = _stream(q)
        measured = None if _meter.current is None else _meter.begin("forward", q)
        space, place = _workspace.take(self.calls.forward_workspace_bytes, q, stream)
        try:
            self.calls.forward(q, k, v, lists.data_ptr(), out, lse, self.options, stream, place)
        finally:
            _workspace.release(space)
        if measured is not None:
            measured.end()
        return out, lse

    def run_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lists: Tensor, out: Tensor, lse: Tensor
    ) -> Results:
        dq, dk, dv = _empty_like(q), _empty_like(k), _empty_like(v)
        dout = _rows(dout)
        stream = _stream(q)
        measured = None if _meter.current is None else _meter.begin("backward", q)
        space, place = _workspace.take(self.calls.backward_workspace_bytes(self.options.deterministic), q, stream)
        try:
            self.calls.backward(q, k, v, lists.data_ptr(), out, lse, dout, dq, dk, dv, self.options, stream, place)
        finally:
            _workspace.release(space)
        if measured is not None:
            measured.end()
        return dq, dk, dv


# Operator of eager calls that are watched: graphs of torch.compile do not hold token_attn_func.
torch.library.define(
    "tangram::token_attn", "(Tensor q, Tensor k, Tensor v, Tensor indices, int call) -> (Tensor, Tensor)"
)
torch.library.define(
    "tangram::token_attn_backward",
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor indices, Tensor out, Tensor lse, int call) "
    "-> (Tensor, Tensor, Tensor)",
)


@torch.library.impl("tangram::token_attn", "CompositeExplicitAutograd")
def _token_attn(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, call: int) -> Results:
    return forward_pass(_NAME, call_of(call).run, q, k, v, indices)


@torch.library.impl("tangram::token_attn_backward", "CompositeExplicitAutograd")
def _token_attn_backward(dout: Tensor, *rest: Any) -> Results:
    *saved, call = rest
    grads: Results = call_of(call).run_backward(dout, *saved)
    return grads


@torch.library.register_fake("tangram::token_attn")  # type: ignore[misc]
def _token_attn_fake(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, call: int) -> Results:
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.register_fake("tangram::token_attn_backward")  # type: ignore[misc]
def _token_attn_backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Results:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _visible_pairs(q: Tensor, indices: Tensor) -> int:
    """Reads the lists, which waits for a GPU; where they have no values, all entries count."""
    has_values = not isinstance(indices, torch._subclasses.FakeTensor) and not indices.is_meta
    entries = int((indices >= 0).sum()) if has_values else indices.numel()
    return entries * (q.shape[1] // indices.shape[1])


def _pairs(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, *_: Any) -> int:
    return _visible_pairs(q, indices)


def _pairs_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, indices: Tensor, *_: Any) -> int:
    return _visible_pairs(q, indices)


_flops.register(torch.ops.tangram.token_attn, _pairs)
_flops.register_backward(torch.ops.tangram.token_attn_backward, _pairs_backward)


class _Tokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lists: Tensor, call: _Call) -> Results:
        out, lse = call.forward(q, k, v, lists)
        ctx.save_for_backward(q, k, v, lists, out, lse)
        ctx.call = call
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if dout is None:
            return (None,) * 5
        saved = ctx.saved_tensors
        refuse_batched(_NAME, dout)
        with torch.no_grad(), Named(_NAME):
            grads = (*ctx.call.backward(dout, saved), None, None)
        if not torch.is_grad_enabled():
            return grads
        return refuse_second_derivatives(_NAME, grads, (dout, *saved))


def _lists(indices: Tensor) -> Tensor:
    """Lists as kernels read them. A number beyond 32 bits becomes an invalid key, which the GPU finds."""
    if indices.dtype == torch.int64:
        indices = indices.clamp(-2, 2**31 - 1).to(torch.int32)
    return indices.contiguous()


_apply: Any = _Tokens.apply


_attend_outside: Any = None
"""`attend`, which graphs of torch.compile do not hold."""


def _make_attend_outside() -> tuple[()]:
    """While a graph is made: the compiler takes longer to import than torch itself."""
    global _attend_outside
    if _attend_outside is None:
        _attend_outside = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
    return ()


_make_attend_outside._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as assume_constant_result


def attend(
    q: Tensor, k: Tensor, v: Tensor, indices: Tensor, options: Options, backend: str | None
) -> tuple[Tensor, Tensor]:
    """(out, lse) of token_attn_func."""
    if torch.compiler.is_compiling():
        _make_attend_outside()
        return _attend_outside(q, k, v, indices, options, backend)  # type: ignore[no-any-return]
    with Named(_NAME):
        if not all(isinstance(x, Tensor) for x in (q, k, v)):
            kinds = ", ".join(type(x).__name__ for x in (q, k, v))
            raise InvalidArgument(f"{_NAME}: q, k and v must all be tensors, or arrays (got {kinds})")
        _check(q, k, v, None, IN_A_ROW)
        require_no_transform(_NAME)
    check_tensor_of_indices(_NAME, "indices", indices)
    check_indices(_NAME, "indices", indices, q.shape, k.shape)
    if indices.device != q.device:
        raise InvalidArgument(
            f"{_NAME}: indices must lie where q does (got q on {q.device}, indices on {indices.device})"
        )
    scale, softcap, deterministic, sm_margin = options
    with Named(_NAME):
        of_call = _options(check_scale(_NAME, scale), softcap, deterministic, sm_margin)
    if not indices.is_cuda:
        check_keys(_NAME, "indices", indices.detach().numpy(), k.shape[0])
    if q.is_cuda and backend == "reference":
        out, lse = attend(q.cpu(), k.cpu(), v.cpu(), indices.cpu(), options, backend)
        return out.to(q.device), lse.to(q.device)
    with Named(_NAME):
        calls = _calls(*_key(q, k, v, indices), backend, q.get_device())
        results: tuple[Tensor, Tensor] = _apply(_rows(q), _rows(k), _rows(v), _lists(indices), _Call(calls, of_call))
    return results
