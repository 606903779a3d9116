# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's functions, with its arguments in its order, and with sinks.

    from tangram.flash_attn import flash_attn_func, flash_attn_varlen_func  # was: from flash_attn import ...

Tensors of torch in host or GPU memory, float32, bfloat16 or float16, any head dims that the device supports. Values may
be narrower or wider than keys. Query heads are a multiple of the heads of keys. Masks are aligned to the last query and
the last key of a sequence; rows that see nothing give zeros, and -inf as lse.

The order of arguments is that of FlashAttention 2; tangram.flash_attn_interface has that of FlashAttention 3.
"""

from __future__ import annotations

from torch import Tensor

from ._flash_attend import Given, Options, Result, attend_batch, attend_packed, parts, refuse

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]


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
        softmax_scale: None: `1 / sqrt(dim)`. softcap: 0.0 and less: none.
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
    refuse(name, dropout_p, alibi_slopes)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    return attend_batch(q, k, v, options)


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
        cu_seqlens_q, cu_seqlens_k: `[sequences + 1]` int32, from 0 on. In host memory they are read in each call. In
            GPU memory they are copied to the host once for each version, which synchronises. If collectives or kernels
            change these values without a new version, the results of a call become NaN, and the next call raises. Pass
            a copy, `x.clone()`, after each such write. In graphs of torch.compile borders are ordinary inputs, without
            a window; they are read and checked in each run.
        max_seqlen_q, max_seqlen_k: the longest sequences; only checked. block_table: must be None.
        The others as of flash_attn_func.

    Returns:
        out `[total_q, heads, dim_v]`; with return_attn_probs `(out, lse, None)`, lse `[heads, total_q]` float32.
    """
    name = "flash_attn_varlen_func"
    refuse(name, dropout_p, alibi_slopes, block_table)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)


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
    name = "flash_attn_kvpacked_func"
    refuse(name, dropout_p, alibi_slopes)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    k, v = parts(name, "kv", kv, "batch, rows, 2, heads, dim", 2)
    return attend_batch(q, k, v, options)


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
    name = "flash_attn_qkvpacked_func"
    refuse(name, dropout_p, alibi_slopes)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    q, k, v = parts(name, "qkv", qkv, "batch, rows, 3, heads, dim", 2)
    return attend_batch(q, k, v, options)


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
    name = "flash_attn_varlen_kvpacked_func"
    refuse(name, dropout_p, alibi_slopes)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    k, v = parts(name, "kv", kv, "rows, 2, heads, dim", 1)
    return attend_packed(q, k, v, Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), options)


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
    name = "flash_attn_varlen_qkvpacked_func"
    refuse(name, dropout_p, alibi_slopes)
    options = Options(name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sink)
    q, k, v = parts(name, "qkv", qkv, "rows, 3, heads, dim", 1)
    return attend_packed(q, k, v, Given(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, ("", "")), options)
