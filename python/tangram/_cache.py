# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What was derived from masks, kept for their next use: bounded in entries and in bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakSet

from .errors import InvalidArgument

T = TypeVar("T")
_caches: WeakSet[BoundedCache[object]] = WeakSet()
_bounds: dict[str, int] = {}
_entries: dict[str, int] = {}


class _Entry(Generic[T]):
    __slots__ = ("size", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self.size = 0  # as it was asked for last


class BoundedCache(Generic[T]):
    """Least recently used values by key. Thread-safe.

    `size_of` returns the bytes that a value holds now. Values grow as they are used, so all are asked again once an
    eighth of them is new (of eight or fewer whenever one is added). To ask hundreds for each new one would cost more
    than a mask does. What was used last always stays, however large, since it is in use.
    """

    def __init__(
        self, name: str, size_of: Callable[[T], int], max_bytes: int, max_entries: int, device: str = "cpu"
    ) -> None:
        self.name = name
        self.device = device
        self._size_of = size_of
        self._max_bytes = _bounds.get(name, max_bytes)
        self._max_entries = _entries.get(name, max_entries)
        self._entries: dict[Hashable, _Entry[T]] = {}  # an OrderedDict hashes every key to list its values
        self._total = 0  # of their sizes
        self._num_new = 0  # since all were asked
        self._lock = Lock()
        self._latest: tuple[Hashable, T] | None = None  # layers ask for one after the other
        _caches.add(self)  # type: ignore[arg-type]

    def get(self, key: Hashable) -> T | None:
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._entries[key] = entry  # the last one now
            self._latest = (key, entry.value)
            return entry.value

    def peek(self, key: Hashable) -> T | None:
        """The value, which does not count as used."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry.value

    def pop(self, key: Hashable) -> T | None:
        """The value, which is kept no longer."""
        with self._lock:
            self._latest = None
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._total -= entry.size
            return entry.value

    def put(self, key: Hashable, value: T) -> T:
        with self._lock:
            before = self._entries.pop(key, None)
            entry = self._entries[key] = _Entry(value)
            self._latest = (key, value)
            self._num_new += 1
            if 8 * self._num_new >= len(self._entries):
                self._ask_all()
            else:
                entry.size = self._size_of(value)
                self._total += entry.size - (0 if before is None else before.size)
            gone = self._take_superfluous()
        del before, gone  # what ends may wait for a GPU or run Python: not under the lock
        return value

    def _ask_all(self) -> None:
        for entry in self._entries.values():
            entry.size = self._size_of(entry.value)
        self._total = sum(entry.size for entry in self._entries.values())
        self._num_new = 0

    def _take_superfluous(self) -> list[T]:
        gone = []
        while len(self._entries) > 1 and (self._total > self._max_bytes or len(self._entries) > self._max_entries):
            entry = self._entries.pop(next(iter(self._entries)))
            self._total -= entry.size
            gone.append(entry.value)
        return gone

    def clear(self) -> None:
        with self._lock:
            gone = list(self._entries.values())
            self._entries.clear()
            self._total = self._num_new = 0
            self._latest = None
        del gone

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            values = [entry.value for entry in self._entries.values()]
        return sum(map(self._size_of, values))

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, max_bytes: int) -> None:
        with self._lock:
            self._max_bytes = max_bytes
            self._ask_all()
            gone = self._take_superfluous()
        del gone

    @property
    def max_entries(self) -> int:
        return self._max_entries

    @max_entries.setter
    def max_entries(self, max_entries: int) -> None:
        with self._lock:
            self._max_entries = max_entries
            self._ask_all()
            gone = self._take_superfluous()
        del gone


_left: list[object] = []
"""Objects of the parent; their GPU memory cannot be released in a child."""


def _after_fork() -> None:
    """In a child the lock that another thread of the parent held stays taken; what it guards may be half changed."""
    for cache in _caches:
        if cache._lock.locked():
            _left.append(cache._entries)
            cache._lock, cache._entries, cache._latest = Lock(), {}, None
            cache._total = cache._num_new = 0


os.register_at_fork(after_in_child=_after_fork)


def caches() -> list[BoundedCache[object]]:
    """Live caches, sorted by name."""
    return sorted(_caches, key=lambda cache: cache.name)


def set_bound(name: str, max_bytes: int) -> None:
    """For caches of that name, those that are made later too."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise InvalidArgument(f"set_cache_bytes: max_bytes must be an integer from 0 on (got {max_bytes!r})")
    _bounds[name] = max_bytes
    for cache in caches():
        if cache.name == name:
            cache.max_bytes = max_bytes


def bound_of(name: str, default: int) -> int:
    """The bound that was set, for caches that are no BoundedCache."""
    return _bounds.get(name, default)


def was_bound(name: str) -> int | None:
    """The bound that was set; None: the default."""
    return _bounds.get(name)


def set_entries(name: str, max_entries: int) -> None:
    """For caches of that name, those that are made later too."""
    _entries[name] = max_entries
    for cache in caches():
        if cache.name == name:
            cache.max_entries = max_entries
