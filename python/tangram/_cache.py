# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What was derived from masks, kept for their next use: bounded in entries and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakSet

from .errors import InvalidArgument

T = TypeVar("T")
_caches: WeakSet[BoundedCache[object]] = WeakSet()
_bounds: dict[str, int] = {}
_entries: dict[str, int] = {}


class BoundedCache(Generic[T]):
    """Least recently used values by key. Thread-safe.

    `size_of` says what a value holds now: values grow as they are used, so all are asked again when one is added. What
    was used last always stays, however large, since it is in use.
    """

    def __init__(
        self, name: str, size_of: Callable[[T], int], max_bytes: int, max_entries: int, device: str = "cpu"
    ) -> None:
        self.name = name
        self.device = device
        self._size_of = size_of
        self._max_bytes = _bounds.get(name, max_bytes)
        self._max_entries = _entries.get(name, max_entries)
        self._entries: dict[Hashable, T] = {}  # an OrderedDict hashes every key to list its values
        self._lock = Lock()
        self._latest: tuple[Hashable, T] | None = None  # layers ask for one after the other
        _caches.add(self)  # type: ignore[arg-type]

    def get(self, key: Hashable) -> T | None:
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            value = self._entries.pop(key, None)
            if value is not None:
                self._entries[key] = value  # the last one now
                self._latest = (key, value)
            return value

    def peek(self, key: Hashable) -> T | None:
        """The value, which does not count as used."""
        with self._lock:
            return self._entries.get(key)

    def pop(self, key: Hashable) -> T | None:
        """The value, which is kept no longer."""
        with self._lock:
            self._latest = None
            return self._entries.pop(key, None)

    def put(self, key: Hashable, value: T) -> T:
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = value
            self._latest = (key, value)
            gone = self._take_superfluous()
        del gone  # what ends may wait for a GPU or run Python: not under the lock
        return value

    def _take_superfluous(self) -> list[T]:
        sizes = [self._size_of(value) for value in self._entries.values()]
        total, gone = sum(sizes), []
        for size in sizes[:-1]:
            if total <= self._max_bytes and len(self._entries) <= self._max_entries:
                break
            total -= size
            gone.append(self._entries.pop(next(iter(self._entries))))
        return gone

    def clear(self) -> None:
        with self._lock:
            gone = list(self._entries.values())
            self._entries.clear()
            self._latest = None
        del gone

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            values = list(self._entries.values())
        return sum(map(self._size_of, values))

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, max_bytes: int) -> None:
        with self._lock:
            self._max_bytes = max_bytes
            gone = self._take_superfluous()
        del gone

    @property
    def max_entries(self) -> int:
        return self._max_entries

    @max_entries.setter
    def max_entries(self, max_entries: int) -> None:
        with self._lock:
            self._max_entries = max_entries
            gone = self._take_superfluous()
        del gone


def caches() -> list[BoundedCache[object]]:
    """Those that live, by name."""
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
