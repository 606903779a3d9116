# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Batches `[batch, rows, heads, dim]` as one sequence of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._cache import BoundedCache
from ._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from ._named import rename
from ._prepared import beside_mask, masks_of_heads, on_host
from .errors import InvalidArgument
from .mask_buffer import MaskBuffer

LAYOUTS = ("shd", "bshd")


@dataclass
class Rows:
    """A tensor of a batch whose sequences lie one after the other."""

    rows: Any
    batch: tuple[int, int]
    """Sequences, and rows of each."""


def shifted(mask: Mask, q_shift: int, k_shift: int) -> list[AttnSlice]:
    """The slices of a mask whose rows begin further on."""
    shift = k_shift - q_shift
    return [
        AttnSlice(
            Range(s.q_range.begin + q_shift, s.q_range.end + q_shift),
            Range(s.k_range.begin + k_shift, s.k_range.end + k_shift),
            s.min_diag if s.min_diag == OPEN_MIN_DIAG else s.min_diag + shift,
            s.max_diag if s.max_diag == OPEN_MAX_DIAG else s.max_diag + shift,
        )
        for s in mask.slices
    ]


_BYTES_OF_SLICE = 128
# A mask and its number of slices.
_repeated: BoundedCache[tuple[Mask, int]] = BoundedCache(
    "borders", lambda entry: 1024 + _BYTES_OF_SLICE * entry[1], 16 << 20, 256
)


def repeated(mask: Mask, batch: int) -> Mask:
    """The mask for each of so many sequences, which do not see each other."""
    known = _repeated.get((mask, batch))
    if known is None:
        q, k = mask.seqlen_q, mask.seqlen_k
        slices = [each for b in range(batch) for each in shifted(mask, b * q, b * k)]
        known = _repeated.put((mask, batch), (Mask(batch * q, batch * k, slices), len(slices)))
    return known[0]


def _of_batch(function: str, mask: Mask, batch: int, seqlen_q: int, seqlen_k: int) -> Mask:
    lengths = (mask.seqlen_q, mask.seqlen_k)
    if lengths == (seqlen_q, seqlen_k):
        return repeated(mask, batch)
    if lengths == (batch * seqlen_q, batch * seqlen_k):
        return mask
    raise InvalidArgument(
        f"{function}: with layout='bshd' the mask must have the rows of one sequence, {seqlen_q} x {seqlen_k}, or of "
        f"all {batch}, {batch * seqlen_q} x {batch * seqlen_k} (got {lengths[0]} x {lengths[1]})"
    )


def _mask(function: str, ranges: tuple[Any, Any, Any], batch: int, seqlen_q: int, seqlen_k: int) -> Any:
    q_ranges, k_ranges, types = ranges
    if isinstance(q_ranges, MaskBuffer) and k_ranges is None and types is None:
        return q_ranges  # of all sequences
    masks = masks_of_heads(function, q_ranges)
    if masks is None and not isinstance(q_ranges, Mask):
        if k_ranges is None:
            raise InvalidArgument(
                f"{function}: q_ranges must be a Mask, or ranges with as many k_ranges beside them "
                f"(got {type(q_ranges).__name__} and no k_ranges)"
            )
        types = None if types is None else on_host(types)
        try:
            mask = Mask.from_ranges(on_host(q_ranges), on_host(k_ranges), types, seqlen_q, seqlen_k)
        except (InvalidArgument, TypeError) as error:
            rename(error, function)
            raise
        return repeated(mask, batch)
    if k_ranges is not None or types is not None:
        raise beside_mask(function, "masks in q_ranges", k_ranges, types)
    if masks is None:
        return _of_batch(function, q_ranges, batch, seqlen_q, seqlen_k)
    return [_of_batch(function, mask, batch, seqlen_q, seqlen_k) for mask in masks]


def joined(
    function: str,
    layout: str,
    tensors: tuple[Any, Any, Any],
    ranges: tuple[Any, Any, Any],
    sink: Any,
    sink_layout: str,
) -> tuple[Rows, Rows, Rows, Any, Any]:
    """q, k, v, the mask and the sink of all sequences one after the other."""
    if layout not in LAYOUTS:
        raise InvalidArgument(f"{function}: layout must be one of {', '.join(LAYOUTS)} (got layout={layout!r})")
    shapes = [tuple(getattr(x, "shape", ())) for x in tensors]
    q, k, v = shapes
    if any(len(shape) != 4 for shape in shapes) or not q[0] == k[0] == v[0] or k[1] != v[1]:
        raise InvalidArgument(
            f"{function}: with layout='bshd' q, k and v must have shape [batch, rows, heads, dim], of one batch, k and "
            f"v of equal rows (got q={q}, k={k}, v={v})"
        )
    rows = [Rows(x.reshape(-1, *x.shape[2:]), (x.shape[0], x.shape[1])) for x in tensors]
    mask = _mask(function, ranges, q[0], q[1], k[1])
    if sink is not None and sink_layout == "ssh":
        if tuple(sink.shape[:2]) != q[:2] or len(sink.shape) != 4:
            raise InvalidArgument(
                f"{function}: with layout='bshd' sinks of rows must have shape [batch, rows, seqlen_sink, heads] "
                f"(got {tuple(sink.shape)})"
            )
        sink = sink.reshape(-1, *sink.shape[2:])
    return rows[0], rows[1], rows[2], mask, sink


def split(x: Any, batch: tuple[int, int]) -> Any:
    """`[batch, rows, ...]` of rows one after the other."""
    return x.reshape(*batch, *x.shape[1:])
