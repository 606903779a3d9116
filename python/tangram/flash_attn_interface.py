# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 3's functions, with its arguments in its order; tangram.flash_attn has those of FlashAttention 2.

    from tangram.flash_attn_interface import flash_attn_func  # was: from flash_attn_interface import ...

Tensors, masks and rows that see nothing are as there. What kernels do not take is refused by name, but for num_splits
and pack_gqa, which choose among kernels and have no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._flash_attend import Given, Options, Result, attend_batch, attend_packed, parts
from .errors import InvalidArgument

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"]


def _refuse(function: str, attention_chunk: int = 0, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(
                f"{function}: {name} is not supported and must be None (got {name} of type {type(value).__name__})"
            )
    if attention_chunk != 0:
        raise InvalidArgument(
            f"{function}: attention_chunk must be 0, chunks of attention are a mask of documents: pass their borders "
            f"to flash_attn_varlen_func (got attention_chunk={attention_chunk})"
        )


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    """Attention of a batch of sequences of equal length; arguments as of tangram.flash_attn.flash_attn_func.

    Args:
        qv, q_descale, k_descale, v_descale, attention_chunk: must be None, and 0.
        sm_margin: multiprocessors to leave free.

    Returns:
        out `[batch, seqlen_q, heads, dim_v]`; with return_attn_probs `(out, lse)`, lse `[batch, heads, seqlen_q]`
        float32, natural log.
    """
    name = "flash_attn_func"
    _refuse(name, attention_chunk, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    options = Options(
        name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, None, sm_margin, True
    )
    return attend_batch(q, k, v, options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
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
    """Attention of packed sequences; borders as of tangram.flash_attn.flash_attn_varlen_func, seqused_q and seqused_k
    must be None, the others as of flash_attn_func.

    Returns:
        out `[total_q, heads, dim_v]`; with return_attn_probs `(out, lse)`, lse `[heads, total_q]` float32.
    """
    name = "flash_attn_varlen_func"
    _refuse(name, attention_chunk, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    _refuse(name, seqused_q=seqused_q, seqused_k=seqused_k)
    options = Options(
        name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, None, sm_margin, True
    )
    borders = Given(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return attend_packed(q, k, v, borders, options)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
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
    """flash_attn_func of one tensor, qkv `[batch, seqlen, 3, heads, dim]`; or, with num_heads_q, of heads of q, k and v
    one after the other, `[batch, seqlen, heads + 2 * heads_kv, dim]`."""
    name = "flash_attn_qkvpacked_func"
    _refuse(name, attention_chunk, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    options = Options(
        name, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, None, sm_margin, True
    )
    if num_heads_q is None:
        q, k, v = parts(name, "qkv", qkv, "batch, rows, 3, heads, dim", 2)
    else:
        rest = qkv.shape[2] - num_heads_q if qkv.ndim == 4 else 0
        if rest <= 0 or rest % 2 != 0:
            raise InvalidArgument(
                f"{name}: qkv must be a tensor [batch, rows, num_heads_q + 2 * heads_kv, dim] with num_heads_q "
                f"(got qkv={list(qkv.shape)}, num_heads_q={num_heads_q})"
            )
        q, k, v = torch.split(qkv, [num_heads_q, rest // 2, rest // 2], 2)
    return attend_batch(q, k, v, options)
