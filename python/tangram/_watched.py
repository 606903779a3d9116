# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Forward passes: computed, or taken from what a checkpoint has kept; of eager calls by an operator, if one is watched.

An autograd.Function hides what it computes. So if a TorchDispatchMode watches operators (selective checkpointing, FLOP
counters), passes run as operators of `torch.ops.tangram` that get the number of the call. An operator runs exactly what
the call would have run without it, with any options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import InvalidArgument

NO_CALL = -1
"""What operators get from compiled graphs, which name everything by other arguments."""

_calls: dict[int, Any] = {}
"""Calls whose operator runs now."""
_numbers = count()
_of_thread = threading.local()

Results = tuple[Tensor, ...]


class Frame(Protocol):
    """What keeps the results of forward passes for a recomputation, see keep_attention."""

    def recall(self, name: str, q: Tensor) -> Results | None: ...

    def keep(self, name: str, q: Tensor, results: Results) -> None: ...


is_watched: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many modes watch this thread."""


def as_operator(call: Any, operator: Any, before: tuple[Any, ...], after: tuple[Any, ...] = ()) -> Any:
    """Runs the operator with the number of the call between these arguments."""
    number = next(_numbers)
    _calls[number] = call
    _of_thread.recalled = False  # where the operator does not run, as of fake tensors
    try:
        return operator(*before, number, *after)
    finally:
        del _calls[number]


def call_of(number: int) -> Any:
    call = _calls.get(number)
    if call is None:
        raise InvalidArgument(
            f"tangram: an operator of an eager call must run within that call, traced graphs cannot hold it: trace by "
            f"torch.compile (got call {number})"
        )
    return call


_num_frames = 0
"""Frames of all threads: if there are none, a call looks no further."""
_lock = threading.Lock()


def frames() -> list[Frame]:
    """Frames of this thread, the outermost first."""
    try:
        stack: list[Frame] = _of_thread.frames
    except AttributeError:
        stack = _of_thread.frames = []
    return stack


@contextmanager
def within(frame: Frame) -> Iterator[None]:
    """Forward passes of this thread ask the frame, and those that were there before."""
    global _num_frames
    stack = frames()
    with _lock:
        _num_frames += 1
    stack.append(frame)
    try:
        yield
    finally:
        stack.pop()
        _of_thread.recalled = False
        with _lock:
            _num_frames -= 1


def forward_pass(name: str, compute: Callable[..., Results], q: Tensor, *rest: Any) -> Results:
    """`compute(q, *rest)`, or the results of an earlier pass that a frame has kept."""
    if _num_frames == 0:
        return compute(q, *rest)
    results = None
    stack = frames()
    for frame in stack:
        results = frame.recall(name, q) or results
    _of_thread.recalled = results is not None
    if results is None:
        results = compute(q, *rest)
    for frame in stack:
        frame.keep(name, q, results)
    return results


def was_recalled() -> bool:
    """Whether this thread's latest forward pass came from a frame, so that nothing was computed."""
    return getattr(_of_thread, "recalled", False)
