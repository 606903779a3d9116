# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on one device over any list of (query range, key range, mask type)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _settings
from ._backends import backend_named
from ._batches import joined, split
from ._core import AttnOptions
from ._named import Named
from ._prepared import beside_mask, heads_of_groups, masks_of_heads, prepared
from ._shapes import check_shapes
from .errors import InvalidArgument
from .mask_buffer import MaskBuffer

_DTYPES = ("float32", "bfloat16", "float16")
_attend_torch: Any = None


def _import_torch() -> Any:
    """The function for torch tensors, loaded at the first of them: by then the caller has imported torch."""
    global _attend_torch
    from . import _torch_flex

    _attend_torch = _torch_flex.attend
    return _attend_torch


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
    grad_dtype: Any = None,
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
    disable_bwd_dkv_atomic_reduction: bool = False,
    disable_bwd_dq_atomic_reduction: bool = False,
    range_merge: bool = False,
    block_sparse: bool = False,
    layout: str = "shd",
) -> tuple[Any, AttnForwardMeta]:
    """Attention of `q` `[seqlen_q, num_heads_q, head_dim]` to `k`, `v` `[seqlen_k, num_heads_kv, head_dim(_v)]`.

    The name and most arguments are those of MagiAttention's function; tangram.magi has all of them. Tensors of torch
    (with gradients) or arrays of NumPy (without), float32, bfloat16 or float16, all of one dtype. Strides are free: a
    copy is made if the last dimension is not contiguous or rows overlap.

    Tensors in GPU memory are read and written on the current stream, and the host does not wait. float32 tensors are
    computed there by plain kernels of backend `sm80`: correct, slow and warned of.

    Args:
        q_ranges, k_ranges: `[n, 2]` int32 or int64 tensors or arrays, or lists of `(begin, end)`; or in q_ranges alone
            a `tangram.Mask`, a `tangram.MaskBuffer`, or a list of masks, one for each of equal groups of heads. Slice i
            lets the queries of range i see the keys of range i; slices must not cover a (query, key) pair twice.
            Tensors in host memory are read in each call. Ranges in GPU memory are known by storage and version. The
            first call with them copies them to the host, which synchronises and is refused during CUDA graph capture.
            If collectives or kernels change these values without a new version, the results of a call become NaN, and
            the next call raises. Pass a copy, `x.clone()`, after each such write.
        attn_type_map: `[n]` of 0 full, 1 causal (bottom-right aligned), 2 inverse causal (top-left), 3 both. None: 0.
        sink: extra keys without values, float32, `[seqlen_sink, num_heads_q]` ("sh") or
            `[seqlen_q, seqlen_sink, num_heads_q]` ("ssh"); differentiable.
        softmax_scale: None means `1 / sqrt(head_dim)`. softcap: 0 means none.
        deterministic: results are bitwise equal from run to run. sm_margin: multiprocessors to leave free.
        out_dtype: dtype of the output, that of q (default) or float32, whose gradient is rounded to that of q on GPUs.
            grad_dtype: in which gradients of torch tensors are computed and added up, likewise; torch rounds them to
            what a tensor's `grad_dtype` says, by default its dtype. Without effect under torch.compile.
        backend: None takes the best for the device; "reference" computes densely in float64, tensors in GPU memory on
            the host.
        auto_range_merge, max_seqlen_q, ref_block_size, swap_ab, pack_gqa, cat_gqa, sparse_load, swap_bwd_qk_loop,
            disable_fwd_atomic_reduction, disable_bwd_dkv_atomic_reduction, disable_bwd_dq_atomic_reduction,
            range_merge, block_sparse: accepted and without effect; fragmented ranges are always merged, and tiles
            are chosen by the backend (what is done instead of each: docs/migration/magi_names.md).
        layout: "shd" as above; "bshd" for a batch of sequences of equal length: q, k, v, out
            `[batch, seqlen, heads, dim]`, lse `[batch, seqlen, heads]`, a sink of each row likewise. Ranges, or a
            mask of one sequence, hold for each; a mask (or a MaskBuffer) of batch * seqlen rows tells sequences apart.

    Returns:
        `(out, meta)`: out `[seqlen_q, num_heads_q, head_dim_v]`, rows that see nothing are zero. meta.lse and
        meta.max_logits are not differentiable.

    Raises:
        InvalidArgument: shapes, dtypes, devices or ranges that do not fit, or dropout.
        NotAvailable: no backend for the device.
    """
    if dropout_p != 0.0:
        raise InvalidArgument(f"flex_flash_attn_func: dropout is not supported, dropout_p must be 0 (got {dropout_p})")
    backend = backend or _settings.chosen.backend
    deterministic = deterministic or _settings.chosen.deterministic
    if isinstance(q_ranges, MaskBuffer):
        deterministic = q_ranges.calls(deterministic)
    if layout != "shd":
        ranges = (q_ranges, k_ranges, attn_type_map)
        q, k, v, mask, sink = joined("flex_flash_attn_func", layout, (q, k, v), ranges, sink, sink_layout)
        together: dict[str, Any] = {"sink": sink, "sink_layout": sink_layout, "softmax_scale": softmax_scale}
        together |= {"softcap": softcap, "deterministic": deterministic, "sm_margin": sm_margin, "backend": backend}
        together |= {"out_dtype": out_dtype, "grad_dtype": grad_dtype, "return_max_logits": return_max_logits}
        out, meta = flex_flash_attn_func(q.rows, k.rows, v.rows, mask, **together)
        return split(out, q.batch), AttnForwardMeta(split(meta.lse, q.batch), meta.max_logits)
    masks = masks_of_heads("flex_flash_attn_func", q_ranges)
    if masks is not None:
        if k_ranges is not None or attn_type_map is not None:
            raise beside_mask("flex_flash_attn_func", "masks in q_ranges", k_ranges, attn_type_map)
        _check_three_dims("flex_flash_attn_func", q, k, v)
        q_ranges = masks
    if hasattr(q, "data_ptr"):
        out, lse, max_logits = (_attend_torch or _import_torch())(
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
            grad_dtype,
        )
        return out, AttnForwardMeta(lse, max_logits)
    if getattr(getattr(q, "dtype", None), "name", None) is None:
        raise InvalidArgument(f"flex_flash_attn_func: q must be a tensor or a NumPy array (got {type(q).__name__})")
    if softmax_scale is not None and not hasattr(softmax_scale, "__float__"):
        kind = type(softmax_scale).__name__
        raise InvalidArgument(f"flex_flash_attn_func: softmax_scale must be a number or None (got {kind})")
    with Named("flex_flash_attn_func"):
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


def _check_three_dims(function: str, q: Any, k: Any, v: Any) -> None:
    if getattr(q, "ndim", 0) != 3 or getattr(k, "ndim", 0) != 3 or getattr(v, "ndim", 0) != 3:
        raise InvalidArgument(
            f"{function}: with a mask for each group of heads q, k and v must have shape [rows, heads, dim] "
            f"(got {', '.join(str(tuple(getattr(x, 'shape', ()))) for x in (q, k, v))})"
        )


def by_head_groups(
    attend: Any, q: Any, k: Any, v: Any, masks: Sequence[Any], sink: Any, options: dict[str, Any]
) -> tuple[Any, AttnForwardMeta]:
    """`attend(q, k, v, mask, ...)` for the heads of each group, side by side; `masks` may be what stands for masks."""
    _check_three_dims(attend.__name__, q, k, v)
    if hasattr(q, "data_ptr"):
        import torch

        join: Any = torch.cat
    else:
        import numpy as np

        join = np.concatenate
    outs, metas = [], []
    groups = heads_of_groups(attend.__name__, len(masks), q.shape[1], k.shape[1])
    for mask, (of_q, of_kv) in zip(masks, groups, strict=True):
        of_sink = None if sink is None else sink[..., of_q]
        out, meta = attend(q[:, of_q], k[:, of_kv], v[:, of_kv], mask, sink=of_sink, **options)
        outs.append(out)
        metas.append(meta)
    max_logits = join([meta.max_logits for meta in metas]) if options["return_max_logits"] else None
    return join(outs, 1), AttnForwardMeta(join([meta.lse for meta in metas], 1), max_logits)


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
    if dtype not in _DTYPES or not q.dtype.isnative or k.dtype != q.dtype or v.dtype != q.dtype:
        raise InvalidArgument(
            f"flex_flash_attn_func: q, k and v must share one dtype of {', '.join(_DTYPES)} "
            f"(got q={q.dtype}, k={k.dtype}, v={v.dtype})"
        )
    check_shapes(q.shape, k.shape, v.shape)
    heads = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], dtype)
    attention, _ = prepared(*ranges, q.shape[0], k.shape[0], heads, backend_named(backend, on_gpu=False))
    result_dtype = q.dtype if out_dtype is None else np.dtype(out_dtype)
    out = np.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=result_dtype)
    lse = np.empty(q.shape[:2], dtype=np.float32)
    max_logits = np.empty(q.shape[1], dtype=np.float32) if return_max_logits else None
    if sink is not None:
        sink = np.ascontiguousarray(sink, dtype=np.float32)

    def bits(array: Any) -> Any:
        """NumPy's bfloat16 comes from another package and is not known to DLPack: it moves as its bits."""
        array = array if _is_readable(array) else np.ascontiguousarray(array)
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array

    attention.forward(bits(q), bits(k), bits(v), bits(out), lse, max_logits, sink, sink_layout, options)
    return out, AttnForwardMeta(lse, max_logits)


def _is_readable(array: Any) -> bool:
    """Whether kernels can read `[rows, heads, dim]` where it lies: rows and heads one after the other, in any order."""
    *outer, dim = array.strides
    row = array.shape[-1] * array.itemsize
    return bool(array.flags.aligned) and dim == array.itemsize and all(stride >= row for stride in outer)
