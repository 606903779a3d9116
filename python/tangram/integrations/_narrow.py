# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks and runtime keys narrowed by what a layer says of itself: its window, and the documents of its rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._core import AttnSlice, Mask, Range
from ..errors import InvalidArgument

NAME = "attn_implementation='tangram'"
Borders = tuple[tuple[int, ...], tuple[int, ...]]
"""Where documents begin among the queries and among the keys, as cu_seqlens_q and cu_seqlens_k."""
KEYS_PER_KEY = 16
"""Narrowed keys that are remembered with the key they were made of: a model has one or two windows."""


class Limits(NamedTuple):
    """A visible pair must fulfil all of them. None: no limit."""

    left: int | None = None
    """Rows that a key may lie before its query,"""
    right: int | None = None
    """and after it."""
    borders: Borders | None = None
    """Queries and keys must be of one document."""
    key_ranges: tuple[tuple[int, int], ...] | None = None
    """Keys must lie in one of these rising [begin, end)."""


NO_LIMITS = Limits()


def narrowed(mask: Mask, limits: Limits) -> Mask:
    """The pairs of `mask` within the limits; the same object if these are all of its pairs."""
    return _fewer_pairs(mask, limits) or mask


@lru_cache(64)
def _fewer_pairs(mask: Mask, limits: Limits) -> Mask | None:
    """None for all of its pairs: the cache finds equal masks, which are other objects."""
    slices = []
    for whole in mask.slices:
        low = whole.min_diag if limits.left is None else max(whole.min_diag, -limits.left)
        high = whole.max_diag if limits.right is None else min(whole.max_diag, limits.right)
        if low > high:
            continue
        for q, of_document in _in_documents(whole, limits.borders):
            slices += [AttnSlice(q, k, low, high) for k in _in_ranges(of_document, limits.key_ranges)]
    result = Mask(mask.seqlen_q, mask.seqlen_k, slices)
    return None if result.area == mask.area else result


def _in_documents(whole: AttnSlice, borders: Borders | None) -> Iterator[tuple[Range, Range]]:
    if borders is None:
        yield whole.q_range, whole.k_range
        return
    cu_q, cu_k = borders
    for i in range(max(bisect_right(cu_q, whole.q_range.begin) - 1, 0), len(cu_q) - 1):
        if cu_q[i] >= whole.q_range.end:
            return
        q_begin, q_end = max(cu_q[i], whole.q_range.begin), min(cu_q[i + 1], whole.q_range.end)
        k_begin, k_end = max(cu_k[i], whole.k_range.begin), min(cu_k[i + 1], whole.k_range.end)
        if q_begin < q_end and k_begin < k_end:
            yield Range(q_begin, q_end), Range(k_begin, k_end)


def _in_ranges(whole: Range, ranges: tuple[tuple[int, int], ...] | None) -> Iterator[Range]:
    if ranges is None:
        yield whole
        return
    for begin, end in ranges[max(bisect_right(ranges, (whole.begin,)) - 1, 0) :]:
        if begin >= whole.end:
            return
        if max(begin, whole.begin) < min(end, whole.end):
            yield Range(max(begin, whole.begin), min(end, whole.end))


_narrowed_keys: WeakKeyDictionary[Any, dict[Limits, Any]] = WeakKeyDictionary()


@torch.compiler.disable  # type: ignore[misc]
def narrowed_key(key: Any, limits: Limits) -> Any:
    """A runtime key of the pairs of `key` within the limits, over the same dispatch. Planned once, it lives as long as
    `key`; `key` itself if these are all of its pairs. All ranks make the same calls, so they plan alike."""
    known = _narrowed_keys.setdefault(key, {})
    if limits not in known:
        while len(known) >= KEYS_PER_KEY:
            del known[next(iter(known))]
        known[limits] = _plan_narrowed(key, limits)
    return known[limits] or key


def _plan_narrowed(key: Any, limits: Limits) -> Any:
    """None for `key` itself, which a value of its own entry must not keep alive."""
    from .._keys import make_mask_key_after_dispatch
    from .._runtime_key import cache_of

    wholes = _masks_of(key)
    masks = [narrowed(mask, limits) for mask in wholes]
    if all(new is old for new, old in zip(masks, wholes, strict=True)):
        return None
    cache = cache_of(key.group)
    latest = cache.latest
    try:
        return make_mask_key_after_dispatch(masks if key.masks is not None else masks[0], key)
    finally:
        cache.latest = latest  # the caller's, who never sees this one


def is_within(key: Any, limits: Limits) -> bool:
    """Whether all pairs of a key fulfil the limits."""
    return all(narrowed(mask, limits) is mask for mask in _masks_of(key))


def _masks_of(key: Any) -> list[Mask]:
    """Masks of the key's head groups, without padding."""
    return [Mask(key.total_seqlen_q, key.total_seqlen_k, mask.slices) for mask in key.masks or (key.plan.mask,)]


def given_borders(cu_q: Any, cu_k: Any, rows: tuple[int, int], whose: str) -> Borders | None:
    """cu_seq_lens_q and cu_seq_lens_k, which must cover `rows` queries and keys."""
    if cu_q is None and cu_k is None:
        return None
    if cu_q is None or cu_k is None:
        raise InvalidArgument(
            f"{NAME}: cu_seq_lens_q and cu_seq_lens_k must be given together (got {'k' if cu_q is None else 'q'} alone)"
        )
    borders = []
    for side, cu, total in (("q", cu_q, rows[0]), ("k", cu_k, rows[1])):
        values = [int(x) for x in (cu.tolist() if isinstance(cu, Tensor) else cu)]
        if not values or values[0] != 0 or values[-1] != total or any(a > b for a, b in zip(values, values[1:])):
            raise InvalidArgument(
                f"{NAME}: cu_seq_lens_{side} must rise from 0 to the {total} rows {whose} (got {str(values):.80})"
            )
        borders.append(tuple(values))
    if len(borders[0]) != len(borders[1]):
        raise InvalidArgument(
            f"{NAME}: cu_seq_lens_q and cu_seq_lens_k must be of equal length "
            f"(got {len(borders[0])} and {len(borders[1])})"
        )
    return borders[0], borders[1]


def borders_of_positions(position_ids: Tensor, real: Tensor | None, any_jump: bool) -> tuple[int, ...]:
    """Begins of documents in sequences that lie one after the other: at 0, at each sequence, and where positions
    `[batch, length]` do not rise. With any_jump also where positions skip.

    real: `[batch, length]` bool, False for padding, whose positions mean nothing.
    """
    batch, length = position_ids.shape
    steps = position_ids.diff(dim=1)
    begins = steps != 1 if any_jump else steps <= 0
    if real is not None:
        begins = begins & real[:, 1:] & real[:, :-1]
    found = begins.nonzero().tolist()
    return tuple(sorted({*range(0, batch * length + 1, length), *(b * length + i + 1 for b, i in found)}))


def first_positions(position_ids: Tensor, real: Tensor | None) -> Tensor:
    """The position at which each run of consecutive positions begins."""
    begins = torch.ones_like(position_ids, dtype=torch.bool)
    begins[:, 1:] = position_ids.diff(dim=1) != 1
    return position_ids[begins if real is None else begins & real]
