# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks and prepared attention by the ranges that a caller passes, so that a call with known ranges costs a look-up."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ._cache import BoundedCache
from ._core import Backend, FlexAttention, HeadConfig, Mask
from ._worker_thread import run_on_worker
from .errors import InvalidArgument
from .mask_buffer import MaskBuffer, MaskOfBuffer

if TYPE_CHECKING:  # which imports torch
    from ._tensor_values import Watched

CAPACITY = 256
MAX_BYTES = 256 << 20
_ENTRY_BYTES = 1024
"""About what an entry takes beside what it counts."""
_LIST_BYTES = 200
"""About what a pair of integers takes in a list of them."""


class _Known(NamedTuple):
    """What calls with known ranges need."""

    attention: FlexAttention
    held: tuple[Any, ...]
    """Masks, so that no other object takes their identity."""
    num_bytes: int
    """Bytes of ranges that are arrays, lists or tensors in host memory."""
    watched: Watched | None
    """Ranges in GPU memory."""


def _ranges_bytes(entry: _Known) -> int:
    watched = 0 if entry.watched is None else entry.watched.num_bytes
    return _ENTRY_BYTES + entry.attention.host_bytes + entry.attention.device_bytes + entry.num_bytes + watched


def _bytes_of(ranges: Any) -> int:
    if isinstance(ranges, (list, tuple)):
        return _LIST_BYTES * len(ranges)
    return 0 if getattr(ranges, "is_cuda", False) else int(getattr(ranges, "nbytes", 0))


def _mask_bytes(attention: FlexAttention) -> int:
    return _ENTRY_BYTES + attention.host_bytes + attention.device_bytes


# By the values of ranges, the identity of masks, and the places of tensors in GPU memory.
by_ranges: BoundedCache[_Known] = BoundedCache("ranges", _ranges_bytes, MAX_BYTES, CAPACITY)
new: list[FlexAttention] = []
"""Prepared for a GPU and not called yet: only the call knows whether a backward pass will follow."""

# By what the ranges mean: equal masks share what was prepared.
_by_mask: BoundedCache[FlexAttention] = BoundedCache("masks", _mask_bytes, MAX_BYTES, CAPACITY)


def clear_cache() -> None:
    """Forgets all masks that flex_flash_attn_func has seen."""
    by_ranges.clear()
    _by_mask.clear()
    new.clear()


def are_masks(ranges: Any) -> bool:
    """Whether these are what masks_of_heads returns."""
    return isinstance(ranges, tuple) and len(ranges) > 0 and isinstance(ranges[0], Mask)


_named_tensor: Any = None
"""_tensor_values.named, once there are tensors: an import in a function takes as long as the rest of a look-up."""


def _import_torch() -> Any:
    global _named_tensor
    from . import _tensor_values

    if _named_tensor is None:
        _tensor_values.forget_when_changed(by_ranges)
        _named_tensor = _tensor_values.named
    return _named_tensor


def _named(ranges: Any, device: int) -> tuple[Any, Hashable]:
    """Ranges, in host memory or on that GPU, and what stands for their values in a call there (-1: the host)."""
    if isinstance(ranges, Mask):
        return ranges, id(ranges)  # never changes, and its hash takes time that grows with its slices
    if hasattr(ranges, "data_ptr"):
        of_tensor: tuple[Any, Hashable] = (_named_tensor or _import_torch())(ranges, device)
        return of_tensor
    if are_masks(ranges):
        return ranges, ("masks", *map(id, ranges))
    if hasattr(ranges, "tobytes"):
        return ranges, (str(ranges.dtype), ranges.shape, ranges.tobytes())
    try:
        return ranges, _integers([item if isinstance(item, int) else tuple(item) for item in ranges])
    except TypeError:
        raise InvalidArgument(
            "flex_flash_attn_func: q_ranges must be a Mask, or q_ranges, k_ranges and attn_type_map lists of integers "
            f"or integer arrays (got {ranges!r:.60})"
        ) from None


_INT = frozenset((int,))


def _integers(items: list[Any]) -> tuple[Any, ...]:
    """Integers as a key. An element that is a tensor compares by its value at the comparison, not when it was
    stored."""
    values = items if items and isinstance(items[0], int) else chain.from_iterable(items)
    if _INT.issuperset(map(type, values)):
        return tuple(items)
    return tuple([tuple(map(_integer, item)) if isinstance(item, tuple) else _integer(item) for item in items])


def _integer(value: Any) -> Any:
    return int(value) if hasattr(value, "__index__") else value


def on_host(ranges: Any) -> Any:
    """Ranges in GPU memory are copied to the host, which synchronises."""
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
) -> tuple[FlexAttention | MaskOfBuffer, Watched | None]:
    """The attention for these ranges and shapes: looked up, or prepared and remembered. And ranges in GPU memory, to
    which the call must compare."""
    if isinstance(q_ranges, MaskBuffer):
        if k_ranges is not None or mask_types is not None:
            raise beside_mask("flex_flash_attn_func", "a MaskBuffer", k_ranges, mask_types)
        return q_ranges.attention(seqlen_q, seqlen_k, heads, backend), None
    device = backend.device if backend.on_gpu else -1
    given_q = q_ranges
    q_ranges, q_name = _named(q_ranges, device)
    k_name = types_name = None
    if k_ranges is given_q:
        k_ranges, k_name = q_ranges, q_name
    elif k_ranges is not None:
        k_ranges, k_name = _named(k_ranges, device)
    if mask_types is not None:
        mask_types, types_name = _named(mask_types, device)
    key = (q_name, k_name, types_name, seqlen_q, seqlen_k, heads, backend)
    known = by_ranges.get(key)
    if known is not None:
        if known.watched is not None:
            _raise_if_changed()
        return known.attention, known.watched
    given, names = (q_ranges, k_ranges, mask_types), key[:3]
    watched = _watched(given, names)
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
        q_values, k_values, types = (_values(*each, watched) for each in zip(given, names, strict=True))
        mask = Mask.from_ranges(q_values, k_values, types, seqlen_q, seqlen_k)
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
    held = tuple(each for each in given if isinstance(each, Mask) or are_masks(each))
    by_ranges.put(key, _Known(attention, held, sum(map(_bytes_of, given)), watched))
    return attention, watched


def _watched(given: tuple[Any, ...], names: tuple[Hashable, ...]) -> Watched | None:
    """Watched values of ranges, some of which stayed in GPU memory."""
    if not any(hasattr(each, "data_ptr") for each in given):
        return None
    from ._tensor_values import watch

    return watch("flex_flash_attn_func", zip(given, names, strict=True))


def _values(ranges: Any, name: Hashable, watched: Watched | None) -> Any:
    if watched is not None and watched.has(name):
        return watched.values(name)
    return ranges.detach() if hasattr(ranges, "detach") else ranges


def _raise_if_changed() -> None:
    from ._tensor_values import raise_if_changed

    raise_if_changed("flex_flash_attn_func")
