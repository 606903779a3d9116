# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func for torch.compile: operators, whose ranges are tensors, integers or masks named by a number."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _flops
from ._core import Mask
from ._held import HeldMask
from ._held import masks as _held_masks
from ._prepared import are_masks
from ._torch_pass import (
    _DTYPES,
    _NAME,
    _NAMES,
    Options,
    Ranges,
    _attention,
    _backward,
    _Call,
    _check,
    _forward,
    _options,
    _rows,
)
from ._watched import NO_CALL, Results, call_of, forward_pass
from .errors import InvalidArgument

_ARGS = (
    "Tensor? sink, Tensor? q_ranges, Tensor? k_ranges, Tensor? types, int[] flat, int mask, str sink_layout, "
    "float? scale, float softcap, bool deterministic, int sm_margin, str backend, int call"
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
# A tuple of masks is of groups of heads.
_graph_masks: list[Mask | tuple[Mask, ...]] = []
_place_of_mask: dict[Mask | tuple[Mask, ...], int] = {}
NO_MASK = -1
HELD_MASK = -2
"""q_ranges is the name of a mask that the graph made."""


def _place(mask: Mask | tuple[Mask, ...]) -> int:
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


def attend_compiled(
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
    if isinstance(ranges[0], Mask) or are_masks(ranges[0]):
        tensors = (q, k, v) if sink is None else (q, k, v, sink)
        scales = () if scale is None else (scale,)
        dtype = "" if out_dtype is None else _NAMES[out_dtype]
        _make_attend_mask()
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
        place = NO_MASK
        if isinstance(ranges[0], HeldMask):
            ranges, place = (ranges[0].name, None, None), HELD_MASK
        elif not isinstance(ranges[0], Tensor):
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
            place,
            sink_layout,
            scale,
            softcap,
            deterministic,
            sm_margin,
            backend or "",
            NO_CALL,
            out_dtype,
            max_logits,
        )
    return out, lse, peaks if max_logits else None


def _call_with_mask(
    tensors: tuple[Tensor, ...],
    mask: Mask | tuple[Mask, ...],
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
        NO_CALL,
        _DTYPES.get(out_dtype),
        max_logits,
    )
    return results


# Since PyTorch 2.7 a graph can have a mask as a constant, guarded by equality.
if hasattr(torch.utils._pytree, "register_constant"):
    torch.utils._pytree.register_constant(Mask)

_attend_mask: Any = None
"""_call_with_mask as a graph calls it."""


def _make_attend_mask() -> tuple[()]:
    """With the first graph, while it is made: the compiler takes longer to import than torch itself."""
    global _attend_mask
    if _attend_mask is None:
        nonstrict_trace = getattr(torch._dynamo, "nonstrict_trace", None)
        _attend_mask = _call_with_mask if nonstrict_trace is None else nonstrict_trace(_call_with_mask)
    return ()


_make_attend_mask._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as assume_constant_result


class _Shared(NamedTuple):
    """What both operators take behind their tensors, as _ARGS lists it."""

    sink: Tensor | None
    q_ranges: Tensor | None
    k_ranges: Tensor | None
    types: Tensor | None
    flat: list[int]
    mask: int
    sink_layout: str
    scale: float | None
    softcap: float
    deterministic: bool
    sm_margin: int
    backend: str
    number: int

    def ranges(self) -> Ranges:
        if self.mask == HELD_MASK and self.q_ranges is not None:
            return _held_masks.of(self.q_ranges), None, None
        if self.mask != NO_MASK:
            return _graph_masks[self.mask], None, None
        if self.q_ranges is not None:
            return self.q_ranges, self.k_ranges, self.types
        pieces = [self.flat[i : i + 5] for i in range(0, len(self.flat), 5)]
        return [(p[0], p[1]) for p in pieces], [(p[2], p[3]) for p in pieces], [p[4] for p in pieces]

    def call(self, q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None, max_logits: bool) -> _Call:
        attention, watched = _attention(q, k, v, self.ranges(), self.backend or None)
        options = _options(self.scale, self.softcap, self.deterministic, self.sm_margin)
        return _Call(attention, self.sink_layout, options, out_dtype, max_logits, watched=watched)

    def sink_values(self) -> Tensor | None:
        return None if self.sink is None else self.sink.to(torch.float32).contiguous()


@torch.library.impl("tangram::flex_attn", "CompositeExplicitAutograd")
def _flex_attn(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    *shared, out_dtype, max_logits = rest
    given = _Shared(*shared)
    if given.number != NO_CALL:
        results = forward_pass(_NAME, call_of(given.number).run, q, k, v, given.sink)
    else:

        def compute(q: Tensor) -> Results:
            _check(q, k, v, given.sink)
            call = given.call(q, k, v, out_dtype, max_logits)
            return _forward(call, _rows(q), _rows(k), _rows(v), given.sink_values())

        results = forward_pass(_NAME, compute, q)
    out, lse, *peaks = results
    return out, lse, peaks[0] if peaks else q.new_empty(0, dtype=torch.float32)


@torch.library.impl("tangram::flex_attn_backward", "CompositeExplicitAutograd")
def _flex_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *shared: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = _Shared(*shared)
    if given.number != NO_CALL:
        dq, dk, dv, dsink = _backward(call_of(given.number), dout, q, k, v, out, lse, given.sink)
    else:
        call = given.call(q, k, v, None, False)
        dq, dk, dv, dsink = _backward(
            call, dout, _rows(q), _rows(k), _rows(v), _rows(out), lse.contiguous(), given.sink_values()
        )
    if given.sink is None or dsink is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, dsink.to(given.sink.dtype)


def shapes_of_forward(q: Tensor, _: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What an operator of attention returns, for torch.compile: out, lse, max logits. calc_attn's is the same."""
    *_shared, out_dtype, max_logits = rest
    return (
        q.new_empty((q.shape[0], q.shape[1], v.shape[2]), dtype=out_dtype or q.dtype),
        q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32),
        q.new_empty((q.shape[1] if max_logits else 0,), dtype=torch.float32),
    )


def shapes_of_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes of a backward operator's results: dq, dk, dv, dsink."""
    number = rest[-1]
    dtype = None if number == NO_CALL else call_of(number).grad_dtype
    dsink = q.new_empty(0) if sink is None else sink.new_empty(sink.shape)
    dq, dk, dv = (x.new_empty(x.shape, dtype=dtype or x.dtype) for x in (q, k, v))
    return dq, dk, dv, dsink


torch.library.register_fake("tangram::flex_attn", shapes_of_forward)
torch.library.register_fake("tangram::flex_attn_backward", shapes_of_backward)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, sink, q_ranges, k_ranges, types, flat, *rest = inputs
    out, lse, peaks = output
    ctx.save_for_backward(q, k, v, out, lse, sink, q_ranges, k_ranges, types)
    ctx.flat, ctx.rest = flat, rest[:-2]
    ctx.num_others = len(inputs) - 4  # inputs that have no gradient
    ctx.mark_non_differentiable(lse, peaks)


def _operator_backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    dq, dk, dv, dsink = torch.ops.tangram.flex_attn_backward(dout, q, k, v, out, lse, *rest, ctx.flat, *ctx.rest)
    return (dq, dk, dv, None if rest[0] is None else dsink, *[None] * ctx.num_others)


torch.library.register_autograd("tangram::flex_attn", _operator_backward, setup_context=_setup_context)


def _no_second_derivatives(ctx: Any, *_: Any) -> None:
    raise InvalidArgument("tangram: second derivatives are not supported (got a gradient of a gradient)")


def _nothing_to_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


torch.library.register_autograd("tangram::flex_attn_backward", _no_second_derivatives, setup_context=_nothing_to_save)


def _visible_pairs(q: Tensor, k: Tensor, shared: tuple[Any, ...]) -> int:
    given = _Shared(*shared)
    if given.number != NO_CALL:
        pairs: int | None = call_of(given.number).attention.visible_pairs
        if pairs is None:
            warnings.warn(
                "flex_flash_attn_func: FLOPs of a mask that a MaskBuffer took from tensors are not counted, the host "
                "does not know its area: set the mask by MaskBuffer.set to count them",
                stacklevel=2,
            )
        return pairs or 0
    q_ranges, k_ranges, types = given.ranges()
    masks = (q_ranges,) if isinstance(q_ranges, Mask) else q_ranges
    if not are_masks(masks):
        of_q, of_k, kinds = (x.tolist() if isinstance(x, Tensor) else x for x in (q_ranges, k_ranges, types))
        masks = (Mask.from_ranges(of_q, of_k, kinds, q.shape[0], k.shape[0]),)
    return sum(mask.area for mask in masks) * q.shape[1] // len(masks)


def _pairs(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    return _visible_pairs(q, k, rest[:-2])


def _pairs_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *shared: Any) -> int:
    return _visible_pairs(q, k, shared)


_flops.register(torch.ops.tangram.flex_attn, _pairs)
_flops.register_backward(torch.ops.tangram.flex_attn_backward, _pairs_backward)
