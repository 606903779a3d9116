# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks and prepared attention by the ranges that a caller passes, so that a call with known ranges costs a look-up."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ._cache import BoundedCache
from ._core import Backend, FlexAttention, HeadConfig, Mask
from ._worker_thread import run_on_worker
from .errors import InvalidArgument
from .mask_buffer import MaskBuffer, MaskOfBuffer

CAPACITY = 256
MAX_BYTES = 256 << 20
_ENTRY_BYTES = 1024
"""About what an entry takes beside what it counts."""
_LIST_BYTES = 200
"""About what a pair of integers takes in a list of them."""


def _ranges_bytes(entry: tuple[FlexAttention, tuple[Any, ...]]) -> int:
    """Of an entry that keeps its attention, and its ranges if these are arrays in host memory or lists."""
    attention, given = entry
    held = 0
    for ranges in given:
        if isinstance(ranges, (list, tuple)):
            held += _LIST_BYTES * len(ranges)
        elif not getattr(ranges, "is_cuda", False):
            held += getattr(ranges, "nbytes", 0)
    return _ENTRY_BYTES + attention.host_bytes + attention.device_bytes + held


def _mask_bytes(attention: FlexAttention) -> int:
    return _ENTRY_BYTES + attention.host_bytes + attention.device_bytes


# By the identity of ranges. An entry holds the ranges themselves, so that no other object can take their identity.
_by_ranges: BoundedCache[tuple[FlexAttention, tuple[Any, ...]]] = BoundedCache(
    "ranges", _ranges_bytes, MAX_BYTES, CAPACITY
)
new: list[FlexAttention] = []
"""Prepared for a GPU and not called yet: only the call knows whether a backward pass will follow."""

# By what the ranges mean: equal masks share what was prepared.
_by_mask: BoundedCache[FlexAttention] = BoundedCache("masks", _mask_bytes, MAX_BYTES, CAPACITY)


def clear_cache() -> None:
    """Forgets all masks that flex_flash_attn_func has seen."""
    _by_ranges.clear()
    _by_mask.clear()
    new.clear()


def are_masks(ranges: Any) -> bool:
    """Whether these are what masks_of_heads returns."""
    return isinstance(ranges, tuple) and len(ranges) > 0 and isinstance(ranges[0], Mask)


def _identity(ranges: Any) -> Hashable:
    """What changes when the ranges change. Tensors: the object and its version, without looking at device memory."""
    if are_masks(ranges):
        return ("masks", *map(id, ranges))
    try:
        version = getattr(ranges, "_version", None)
    except RuntimeError:  # inference tensors have none: they are always new
        return object()
    if version is not None:
        return (id(ranges), version)
    if isinstance(ranges, Mask):
        return id(ranges)  # never changes, and its hash takes time that grows with its slices
    if hasattr(ranges, "tobytes"):
        return (str(ranges.dtype), ranges.shape, ranges.tobytes())
    try:
        return tuple([tuple(item) if not isinstance(item, int) else item for item in ranges])
    except TypeError:
        raise InvalidArgument(
            "flex_flash_attn_func: q_ranges must be a Mask, or q_ranges, k_ranges and attn_type_map lists of integers "
            f"or integer arrays (got {ranges!r:.60})"
        ) from None


def _place(ranges: Any, identity: Hashable) -> Hashable:
    """The identity of device ranges whatever object shows them, so that new views of known ranges are known."""
    if not getattr(ranges, "is_cuda", False) or not isinstance(identity, tuple):
        return identity
    from . import _cuda

    return _cuda.identity(ranges)


def on_host(ranges: Any) -> Any:
    """Device ranges are copied to the host once, at first sight, which synchronises."""
    if not getattr(ranges, "is_cuda", False):
        return ranges.detach() if hasattr(ranges, "detach") else ranges
    from . import _cuda

    return _cuda.on_host(ranges)


def masks_of_heads(function: str, ranges: Any) -> tuple[Mask, ...] | None:
    """The masks of groups of heads that see different cells, where a list of masks stands for a mask."""
    if isinstance(ranges, (list, tuple)) and ranges and isinstance(ranges[0], Mask):
        for mask in ranges:
            if not isinstance(mask, Mask):
                raise InvalidArgument(
                    f"{function}: a list of masks, one for each group of heads, must hold nothing else "
                    f"(got {type(mask).__name__} in it)"
                )
        return tuple(ranges)
    return None


def heads_of_groups(function: str, num_masks: int, num_heads_q: int, num_heads_kv: int) -> list[tuple[slice, slice]]:
    """The query and the K/V heads of each group; `function` has been asked for them."""
    if num_heads_kv % num_masks != 0 or num_heads_q % num_masks != 0:
        raise InvalidArgument(
            f"{function}: the number of masks must divide the heads (got {num_masks} masks, {num_heads_q} query and "
            f"{num_heads_kv} K/V heads)"
        )
    per_q, per_kv = num_heads_q // num_masks, num_heads_kv // num_masks
    return [(slice(g * per_q, (g + 1) * per_q), slice(g * per_kv, (g + 1) * per_kv)) for g in range(num_masks)]


def beside_mask(function: str, mask: str, k_ranges: Any, mask_types: Any) -> InvalidArgument:
    """What refuses ranges or types beside masks."""
    given = [name for name, value in (("k_ranges", k_ranges), ("attn_type_map", mask_types)) if value is not None]
    return InvalidArgument(
        f"{function}: {mask} must stand alone, without k_ranges and attn_type_map (got {', '.join(given)} too)"
    )


def prepared(
    q_ranges: Any,
    k_ranges: Any,
    mask_types: Any,
    seqlen_q: int,
    seqlen_k: int,
    heads: tuple[int, int, int, int, str],
    backend: Backend,
) -> FlexAttention | MaskOfBuffer:
    """The attention for these ranges and shapes: looked up, or prepared and remembered."""
    if isinstance(q_ranges, MaskBuffer):
        if k_ranges is not None or mask_types is not None:
            raise beside_mask("flex_flash_attn_func", "a MaskBuffer", k_ranges, mask_types)
        return q_ranges.attention(seqlen_q, seqlen_k, heads, backend)
    key = (
        _identity(q_ranges),
        None if k_ranges is None else _identity(k_ranges),
        None if mask_types is None else _identity(mask_types),
        seqlen_q,
        seqlen_k,
        heads,
        backend,
    )
    known = _by_ranges.get(key)
    if known is not None:
        return known[0]
    given = (q_ranges, k_ranges, mask_types)
    place = key if isinstance(q_ranges, Mask) else (*map(_place, given, key), *key[3:])
    known = _by_ranges.get(place) if place != key else None
    if known is not None:
        return _by_ranges.put(key, (known[0], given))[0]
    mask: Mask | tuple[Mask, ...]
    if isinstance(q_ranges, Mask) or are_masks(q_ranges):
        mask = q_ranges
        if k_ranges is not None or mask_types is not None:
            raise beside_mask("flex_flash_attn_func", "a Mask in q_ranges", k_ranges, mask_types)
        for one in (mask,) if isinstance(mask, Mask) else mask:
            if (one.seqlen_q, one.seqlen_k) != (seqlen_q, seqlen_k):
                raise InvalidArgument(
                    "flex_flash_attn_func: the mask must have the lengths of q and k "
                    f"(got mask {one.seqlen_q} x {one.seqlen_k}, tensors {seqlen_q} x {seqlen_k}: rows are their first "
                    f"dimension, [rows, heads, dim], here {heads[0]} query and {heads[1]} K/V heads of {heads[2]})"
                )
        if not isinstance(mask, Mask):
            heads_of_groups("flex_flash_attn_func", len(mask), heads[0], heads[1])
            if all(one == mask[0] for one in mask):
                mask = mask[0]
    else:
        if k_ranges is None:
            raise InvalidArgument(
                "flex_flash_attn_func: q_ranges must be a Mask, or ranges with as many k_ranges beside them "
                f"(got {type(q_ranges).__name__} and no k_ranges)"
            )
        shape = tuple(getattr(q_ranges, "shape", (0, 2)))
        if len(shape) != 2 or shape[1] != 2:
            raise InvalidArgument(
                "flex_flash_attn_func: q_ranges must be a Mask or ranges [n, 2]; tangram.from_dense makes a Mask of a "
                f"dense boolean one (got q_ranges={getattr(q_ranges, 'dtype', '')}{list(shape)})"
            )
        types = None if mask_types is None else on_host(mask_types)
        mask = Mask.from_ranges(on_host(q_ranges), on_host(k_ranges), types, seqlen_q, seqlen_k)
    by_mask = (mask, heads, backend)
    attention = _by_mask.get(by_mask)
    if attention is None:
        num_heads_q, num_heads_kv, head_dim, head_dim_v, dtype = heads
        if backend.on_gpu:
            from . import _cuda

            _cuda.require_no_capture("a mask")
        config = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim_v, dtype)

        def make() -> FlexAttention:
            if isinstance(mask, Mask):
                return FlexAttention(mask, config, backend)
            return FlexAttention(list(mask), config, backend)

        attention = make() if backend.on_gpu else run_on_worker(make)
        if backend.on_gpu:
            new[:] = [attention]
        _by_mask.put(by_mask, attention)
    _by_ranges.put(key, (attention, given))
    if place != key:
        _by_ranges.put(place, (attention, given))
    return attention
