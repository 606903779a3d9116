# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A thread for what outlives a call.

The C allocator serves each thread from a heap of its own. Where plans and tables that stay are allocated among the
tensors of a training step, in holes of the same heap, the tensors of the next step find the holes too small: with a new
mask at each step, of 8,192 rows a rank, the heap grew by 8 MiB a mask while a mask itself keeps half a MiB. Made on a
thread that allocates nothing else, they lie side by side.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
PREFIX = "tangram-apart"
_ARE_APART = (PREFIX, "tangram-plan")
"""Names of threads that make nothing else; the second is that of planning ahead."""


class _Threads(threading.local):
    """One for each thread that asks: ranks may be threads of one process, and an executor is made when all make it."""

    pool: ThreadPoolExecutor | None = None


_threads = _Threads()


def made_apart(make: Callable[[], T]) -> T:
    """The result of `make`, called on the other thread; the caller waits."""
    if threading.current_thread().name.startswith(_ARE_APART):
        return make()
    pool = _threads.pool
    if pool is None:
        pool = _threads.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=PREFIX)
    return pool.submit(make).result()


def _forget() -> None:
    """A child of a fork has no threads but its own."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forget)
