# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A thread for what outlives a call.

The C allocator serves each thread from a heap of its own. Plans and tables outlive a training step. Allocated between
the step's tensors, they leave holes in the heap that are too small for the next step's tensors. With a new mask at each
step, of 8,192 rows a rank, the heap grew by 8 MiB a mask, while a mask itself keeps half a MiB. Made on a thread that
allocates nothing else, they lie side by side.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PREFIX = "tangram-apart"
_ARE_APART = (PREFIX, "tangram-plan")
"""Names of threads that make nothing else; the second is that of planning ahead."""


class _Line:
    """What two threads share: a lock that one opens for the other. A queue and a future wake each other thrice."""

    def __init__(self) -> None:
        self.todo, self.done = threading.Lock(), threading.Lock()
        self.todo.acquire()
        self.done.acquire()
        self.make: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None


def _serve(line: _Line) -> None:
    while True:
        line.todo.acquire()
        make, line.make = line.make, None
        if make is None:
            return
        try:
            line.result = make()
        except BaseException as error:  # the caller's
            line.error = error
        del make
        line.done.release()


class _Thread:
    """Ends when no caller holds it, after its current task."""

    def __init__(self) -> None:
        self._line = _Line()
        self.is_free = True
        threading.Thread(target=_serve, args=(self._line,), name=PREFIX, daemon=True).start()

    def result_of(self, make: Callable[[], Any]) -> Any:
        line = self._line
        line.make = make
        self.is_free = False
        line.todo.release()
        line.done.acquire()
        self.is_free = True
        result, error = line.result, line.error
        line.result = line.error = None
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # whose traceback holds this frame

    def __del__(self) -> None:
        self._line.todo.release()


class _Threads(threading.local):
    """One for each thread that asks: ranks may be threads of one process, and make their keys at once."""

    thread: _Thread | None = None


_threads = _Threads()


def run_on_worker(make: Callable[[], T]) -> T:
    """The result of `make`, called on the other thread; the caller waits."""
    if threading.current_thread().name.startswith(_ARE_APART):
        return make()
    # A wait that is interrupted leaves the thread to what it makes: the next call has another.
    thread, _threads.thread = _threads.thread or _Thread(), None
    try:
        result: T = thread.result_of(make)
        return result
    finally:
        if thread.is_free:
            _threads.thread = thread


def _forget() -> None:
    """A child of a fork has no threads but its own."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forget)
