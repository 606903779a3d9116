# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's functions, with its arguments in its order, and with sinks.

    from tangram.flash_attn import flash_attn_func, flash_attn_varlen_func  # was: from flash_attn import ...

Tensors of torch in host or GPU memory, float32, bfloat16 or float16, any head dims where the device takes them; values
may be narrower or wider than keys. Query heads are a multiple of the heads of keys. Masks are aligned to the last query
and the last key of a sequence; rows that see nothing give zeros, and -inf as lse.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _cuda
from ._cache import BoundedCache
from ._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from .errors import InvalidArgument
from .flex import flex_flash_attn_func

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]

Result = Tensor | tuple[Tensor, Tensor, None]
Borders = tuple[int, ...]
Window = tuple[int, int]
_BYTES_OF_DOCUMENT = 128
"""About what a slice of a mask and two borders take."""


class _Packed(NamedTuple):
    """What calls with known borders need."""

    mask: Mask
    longest_q: int
    longest_k: int
    documents: int
    held: tuple[Any, ...]
    """The tensors of the borders, so that no others take their identity."""


def _bytes_of(packed: _Packed) -> int:
    return 1024 + _BYTES_OF_DOCUMENT * packed.documents


# By the identity of borders, so that a call with known ones costs a look-up however many there are.
_masks: BoundedCache[_Packed] = BoundedCache("borders", _bytes_of, 16 << 20, 1024)


def _make_mask(cu_q: Borders, cu_k: Borders, window: Window) -> Mask:
    """Documents whose queries see so many keys before and after the diagonal that ends in the last corner; -1: all."""
    left, right = window
    slices = []
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        if q0 < q1 and k0 < k1:
            diagonal = k1 - q1
            low = OPEN_MIN_DIAG if left < 0 else diagonal - left
            high = OPEN_MAX_DIAG if right < 0 else diagonal + right
            slices.append(AttnSlice(Range(q0, q1), Range(k0, k1), low, high))
    return Mask(cu_q[-1], cu_k[-1], slices)


def _window(function: str, window_size: Any, causal: bool) -> Window:
    try:
        left, right = (int(side) for side in window_size)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{function}: window_size must be two integers, keys before and after a query, -1: all "
            f"(got window_size={window_size!r})"
        ) from None
    return max(left, -1), 0 if causal else max(right, -1)


def _refuse(function: str, dropout_p: float, alibi_slopes: Any, block_table: Any = None) -> None:
    if dropout_p != 0.0:
        raise InvalidArgument(f"{function}: dropout is not supported, pass dropout_p=0.0 (got dropout_p={dropout_p})")
    if alibi_slopes is not None:
        raise InvalidArgument(
            f"{function}: ALiBi is not supported, alibi_slopes must be None: masks have no biases "
            f"(got {type(alibi_slopes).__name__})"
        )
    if block_table is not None:
        raise InvalidArgument(
            f"{function}: paged keys are not supported, block_table must be None: pass k and v whole "
            f"(got {type(block_table).__name__})"
        )


def _require_shape(function: str, name: str, x: Any, dims: str) -> None:
    count = dims.count(",") + 1
    if not isinstance(x, Tensor) or x.ndim != count:
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidArgument(f"{function}: {name} must be a tensor [{dims}] (got {name}={shape})")


def _sinks(function: str, sink: Tensor | None, heads: int) -> Tensor | None:
    """`[heads]` is one sink."""
    if sink is None:
        return None
    if sink.ndim not in (1, 2) or sink.shape[-1] != heads:
        raise InvalidArgument(
            f"{function}: sink must be [heads of q] or [sinks, heads of q], heads of q = {heads} "
            f"(got sink={list(sink.shape)})"
        )
    return sink[None] if sink.ndim == 1 else sink


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    sink: Tensor | None,
    options: tuple[float | None, float, bool],
) -> tuple[Tensor, Tensor]:
    """(out, lse [rows, heads]) of rows one after the other."""
    scale, softcap, deterministic = options
    out, meta = flex_flash_attn_func(
        q, k, v, *mask, sink=sink, softmax_scale=scale, softcap=softcap, deterministic=deterministic
    )
    return out, meta.lse


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sink: Tensor | None = None,
) -> Result:
    """Attention of a batch of sequences of equal length.

    Args:
        q `[batch, seqlen_q, heads, dim]`, k, v `[batch, seqlen_k, heads_kv, dim(_v)]`.
        softmax_scale: None: `1 / sqrt(dim)`. softcap: 0.0: none.
        causal: query i of the last n sees all but the last n - 1 - i keys. window_size: keys before and after that
            diagonal, -1: all; with causal none after it.
        deterministic: gradients are bitwise equal from run to run.
        return_attn_probs: returns lse, too. Probabilities are never formed.
        sink: `[heads]`, or `[sinks, heads]`: extra keys without values, float32, differentiable.
        dropout_p, alibi_slopes: must be 0.0 and None.

    Returns:
        out `[batch, seqlen_q, heads, dim_v]`; with return_attn_probs `(out, lse, None)`, lse
        `[batch, heads, seqlen_q]` float32, natural log.

    Raises:
        InvalidArgument, a ValueError: what is not supported, and shapes that do not fit.
    """
    name = "flash_attn_func"
    _refuse(name, dropout_p, alibi_slopes)
    for each, x in (("q", q), ("k", k), ("v", v)):
        _require_shape(name, each, x, "batch, rows, heads, dim")
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        raise InvalidArgument(
            f"{name}: q, k and v must be of one batch, k and v of equal rows "
            f"(got q={list(q.shape)}, k={list(k.shape)}, v={list(v.shape)})"
        )
    batch, rows = q.shape[:2]
    window = _window(name, window_size, causal)
    make = _typed_of_batch if torch.compiler.is_compiling() else _mask_of_batch
    mask = make(batch, rows, k.shape[1], window)
    options = (softmax_scale, softcap, deterministic)
    sinks = _sinks(name, sink, q.shape[2])
    out, lse = _attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask, sinks, options)
    out = out.view(batch, rows, *out.shape[1:])
    return (out, lse.view(batch, rows, -1).transpose(1, 2), None) if return_attn_probs else out


def _mask_of_batch(batch: int, seqlen_q: int, seqlen_k: int, window: Window) -> tuple[Any, ...]:
    key = ("batch", batch, seqlen_q, seqlen_k, window)
    known = _masks.get(key)
    if known is None:
        cu_q, cu_k = (tuple(length * i for i in range(batch + 1)) for length in (seqlen_q, seqlen_k))
        known = _masks.put(key, _Packed(_make_mask(cu_q, cu_k, window), seqlen_q, seqlen_k, batch, ()))
    return (known.mask,)


def _typed_of_batch(batch: int, seqlen_q: int, seqlen_k: int, window: Window) -> tuple[Any, ...]:
    """Ranges and types as constants of a compiled graph, which a Mask that is made in it cannot be."""
    return tuple(tuple(each) for each in _mask_of_batch(batch, seqlen_q, seqlen_k, window)[0].to_typed())


# What torch.compiler.assume_constant_result does, which would import the compiler with this module.
_typed_of_batch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _identity(borders: Any) -> Hashable:
    """None: to be read in every call. A tensor that has been seen is known by its place and version."""
    if not isinstance(borders, Tensor):
        return tuple(int(border) for border in borders)
    return None if borders.is_inference() else _cuda.identity(borders)


def _on_host(function: str, name: str, cu_seqlens: Any, total: int) -> Borders:
    """Borders as integers, checked. Copied from GPU memory, which synchronises."""
    if isinstance(cu_seqlens, Tensor):
        if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise InvalidArgument(
                f"{function}: {name} must be int32 [documents + 1] (got {cu_seqlens.dtype}{list(cu_seqlens.shape)})"
            )
        if cu_seqlens.is_cuda:
            _cuda.require_no_capture(f"{name} in device memory", function)
        cu_seqlens = cu_seqlens.tolist()
    borders = tuple(int(border) for border in cu_seqlens)
    if not borders or borders[0] != 0 or borders[-1] != total or any(a > b for a, b in zip(borders, borders[1:])):
        raise InvalidArgument(
            f"{function}: {name} must rise from 0 to the {total} rows of its tensor "
            f"(got {name}={list(borders[:8])}, {len(borders)} values)"
        )
    return borders


def _longest(borders: Borders) -> int:
    return max((b - a for a, b in zip(borders, borders[1:])), default=0)


def _check_longest(function: str, name: str, given: Any, longest: int) -> None:
    if given is not None and int(given) < longest:
        raise InvalidArgument(
            f"{function}: {name} must be at least the longest sequence, {longest} (got {name}={int(given)})"
        )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    sink: Tensor | None = None,
) -> Result:
    """Attention of packed sequences: queries of sequence i are rows `[cu_seqlens_q[i], cu_seqlens_q[i + 1])`.

    Args:
        q `[total_q, heads, dim]`, k, v `[total_k, heads_kv, dim(_v)]`.
        cu_seqlens_q, cu_seqlens_k: `[sequences + 1]` int32, from 0 on, in host or GPU memory: a tensor there is copied
            to the host once for each version of its values, which synchronises. In graphs of torch.compile they are
            ordinary inputs, without a window.
        max_seqlen_q, max_seqlen_k: the longest sequences; only checked. block_table: must be None.
        The others as of flash_attn_func.

    Returns:
        out `[total_q, heads, dim_v]`; with return_attn_probs `(out, lse, None)`, lse `[heads, total_q]` float32.
    """
    name = "flash_attn_varlen_func"
    _refuse(name, dropout_p, alibi_slopes, block_table)
    for each, x in (("q", q), ("k", k), ("v", v)):
        _require_shape(name, each, x, "rows, heads, dim")
    window = _window(name, window_size, causal)
    options = (softmax_scale, softcap, deterministic)
    sinks = _sinks(name, sink, q.shape[1])
    mask: tuple[Any, ...]
    if torch.compiler.is_compiling() and window in ((-1, -1), (-1, 0)):
        ranges = [torch.stack([cu[:-1], cu[1:]], 1).to(torch.int32) for cu in (cu_seqlens_q, cu_seqlens_k)]
        kinds = torch.full((ranges[0].shape[0],), int(window[1] == 0), dtype=torch.int32, device=q.device)
        mask = (*ranges, kinds)
    else:
        mask = (_mask_of_borders(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, window),)
    out, lse = _attend(q, k, v, mask, sinks, options)
    return (out, lse.transpose(0, 1), None) if return_attn_probs else out


def _mask_of_borders(
    q: Tensor, k: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, max_q: Any, max_k: Any, window: Window
) -> Mask:
    name = "flash_attn_varlen_func"
    of_q, of_k = _identity(cu_seqlens_q), _identity(cu_seqlens_k)
    key = (of_q, of_k, q.shape[0], k.shape[0], window)
    known = _masks.get(key) if of_q is not None and of_k is not None else None
    if known is None:
        cu_q = _on_host(name, "cu_seqlens_q", cu_seqlens_q, q.shape[0])
        cu_k = _on_host(name, "cu_seqlens_k", cu_seqlens_k, k.shape[0])
        if len(cu_q) != len(cu_k):
            raise InvalidArgument(
                f"{name}: cu_seqlens_q and cu_seqlens_k must be equally long (got {len(cu_q)} and {len(cu_k)} values)"
            )
        held = (cu_seqlens_q, cu_seqlens_k)
        known = _Packed(_make_mask(cu_q, cu_k, window), _longest(cu_q), _longest(cu_k), len(cu_q), held)
        if of_q is not None and of_k is not None:
            _masks.put(key, known)
    _check_longest(name, "max_seqlen_q", max_q, known.longest_q)
    _check_longest(name, "max_seqlen_k", max_k, known.longest_k)
    return known.mask


_mask_of_borders._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sink: Tensor | None = None,
) -> Result:
    """flash_attn_func of k and v in one tensor, kv `[batch, seqlen_k, 2, heads_kv, dim]`."""
    _require_packed("flash_attn_kvpacked_func", "kv", kv, "batch, rows, 2, heads, dim", 2)
    k, v = kv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        sink=sink,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sink: Tensor | None = None,
) -> Result:
    """flash_attn_func of one tensor, qkv `[batch, seqlen, 3, heads, dim]`."""
    _require_packed("flash_attn_qkvpacked_func", "qkv", qkv, "batch, rows, 3, heads, dim", 2)
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        sink=sink,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sink: Tensor | None = None,
) -> Result:
    """flash_attn_varlen_func of k and v in one tensor, kv `[total_k, 2, heads_kv, dim]`."""
    _require_packed("flash_attn_varlen_kvpacked_func", "kv", kv, "rows, 2, heads, dim", 1)
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        sink=sink,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sink: Tensor | None = None,
) -> Result:
    """flash_attn_varlen_func of one tensor, qkv `[total, 3, heads, dim]`."""
    _require_packed("flash_attn_varlen_qkvpacked_func", "qkv", qkv, "rows, 3, heads, dim", 1)
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        sink=sink,
    )


def _require_packed(function: str, name: str, x: Any, dims: str, place: int) -> None:
    _require_shape(function, name, x, dims)
    count = int(dims.split(", ")[place])
    if x.shape[place] != count:
        raise InvalidArgument(
            f"{function}: {name} must be a tensor [{dims}] (got {name}={list(x.shape)}, {x.shape[place]} parts)"
        )
