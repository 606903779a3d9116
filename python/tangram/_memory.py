# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Where bytes are that outlive a call, and the bounds of what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from . import _core
from ._cache import bound_of, caches, set_bound, set_entries, was_bound
from ._core import PlanCache
from .errors import InvalidArgument

_PLANS_PER_CACHE = 128
_plan_caches: WeakSet[Any] = WeakSet()


@dataclass(frozen=True)
class MemoryRow:
    """A line of memory_use."""

    name: str
    """By which set_cache_bytes bounds it."""
    device: str
    """Where most of it lies: `cpu` or `cuda`."""
    entries: int
    num_bytes: int
    max_bytes: int | None
    """None: what is in use has no bound of its own."""


Provider = Callable[[], Iterable[MemoryRow]]
_providers: list[Provider] = []
_setters: dict[str, Callable[[int], None]] = {}
_names = {"borders", "gpu_keys", "keys", "masks", "ranges"}
"""Names of caches that are made with their first entry."""


def register_rows(provider: Provider) -> Provider:
    """More rows of memory_use."""
    _providers.append(provider)
    return provider


def register_bound(name: str, setter: Callable[[int], None] | None = None) -> None:
    """A name that set_cache_bytes knows: of a BoundedCache, or with what sets the bound of something else."""
    _names.add(name)
    if setter is not None:
        _setters[name] = setter


def make_plan_cache() -> PlanCache:
    """One that memory_use shows and set_cache_bytes("plans", ...) bounds."""
    cache = PlanCache(_PLANS_PER_CACHE, bound_of("plans", PlanCache().max_bytes))
    _plan_caches.add(cache)
    return cache


def _set_plan_bytes(max_bytes: int) -> None:
    for cache in _plan_caches:
        cache.max_bytes = max_bytes


register_bound("plans", _set_plan_bytes)
register_bound("host_buffers", _core.set_max_kept_host_bytes)


def _merged(rows: Iterable[MemoryRow]) -> list[MemoryRow]:
    """One row for caches of a name, which there may be for each group of ranks."""
    merged: dict[tuple[str, str], MemoryRow] = {}
    for row in rows:
        known = merged.get((row.name, row.device))
        if known is not None:
            bounds = (known.max_bytes, row.max_bytes)
            total = None if None in bounds else sum(bound for bound in bounds if bound is not None)
            row = MemoryRow(row.name, row.device, known.entries + row.entries, known.num_bytes + row.num_bytes, total)
        merged[(row.name, row.device)] = row
    return list(merged.values())


def memory_use() -> list[MemoryRow]:
    """Memory that Tangram keeps beside the tensors that it returned, a row for each kind and device. Bounds of several
    caches of a kind, one for each rank group, are added up.

    `keys`: masks that are sharded to ranks, with their plans, tables and executors in host memory. `plans`: their
    plans, and those of tangram.plan. `masks`: what flex_flash_attn_func prepared; `ranges`: the ranges by which it
    finds them, which keep theirs; `borders`: masks that tangram.flash_attn and layout="bshd" made. `host_buffers`:
    large buffers of passes on CPUs that wait for the next pass. `host_buffers_in_use`: buffers of running passes, and
    what forward passes keep for their backward passes. `gpu_keys`: lists and tables of keys on GPUs; `gpu_shared`:
    receive buffers of all keys of a group, as large as the largest needs. Workspaces of calls
    on GPUs are torch's. `masks` counts lists in GPU memory, too.

    Plans are counted in `keys` and in `plans`, though they share their memory; `ranges` counts what it keeps of
    `masks`.
    """
    rows = [MemoryRow(c.name, c.device, len(c), c.num_bytes, c.max_bytes) for c in caches()]
    rows += [MemoryRow("plans", "cpu", len(c), c.num_bytes, c.max_bytes) for c in _plan_caches]
    used, num_kept, kept, max_kept = _core.host_memory_use()
    rows.append(MemoryRow("host_buffers", "cpu", num_kept, kept, max_kept))
    rows.append(MemoryRow("host_buffers_in_use", "cpu", 0, used, None))
    for provider in _providers:
        rows += provider()
    return _merged(rows)


def set_cache_bytes(name: str, max_bytes: int) -> None:
    """Bounds what is kept of one kind, by its name in memory_use; what is beyond goes at once, but for what was used
    last. Caches that are one for each group of ranks have the bound each.

    Ranks must set `keys` and `gpu_keys` alike and between the same calls: a key that one rank has forgotten is made
    again by all.

    Raises:
        InvalidArgument: for an unknown name, or bytes that are no integer from 0 on.
    """
    if name not in _names:
        raise InvalidArgument(f"set_cache_bytes: name must be one of {', '.join(sorted(_names))} (got {name!r})")
    set_bound(name, max_bytes)
    if name in _setters:
        _setters[name](max_bytes)


def bounds() -> dict[str, int | None]:
    """By all names that set_cache_bytes knows: the bound that was set, None for the default."""
    return {name: was_bound(name) for name in sorted(_names)}


def set_max_keys(count: int) -> None:
    """So many keys of each group at most; those on GPUs have a bound of their own."""
    set_entries("keys", count)
