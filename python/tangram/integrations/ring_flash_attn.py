# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of ring_flash_attn 0.1.8 with its names, arguments and rows of each rank, computed by Tangram.

    import tangram.integrations.ring_flash_attn as ring
    ring.install()  # from now on `import ring_flash_attn` finds this module

Rows stay where the caller put them. Windows are exact in all functions; dropout and ALiBi are refused. With
return_attn_probs the result is (out, lse, None): lse `[batch, heads, rows]`, or `[heads, rows]` of packed documents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from .._core import HeadConfig, Mask
from .._flash_attend import Options, Result, parts, refuse
from .._named import Named
from ..errors import InvalidArgument
from ._fixed_rows import Layout, borders_of, fixed_key, fixed_mask, group_of
from ._ring_borders import llama3_flash_attn_prepare_cu_seqlens, sequence_borders
from ._ring_transformers import (
    substitute_hf_flash_attn,
    update_ring_flash_attn_params,
)

_MIRRORED = ("zigzag", "stripe")
"""Layouts that are there for causal attention alone."""
_NAME = "ring_flash_attn"


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, group: Any, options: Options) -> tuple[Tensor, Tensor]:
    from ..distributed import calc_attn

    with Named(options.function):
        heads = HeadConfig(q.shape[1], k.shape[1], q.shape[2], v.shape[2])
        key = fixed_key(options.function, mask, heads, group)
        scale, deterministic = options.softmax_scale, options.deterministic
        out, meta = calc_attn(q, k, v, key, softmax_scale=scale, deterministic=deterministic)
    return out, meta.lse


def _check(layout: Layout, options: Options, dropout_p: float, alibi_slopes: Tensor | None) -> None:
    refuse(options.function, dropout_p, alibi_slopes)
    if layout in _MIRRORED and not options.causal:
        raise InvalidArgument(f"{options.function}: causal must be True (got causal={options.causal})")


def _require_rows(name: str, dims: str, **tensors: Tensor) -> None:
    count = dims.count(",") + 1
    if any(not isinstance(x, Tensor) or x.ndim != count for x in tensors.values()) or (
        len({x.shape[:-2] for x in tensors.values()}) > 1
    ):
        shown = ", ".join(f"{each}={list(getattr(x, 'shape', ()))}" for each, x in tensors.items())
        raise InvalidArgument(f"{name}: q, k and v must be [{dims}] of equally many rows (got {shown})")


def _documents(
    layout: Layout, borders: tuple[int, ...], states: tuple[Tensor, Tensor, Tensor], group: Any, options: Options
) -> tuple[Tensor, Tensor]:
    own = group_of(options.function, group)
    odd = [end - begin for begin, end in zip(borders, borders[1:]) if (end - begin) % 2]
    if layout == "zigzag" and odd:
        raise InvalidArgument(
            f"{options.function}: a rank's rows of a document must be even in number, a half of the sequence's "
            f"beginning and one of its end (got {odd[0]} rows)"
        )
    return _attend(*states, fixed_mask(layout, borders, own.size, options.window()), own, options)


def _of_batches(name: str, layout: Layout) -> tuple[Callable[..., Result], ...]:
    """The function of q, k and v, that of q and kv, and that of qkv, of a batch of sequences of equal length."""

    def func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Result:
        options = Options(func.__name__, softmax_scale, causal, window_size, 0.0, deterministic, return_attn_probs)
        _check(layout, options, dropout_p, alibi_slopes)
        _require_rows(func.__name__, "batch, rows, heads, dim", q=q, k=k, v=v)
        batch, rows = q.shape[:2]
        borders = tuple(rows * i for i in range(batch + 1))
        states = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        out, lse = _documents(layout, borders, states, group, options)
        out = out.view(batch, rows, *out.shape[1:])
        return options.result(out, lse.view(batch, rows, -1).transpose(1, 2)) if return_attn_probs else out

    return _with_packed(func, name, "batch, rows, {}, heads, dim", 2)


def _of_documents(name: str, layout: Layout) -> tuple[Callable[..., Result], ...]:
    """Functions of packed documents, of each of which every rank has equally many rows, as cu_seqlens counts them."""

    def func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Result:
        options = Options(func.__name__, softmax_scale, causal, window_size, 0.0, deterministic, return_attn_probs)
        _check(layout, options, dropout_p, alibi_slopes)
        _require_rows(func.__name__, "rows, heads, dim", q=q, k=k, v=v)
        borders = borders_of(func.__name__, "cu_seqlens", cu_seqlens, q.shape[0])
        out, lse = _documents(layout, borders, (q, k, v), group, options)
        return options.result(out, lse.transpose(0, 1)) if return_attn_probs else out

    return _with_packed(func, name, "rows, {}, heads, dim", 1)


def _of_sequence(name: str) -> tuple[Callable[..., Result], ...]:
    """Functions of packed documents whose ranks have runs of the whole pack, wherever documents begin."""

    def func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        heads_k_stride: int,
        local_k_slice: slice,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Result:
        options = Options(func.__name__, softmax_scale, causal, window_size, 0.0, deterministic, return_attn_probs)
        _check("sequence", options, dropout_p, alibi_slopes)
        _require_rows(func.__name__, "rows, heads, dim", q=q, k=k, v=v)
        own = group_of(func.__name__, group)
        borders = sequence_borders(
            func.__name__, cu_seqlens_q, cu_seqlens_k, local_k_slice, q.shape[0], causal, group, own
        )
        mask = fixed_mask("sequence", borders, own.size, options.window())
        out, lse = _attend(q, k, v, mask, own, options)
        return options.result(out, lse.transpose(0, 1)) if return_attn_probs else out

    return _with_packed(func, name, "rows, {}, heads, dim", 1)


def _with_packed(
    func: Callable[..., Result], name: str, dims: str, place: int
) -> tuple[Callable[..., Result], Callable[..., Result], Callable[..., Result]]:
    func.__name__ = func.__qualname__ = f"{name}_func"

    def kvpacked(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Result:
        return func(q, *parts(kvpacked.__name__, "kv", kv, dims.format(2), place), *args, **kwargs)

    def qkvpacked(qkv: Tensor, *args: Any, **kwargs: Any) -> Result:
        return func(*parts(qkvpacked.__name__, "qkv", qkv, dims.format(3), place), *args, **kwargs)

    kvpacked.__name__ = kvpacked.__qualname__ = f"{name}_kvpacked_func"
    qkvpacked.__name__ = qkvpacked.__qualname__ = f"{name}_qkvpacked_func"
    return func, kvpacked, qkvpacked


ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = _of_batches(
    "ring_flash_attn", "contiguous"
)
zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func = _of_batches(
    "zigzag_ring_flash_attn", "zigzag"
)
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = _of_batches(
    "stripe_flash_attn", "stripe"
)
ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func, ring_flash_attn_varlen_qkvpacked_func = (
    _of_documents("ring_flash_attn_varlen", "contiguous")
)
(
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
) = _of_documents("zigzag_ring_flash_attn_varlen", "zigzag")
llama3_flash_attn_varlen_func, llama3_flash_attn_varlen_kvpacked_func, llama3_flash_attn_varlen_qkvpacked_func = (
    _of_sequence("llama3_flash_attn_varlen")
)

__all__ = [
    "install",
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "llama3_flash_attn_varlen_kvpacked_func",
    "llama3_flash_attn_varlen_qkvpacked_func",
    "ring_flash_attn_func",
    "ring_flash_attn_kvpacked_func",
    "ring_flash_attn_qkvpacked_func",
    "ring_flash_attn_varlen_func",
    "ring_flash_attn_varlen_kvpacked_func",
    "ring_flash_attn_varlen_qkvpacked_func",
    "stripe_flash_attn_func",
    "stripe_flash_attn_kvpacked_func",
    "stripe_flash_attn_qkvpacked_func",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
    "zigzag_ring_flash_attn_func",
    "zigzag_ring_flash_attn_kvpacked_func",
    "zigzag_ring_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_varlen_func",
    "zigzag_ring_flash_attn_varlen_kvpacked_func",
    "zigzag_ring_flash_attn_varlen_qkvpacked_func",
]


def install() -> None:
    """Makes `import ring_flash_attn` find this module, and ring_flash_attn.adapters.hf_adapter its adapter. Calling it
    again changes nothing.

    Raises InvalidArgument if another ring_flash_attn has been imported before, whose functions are bound already.
    """
    from . import _ring_transformers

    here = sys.modules[__name__]
    known = sys.modules.get(_NAME)
    if known is not None and known is not here:
        raise InvalidArgument(
            f"tangram.integrations.ring_flash_attn.install: it must run before ring_flash_attn is imported "
            f"(got {getattr(known, '__file__', known)})"
        )
    adapters: Any = ModuleType(f"{_NAME}.adapters")
    adapters.substitute_hf_flash_attn = substitute_hf_flash_attn
    adapters.update_ring_flash_attn_params = update_ring_flash_attn_params
    adapters.hf_adapter = _ring_transformers
    adapters.__path__ = []
    sys.modules |= {_NAME: here, f"{_NAME}.adapters": adapters, f"{_NAME}.adapters.hf_adapter": _ring_transformers}
    here.__dict__["adapters"] = adapters
    here.__dict__["__path__"] = []
