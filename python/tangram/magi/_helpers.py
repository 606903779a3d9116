# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The small functions of the published API: padding, batches, and masks as ranges and types."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .. import _core
from ..errors import InvalidArgument
from ._enums import AttnMaskType
from ._range import AttnRange, RangeType
from ._ranges import AttnRanges

Typed = tuple[AttnRanges, AttnRanges, list[AttnMaskType]]


def compute_pad_size(total_seqlen_q: int, cp_size: int, chunk_size: int) -> int:
    """Rows to append so that each rank gets equally many whole chunks."""
    return _core.compute_pad_size(total_seqlen_q, cp_size, chunk_size)


def squash_batch_dim(x: Tensor) -> Tensor:
    """`[batch, rows, ...]` as `[batch * rows, ...]`."""
    if x.ndim < 2:
        raise InvalidArgument(f"squash_batch_dim: x must have shape [batch, rows, ...] (got shape={tuple(x.shape)})")
    return x.flatten(0, 1)


def full_attention_to_varlen_attention(batch_size: int, seq_len: int) -> tuple[Tensor, Tensor]:
    """Borders of batch_size documents of seq_len rows for queries and for keys, int64 `[batch_size + 1]`."""
    borders = torch.arange(0, batch_size + 1) * seq_len
    return borders, borders


def infer_varlen_mask_from_batch(
    batch_size: int, seq_len: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Borders in int32 on a device; None: the GPU, which is the default there, or the host without one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    borders = torch.arange(0, batch_size + 1, dtype=torch.int32, device=device) * seq_len
    return borders, borders


def pad_at_dim(
    x: Tensor, dim: int, pad_size: int, value: float = 0.0, side: Literal["left", "right"] = "right"
) -> Tensor:
    """pad_size entries of `value` appended to a dimension, or put before it."""
    if side not in ("left", "right"):
        raise InvalidArgument(f"pad_at_dim: side must be 'left' or 'right' (got side={side!r})")
    shape = list(x.shape)
    shape[dim] = pad_size
    pad = x.new_full(shape, value)
    return torch.cat([pad, x] if side == "left" else [x, pad], dim)


def unpad_at_dim(x: Tensor, dim: int, pad_size: int) -> Tensor:
    """Without the last pad_size entries of a dimension."""
    return x.narrow(dim, 0, x.shape[dim] - pad_size)


def apply_padding(
    q_ranges: AttnRanges, k_ranges: AttnRanges, attn_mask_type: list[AttnMaskType], total_seqlen: int, pad_size: int
) -> Typed:
    """Copies with one more slice: queries `[total_seqlen, total_seqlen + pad_size)`, which see nothing."""
    q, k = AttnRanges.from_ranges(q_ranges, check=True), AttnRanges.from_ranges(k_ranges, check=True)
    q.append(AttnRange(total_seqlen, total_seqlen + pad_size))
    k.append(AttnRange(0, 0))
    return q, k, [*attn_mask_type, AttnMaskType.FULL]


def _window(function: str, window_size: Any) -> tuple[int, int]:
    try:
        left, right = (int(side) for side in window_size)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{function}: window_size must be two integers, keys before and after a query, -1: all "
            f"(got window_size={window_size!r})"
        ) from None
    return left, right


def _published(q: Any, k: Any, types: Any) -> Typed:
    kinds = [AttnMaskType.from_int_type(kind) for kind in types]
    return AttnRanges.from_ranges(q), AttnRanges.from_ranges(k), kinds


def _windowed(q: tuple[int, int], k: tuple[int, int], window: tuple[int, int]) -> Any:
    """Ranges and types of a window. There queries before the one aligned to the first key see nothing, whatever their
    window. Tangram's own function shows them the keys of the window."""
    aligned = (max(q[0], q[1] - (k[1] - k[0])), q[1])
    return _core.infer_attn_mask_from_sliding_window(aligned, k, window)


def infer_attn_mask_from_sliding_window(q_range: RangeType, k_range: RangeType, window_size: tuple[int, int]) -> Typed:
    """A window over one rectangle, aligned to its last corner, as ranges and types. The same cells as there, by slices
    that may be cut in other places: queries before the first key, so aligned, see nothing.

    Args:
        window_size: keys before and after a query, -1: all.
    """
    q, k = (AttnRange.from_range(each).to_naive_range() for each in (q_range, k_range))
    window = _window("infer_attn_mask_from_sliding_window", window_size)
    return _published(*_windowed(q, k, window))


def borders(function: str, name: str, cu_seqlens: Any) -> list[int]:
    """Borders of documents as integers; a tensor in GPU memory is copied, which synchronises."""
    if isinstance(cu_seqlens, Tensor):
        if cu_seqlens.ndim != 1 or cu_seqlens.dtype.is_floating_point:
            raise InvalidArgument(
                f"{function}: {name} must be integers [documents + 1] "
                f"(got {cu_seqlens.dtype}{list(cu_seqlens.shape)})"
            )
        listed: list[int] = cu_seqlens.tolist()
        return listed
    try:
        return [int(border) for border in cu_seqlens]
    except (TypeError, ValueError):
        raise InvalidArgument(f"{function}: {name} must be integers (got {name}={cu_seqlens!r:.80})") from None


def infer_attn_mask_from_cu_seqlens(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    global_window_size: int = 0,
) -> tuple[AttnRanges, AttnRanges, list[AttnMaskType], int, int]:
    """Packed documents as ranges and types, and the rows of queries and of keys.

    Args:
        cu_seqlens_q, cu_seqlens_k: borders, `[documents + 1]` ints as tensors or lists, from 0 on.
        causal: goes without a window. window_size: as infer_attn_mask_from_sliding_window.
        global_window_size: so many first keys of a document are seen besides the window.
    """
    name = "infer_attn_mask_from_cu_seqlens"
    q, k = borders(name, "cu_seqlens_q", cu_seqlens_q), borders(name, "cu_seqlens_k", cu_seqlens_k)
    window = _window(name, window_size)
    rise = all(a <= b for c in (q, k) for a, b in zip(c, c[1:], strict=False))
    if window == (-1, -1) and len(q) == len(k) > 0 and (q[0], k[0]) == (0, 0) and rise:
        # One slice for each document, those without rows too, as there.
        kind = AttnMaskType.CAUSAL if causal else AttnMaskType.FULL
        ranges = [AttnRanges.from_ranges(list(zip(c, c[1:], strict=False))) for c in (q, k)]
        return ranges[0], ranges[1], [kind] * len(ranges[0]), q[-1], k[-1]
    *typed, total_q, total_k = _core.infer_attn_mask_from_cu_seqlens(q, k, causal, window, global_window_size)
    documents = list(zip(zip(q, q[1:], strict=False), zip(k, k[1:], strict=False), strict=True))
    if global_window_size == 0 and any(b - a > d - c for (a, b), (c, d) in documents):
        parts = [_windowed(q, k, window) for q, k in documents]
        typed = [[each for part in parts for each in part[i]] for i in range(3)]
    return (*_published(*typed), total_q, total_k)
