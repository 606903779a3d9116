# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes: attention, waits that nothing hides, planning. Events, read later: nothing waits."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import InvalidArgument

_F = TypeVar("_F", bound=Callable[..., Any])

current: Meter | None = None
"""What measures now, on all threads: autograd runs backward passes on its own."""
_lock = threading.Lock()
_of_thread = threading.local()


@dataclass(frozen=True)
class MeterReport:
    """Seconds of a step on this rank."""

    total_s: float
    """Seconds of the block: on a GPU those of its current stream, from the first event to the last; else on the
    clock."""
    forward_s: float
    backward_s: float
    """Seconds of attention passes, transfers and waits inside them included."""
    num_forward: int
    num_backward: int
    """Passes that were computed: a recomputed pass counts again, a kept one does not."""
    waited_s: float | None
    """Part of these seconds in waits for rows of peers that no computation hid. None: a GPU computed, whose kernels
    wait."""
    planning_s: float
    """Seconds of host threads for keys, plans, executors and lists of new masks. Not what was made ahead."""
    num_captured: int
    """Passes that a CUDA graph captured: they did not run, so they have no time."""

    @property
    def attention_s(self) -> float:
        return self.forward_s + self.backward_s

    def __str__(self) -> str:
        def line(name: str, seconds: float, detail: str) -> str:
            share = 100 * seconds / self.total_s if self.total_s > 0 else 0.0
            return f"{name:<12}{seconds * 1e3:10.2f} ms{share:7.1f} %  {detail}".rstrip()

        lines = [
            line("step", self.total_s, ""),
            line("attention", self.attention_s, f"{self.num_forward} forward, {self.num_backward} backward passes"),
            line("  forward", self.forward_s, ""),
            line("  backward", self.backward_s, ""),
        ]
        if self.waited_s is not None:
            lines.append(line("  waits", self.waited_s, "exposed, of attention"))
        lines.append(line("planning", self.planning_s, "of the host"))
        if self.num_captured:
            lines.append(f"{self.num_captured} passes were captured by CUDA graphs, not run")
        return "\n".join(lines)


class Span:
    """One pass."""

    __slots__ = ("_begin", "_device", "_event", "duration", "kind", "waited_s")

    def __init__(self, kind: str, tensor: Any) -> None:
        self.kind = kind
        self.waited_s: float | None = 0.0
        self.duration: float | tuple[Any, Any] | None = None
        self._device = tensor.device
        self._event = _record(self._device) if tensor.is_cuda else None
        self._begin = time.perf_counter()

    def end(self, attention: Any = None) -> None:
        """attention: the executor over ranks, which knows how long it waited on the host."""
        if self._event is None:
            self.duration = time.perf_counter() - self._begin
            if attention is not None:
                waited_s = getattr(attention, "waited_s", None)
                self.waited_s = None if waited_s is None else waited_s(self.kind == "backward")
        else:
            self.duration = (self._event, _record(self._device))
            self.waited_s = None

    def seconds(self) -> float:
        """0 for a pass that raised."""
        if isinstance(self.duration, tuple):
            begin, end = self.duration
            return float(begin.elapsed_time(end)) * 1e-3
        return self.duration or 0.0


def _record(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class Meter:
    """Measures what runs within its block, on this rank; make it by `tangram.meter()`."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._planning: list[float] = []
        self._captured = 0
        self._edges: list[Any] = []
        self._times: list[float] = []
        self._report: MeterReport | None = None

    def __enter__(self) -> Meter:
        global current
        with _lock:
            if current is not None:
                raise InvalidArgument("meter: one block at a time is measured (got a block within another)")
            if self._times:
                raise InvalidArgument("meter: each block needs a meter of its own (got one that has measured)")
            current = self
        self._mark()
        return self

    def __exit__(self, *_: object) -> None:
        global current
        self._mark()
        current = None

    def _mark(self) -> None:
        self._times.append(time.perf_counter())
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            self._edges.append(_record(torch.cuda.current_device()))

    def begin(self, kind: str, tensor: Any) -> Span | None:
        if tensor.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing():
            self._captured += 1
            return None
        span = Span(kind, tensor)
        self._spans.append(span)
        return span

    def add_planning(self, seconds: float) -> None:
        self._planning.append(seconds)

    @property
    def ready(self) -> bool:
        """Whether `report` would wait for nothing."""
        ends = [span.duration[1] for span in list(self._spans) if isinstance(span.duration, tuple)]
        return len(self._times) == 2 and all(event.query() for event in (*ends, *self._edges))

    def report(self) -> MeterReport:
        """What was measured, after the block. Waits for the GPU if it has not run all of the block: read it a step
        later, or once `ready`, and nothing waits.

        Raises InvalidArgument within the block.
        """
        if len(self._times) != 2:
            raise InvalidArgument("meter: report must come after the block (got it before its end)")
        if self._report is not None:
            return self._report
        spans = self._spans
        on_gpu = [span for span in spans if isinstance(span.duration, tuple)]
        for span in on_gpu:
            span.duration[1].synchronize()  # type: ignore[index]
        total = self._times[1] - self._times[0]
        if on_gpu and len(self._edges) == 2:
            self._edges[1].synchronize()
            total = float(self._edges[0].elapsed_time(self._edges[1])) * 1e-3
        by_kind = {kind: [span.seconds() for span in spans if span.kind == kind] for kind in ("forward", "backward")}
        waits = [span.waited_s for span in spans]
        self._report = MeterReport(
            total_s=total,
            forward_s=sum(by_kind["forward"]),
            backward_s=sum(by_kind["backward"]),
            num_forward=len(by_kind["forward"]),
            num_backward=len(by_kind["backward"]),
            waited_s=None if None in waits else sum(wait or 0.0 for wait in waits),
            planning_s=sum(self._planning),
            num_captured=self._captured,
        )
        self._spans, self._edges = [], []  # their events
        return self._report

    def __str__(self) -> str:
        return str(self.report())


def meter() -> Meter:
    """Measures attention, exposed waits and planning of the block, such as a training step, on this rank.

        with tangram.meter() as step:
            loss = model(batch)
            loss.backward()
        ...
        print(step.report())

    On a GPU events are put on the streams of the passes; the block waits for nothing, and `report` reads them later. On
    the host the clock is read. Passes of CUDA graphs that are replayed do not come by Python and are not measured.
    Without a block nothing is recorded.
    """
    return Meter()


def begin(kind: str, tensor: Any) -> Span | None:
    """Before a pass on torch tensors; `end` of what it returns comes after it."""
    measures = current
    return None if measures is None else measures.begin(kind, tensor)


def planned(function: _F) -> _F:
    """Counts the time of `function` as planning, where a meter measures and no other such function calls it."""

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        measures = current
        if measures is None or kwargs.get("ahead") or getattr(_of_thread, "plans", False):
            return function(*args, **kwargs)
        _of_thread.plans = True
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            _of_thread.plans = False
            measures.add_planning(time.perf_counter() - begun)

    return timed  # type: ignore[return-value]
