# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on one device over any list of (query range, key range, mask type)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._core import AttnOptions
from ._prepared import backend_named, prepared
from .errors import InvalidArgument

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class AttnForwardMeta:
    """What forward knows beside its output."""

    lse: Any
    """[seqlen_q, num_heads_q] float32, natural log; -inf where a query sees nothing."""
    max_logits: Any = None
    """[num_heads_q] float32, the largest visible score before softcap, with return_max_logits."""


def flex_flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    q_ranges: Any,
    k_ranges: Any = None,
    attn_type_map: Any = None,
    *,
    sink: Any = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    out_dtype: Any = None,
    return_max_logits: bool = False,
    backend: str | None = None,
    dropout_p: float = 0.0,
    auto_range_merge: bool = False,
    max_seqlen_q: int | None = None,
    ref_block_size: tuple[int, int] | None = None,
    swap_ab: bool = False,
    pack_gqa: bool = False,
    cat_gqa: bool = False,
    sparse_load: bool = False,
    swap_bwd_qk_loop: bool = False,
    disable_fwd_atomic_reduction: bool = False,
) -> tuple[Any, AttnForwardMeta]:
    """Attention of `q` `[seqlen_q, num_heads_q, head_dim]` to `k`, `v` `[seqlen_k, num_heads_kv, head_dim(_v)]`.

    The name and the arguments are those of MagiAttention's function. Tensors of torch (with gradients) or arrays of
    NumPy (without), float32, bfloat16 or float16, all of one dtype; the last dimension must be contiguous, otherwise a
    copy is made.

    Args:
        q_ranges, k_ranges: `[n, 2]` int32 or int64 tensors or arrays, or lists of `(begin, end)`; or a `tangram.Mask`
            in q_ranges alone. Slice i lets the queries of range i see the keys of range i; slices must not cover a
            (query, key) pair twice. Tensors are remembered by object and version, those in device memory by storage
            and version: these are copied to the host at first sight, which synchronises once and is refused while a
            CUDA graph is captured.
        attn_type_map: `[n]` of 0 full, 1 causal (bottom-right aligned), 2 inverse causal (top-left), 3 both. None: 0.
        sink: extra keys without values, float32, `[seqlen_sink, num_heads_q]` ("sh") or
            `[seqlen_q, seqlen_sink, num_heads_q]` ("ssh"); differentiable.
        softmax_scale: None means `1 / sqrt(head_dim)`. softcap: 0 means none.
        deterministic: results are bitwise equal from run to run. sm_margin: multiprocessors to leave free.
        out_dtype: dtype of the output, that of q (default) or float32.
        backend: None takes the best for the device; "reference" computes densely in float64.
        auto_range_merge, max_seqlen_q, ref_block_size, swap_ab, pack_gqa, cat_gqa, sparse_load, swap_bwd_qk_loop,
            disable_fwd_atomic_reduction: accepted and without effect; fragmented ranges are always merged, and tiles
            are chosen by the backend.

    Returns:
        `(out, meta)`: out `[seqlen_q, num_heads_q, head_dim_v]`, rows that see nothing are zero. meta.lse and
        meta.max_logits are not differentiable.

    Raises:
        InvalidArgument: shapes, dtypes, devices or ranges that do not fit, or dropout.
        NotAvailable: no backend for the device.
    """
    if dropout_p != 0.0:
        raise InvalidArgument(f"flex_flash_attn_func: dropout is not supported, dropout_p must be 0 (got {dropout_p})")
    if hasattr(q, "data_ptr"):
        from . import _torch_flex

        out, lse, max_logits = _torch_flex.attend(
            q,
            k,
            v,
            (q_ranges, k_ranges, attn_type_map),
            sink,
            sink_layout,
            (softmax_scale, softcap, deterministic, sm_margin),
            out_dtype,
            return_max_logits,
            backend,
        )
        return out, AttnForwardMeta(lse, max_logits)
    if getattr(getattr(q, "dtype", None), "name", None) is None:
        raise InvalidArgument(f"flex_flash_attn_func: q must be a tensor or a NumPy array (got {type(q).__name__})")
    return _attend_numpy(
        q,
        k,
        v,
        (q_ranges, k_ranges, attn_type_map),
        sink,
        sink_layout,
        AttnOptions(softmax_scale, softcap, deterministic, sm_margin),
        out_dtype,
        return_max_logits,
        backend,
    )


def _attend_numpy(
    q: Any,
    k: Any,
    v: Any,
    ranges: tuple[Any, Any, Any],
    sink: Any,
    sink_layout: str,
    options: AttnOptions,
    out_dtype: Any,
    return_max_logits: bool,
    backend: str | None,
) -> tuple[Any, AttnForwardMeta]:
    import numpy as np

    q, k, v = (np.asarray(x) for x in (q, k, v))
    dtype = q.dtype.name
    if dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise InvalidArgument(
            f"flex_flash_attn_func: q, k and v must share one dtype of {', '.join(_DTYPES)} "
            f"(got q={q.dtype}, k={k.dtype}, v={v.dtype})"
        )
    check_shapes(q.shape, k.shape, v.shape)
    heads = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], dtype)
    attention = prepared(*ranges, q.shape[0], k.shape[0], heads, backend_named(backend, on_gpu=False))
    result_dtype = q.dtype if out_dtype is None else np.dtype(out_dtype)
    out = np.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=result_dtype)
    lse = np.empty(q.shape[:2], dtype=np.float32)
    max_logits = np.empty(q.shape[1], dtype=np.float32) if return_max_logits else None
    if sink is not None:
        sink = np.ascontiguousarray(sink, dtype=np.float32)

    def bits(array: Any) -> Any:
        """NumPy's bfloat16 comes from another package and is not known to DLPack: it travels as its bits."""
        array = array if array.ndim == 0 or array.strides[-1] == array.itemsize else np.ascontiguousarray(array)
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array

    attention.forward(bits(q), bits(k), bits(v), bits(out), lse, max_logits, sink, sink_layout, options)
    return out, AttnForwardMeta(lse, max_logits)


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Refuses shapes that are no attention, naming them."""
    if len(q) != 3 or len(k) != 3 or len(v) != 3:
        raise InvalidArgument(
            "flex_flash_attn_func: q, k and v must have shape [rows, heads, dim] "
            f"(got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )
    if k[0] != v[0] or k[1] != v[1] or q[2] != k[2] or k[1] == 0 or q[1] % k[1] != 0:
        raise InvalidArgument(
            "flex_flash_attn_func: k and v must have equal rows and heads, q and k equal dims, and the heads of q must "
            f"be a multiple of those of k (got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )
