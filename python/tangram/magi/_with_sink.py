# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's functions with sinks, as the published extensions name them: fa2_, fa3_ and fa4_ ... _with_sink.

All of them are one attention here; the number says whose arguments, in which order, and what is returned.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from .._flash_attend import Given, Options, Result, attend_batch, attend_packed, parts, refuse
from ..errors import InvalidArgument
from ..flash_attn_interface import _refuse
from ._enums import AttnSinkLayout
from ._orders import Function, by_name


def _with_or_without_layout(function: Function) -> Function:
    """Before 1.1 there was no sink_layout: what stands behind sink is one only if it is text."""
    name = function.__name__
    own = list(inspect.signature(function).parameters)
    place = own.index("sink_layout")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        has_layout = len(args) <= place or isinstance(args[place], str)
        order = own if has_layout else [each for each in own if each != "sink_layout"]
        return function(**by_name(name, own, order, args, kwargs))

    return call  # type: ignore[return-value]


_SHARED = ("softmax_scale", "causal", "window_size", "softcap", "deterministic", "return_attn_probs", "sink")


def _options(name: str, given: dict[str, Any], of_flash_attention_3: bool) -> Options:
    shared = {each: given[each] for each in (*_SHARED, "sink_layout", "sm_margin") if each in given}
    shared.setdefault("window_size", (-1, -1))
    return Options(function=name, of_flash_attention_3=of_flash_attention_3, **shared)


def _fa2(name: str, given: dict[str, Any]) -> Options:
    refuse(name, given["dropout_p"], given["alibi_slopes"], given.get("block_table"))
    return _options(name, given, False)


def _fa3(name: str, given: dict[str, Any]) -> Options:
    absent = ("qv", "q_descale", "k_descale", "v_descale", "seqused_q", "seqused_k")
    _refuse(name, given.get("attention_chunk", 0), **{each: given[each] for each in absent if each in given})
    return _options(name, given, True)


@_with_or_without_layout
def fa2_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """tangram.flash_attn.flash_attn_func with sinks `[seqlen_sink, heads]` ("sh") or
    `[batch, seqlen_q, seqlen_sink, heads]` ("ssh")."""
    return attend_batch(q, k, v, _fa2("fa2_func_with_sink", locals()))


@_with_or_without_layout
def fa2_kvpacked_func_with_sink(
    q: Tensor,
    kv: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa2_func_with_sink of k and v in one tensor, kv `[batch, seqlen_k, 2, heads_kv, dim]`."""
    name = "fa2_kvpacked_func_with_sink"
    options = _fa2(name, locals())
    k, v = parts(name, "kv", kv, "batch, rows, 2, heads, dim", 2)
    return attend_batch(q, k, v, options)


@_with_or_without_layout
def fa2_qkvpacked_func_with_sink(
    qkv: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa2_func_with_sink of one tensor, qkv `[batch, seqlen, 3, heads, dim]`."""
    name = "fa2_qkvpacked_func_with_sink"
    options = _fa2(name, locals())
    q, k, v = parts(name, "qkv", qkv, "batch, rows, 3, heads, dim", 2)
    return attend_batch(q, k, v, options)


@_with_or_without_layout
def fa2_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """tangram.flash_attn.flash_attn_varlen_func with sinks `[seqlen_sink, heads]` ("sh") or
    `[total_q, seqlen_sink, heads]` ("ssh")."""
    options = _fa2("fa2_varlen_func_with_sink", locals())
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)


@_with_or_without_layout
def fa2_varlen_kvpacked_func_with_sink(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa2_varlen_func_with_sink of k and v in one tensor, kv `[total_k, 2, heads_kv, dim]`."""
    name = "fa2_varlen_kvpacked_func_with_sink"
    options = _fa2(name, locals())
    k, v = parts(name, "kv", kv, "rows, 2, heads, dim", 1)
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)


@_with_or_without_layout
def fa2_varlen_qkvpacked_func_with_sink(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa2_varlen_func_with_sink of one tensor, qkv `[total, 3, heads, dim]`."""
    name = "fa2_varlen_qkvpacked_func_with_sink"
    options = _fa2(name, locals())
    q, k, v = parts(name, "qkv", qkv, "rows, 3, heads, dim", 1)
    return attend_packed(q, k, v, Given(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, ("", "")), options)


@_with_or_without_layout
def fa3_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """tangram.flash_attn_interface.flash_attn_func with sinks, as of fa2_func_with_sink; with return_attn_probs
    (out, lse)."""
    return attend_batch(q, k, v, _fa3("fa3_func_with_sink", locals()))


@_with_or_without_layout
def fa3_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """tangram.flash_attn_interface.flash_attn_varlen_func with sinks, as of fa2_varlen_func_with_sink."""
    options = _fa3("fa3_varlen_func_with_sink", locals())
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)


@_with_or_without_layout
def fa3_qkvpacked_func_with_sink(
    qkv: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """fa3_func_with_sink of one tensor, qkv `[batch, seqlen, 3, heads, dim]`; or, with num_heads_q, of heads of q, k
    and v one after the other, `[batch, seqlen, heads + 2 * heads_kv, dim]`."""
    name = "fa3_qkvpacked_func_with_sink"
    options = _fa3(name, locals())
    if num_heads_q is None:
        q, k, v = parts(name, "qkv", qkv, "batch, rows, 3, heads, dim", 2)
        return attend_batch(q, k, v, options)
    rest = qkv.shape[2] - num_heads_q if qkv.ndim == 4 else 0
    if rest <= 0 or rest % 2 != 0:
        raise InvalidArgument(
            f"{name}: qkv must be a tensor [batch, rows, num_heads_q + 2 * heads_kv, dim] with num_heads_q "
            f"(got qkv={list(qkv.shape)}, num_heads_q={num_heads_q})"
        )
    q, k, v = torch.split(qkv, [num_heads_q, rest // 2, rest // 2], 2)
    return attend_batch(q, k, v, options)


@_with_or_without_layout
def fa4_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa3_func_with_sink without what FlashAttention 4 does not take, in its order of 1.1.1."""
    return attend_batch(q, k, v, _fa3("fa4_func_with_sink", locals()))


@_with_or_without_layout
def fa4_varlen_func_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    softmax_scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """fa3_varlen_func_with_sink without what FlashAttention 4 does not take, in its order of 1.1.1."""
    options = _fa3("fa4_varlen_func_with_sink", locals())
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)
