# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""`tangram doctor --run`: all checks one after the other, progress on stderr, a summary, a report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .. import _backends
from .._core import list_backends
from ..errors import NotAvailable
from . import _machine, _rates
from ._cases import Case, all_cases
from ._check import Outcome, run_case
from ._checks import repeats_bits, replays_graph, two_ranks

_ROWS = {"cuda": 512, "cpu": 64}
_RATE_ROWS = {"cuda": 8192, "cpu": 256}
_MAX_RATES_S = 60.0
"""Rates begin so many seconds before the end at the latest: FlexAttention takes long to compile."""
_TOTAL_S = 100.0
REPORT_FORMAT = 1


def computing_backend(name: str | None) -> tuple[str, torch.device]:
    """The backend to check and where its tensors lie; None: the best of this machine.

    Raises InvalidArgument for an unknown one, NotAvailable for one that cannot run here.
    """
    on_gpu = bool(_backends.gpu_backends())
    if name is not None:
        on_gpu = any(info.name == name and info.on_gpu for info in list_backends())
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu and torch.cuda.is_available() else None
    if on_gpu and device is None:
        raise NotAvailable("doctor: needs a torch with CUDA for a backend of GPUs (got one without)")
    backend = _backends.backend_named(name, on_gpu, -1 if device is None else device.index)
    return backend.name, device or torch.device("cpu")


def checks(backend: str, device: torch.device, with_ranks: bool) -> Iterator[Callable[[], Outcome]]:
    """In order."""
    rows = _ROWS[device.type]
    for case in all_cases():
        yield lambda case=case: run_case(case, rows, device, backend)  # type: ignore[misc]
    of_graphs = Case("documents, dim 128", "documents")
    buffered = replace(of_graphs, name="mask buffer, dim 64", dims=(64, 64), how="buffer")
    for case in (
        replace(of_graphs, deterministic=True),
        replace(
            of_graphs,
            name="window, dim 64, fp16",
            mask="window",
            dims=(64, 64),
            dtype=torch.float16,
            deterministic=True,
        ),
        replace(of_graphs, name="causal, dim 256", mask="causal", dims=(256, 256), deterministic=True),
        replace(buffered, deterministic=True),
    ):
        yield lambda case=case: repeats_bits(case, rows, device, backend)  # type: ignore[misc]
    if device.type == "cuda":
        for case in (of_graphs, buffered):
            yield lambda case=case: replays_graph(case, rows, device, backend)  # type: ignore[misc]
    if with_ranks and (device.type == "cpu" or torch.cuda.device_count() > 1):
        yield lambda: two_ranks(device.type == "cuda", rows, backend)


class Progress:
    """A line on stderr that says how far it is; in logs one line every ten seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started = self._shown = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def step(self, name: str) -> None:
        self._done += 1
        now = time.monotonic()
        line = f"{self._done}/{self._total} checks, {now - self._started:.0f} s: {name}"
        if self._on_terminal:
            print(f"\r\x1b[K{line:.100}", end="", file=sys.stderr, flush=True)
        elif now - self._shown >= 10:
            self._shown = now
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    errors = {name: {"error": error, "bound": bound} for name, (error, bound) in outcome.errors.items()}
    entry: dict[str, Any] = {"name": outcome.name, "status": outcome.status, "seconds": round(outcome.seconds, 4)}
    why = outcome.failed or outcome.refused
    return entry | ({"why": why} if why else {}) | {"errors": errors}


def worst_errors(outcomes: list[Outcome]) -> str:
    """The error of each result that is nearest to its bound."""
    worst: dict[str, tuple[float, float, str]] = {}
    for outcome in outcomes:
        for name, (error, bound) in outcome.errors.items():
            if name not in worst or not error / bound <= worst[name][0] / worst[name][1]:
                worst[name] = (error, bound, outcome.name)
    return "\n".join(f"  {name:<10} {error:.2g} of {bound:.2g}  {case}" for name, (error, bound, case) in worst.items())


def run(name: str | None, report: str | None, with_ranks: bool = True) -> int:
    """The exit status: 0, or 1 where a check failed."""
    started = time.monotonic()
    backend, device = computing_backend(name)
    of_device = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"checking backend {backend} on {of_device}, at most two minutes", flush=True)
    for line in _machine.override_lines(name):
        print(f"  override: {line}")
    todo = list(checks(backend, device, with_ranks))
    progress = Progress(len(todo))
    outcomes = []
    for check in todo:
        begun = time.monotonic()
        outcome = check()
        outcome.seconds = time.monotonic() - begun
        outcomes.append(outcome)
        progress.step(outcome.name)
    progress.end()
    checked_s = time.monotonic() - started
    deadline = max(time.monotonic() + 5, min(started + _TOTAL_S, time.monotonic() + _MAX_RATES_S))
    measured = list(_rates.rates(device, backend, _RATE_ROWS[device.type], deadline))
    failed = [outcome for outcome in outcomes if outcome.failed]
    refused = [outcome for outcome in outcomes if outcome.refused]
    passed = len(outcomes) - len(failed) - len(refused)
    print(f"{passed} passed, {len(failed)} failed, {len(refused)} refused by the backend ({checked_s:.0f} s)")
    for outcome in failed:
        print(f"  FAILED {outcome.name}: {outcome.failed}")
    for why, names in _by_reason(refused).items():
        print(f"  refused {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}")
    print(f"largest errors beside their bounds\n{worst_errors(outcomes)}")
    print(f"rates in bfloat16, {_RATE_ROWS[device.type]} rows\n{_rates.table(measured)}")
    if report is not None:
        contents = {
            "format": REPORT_FORMAT,
            "machine": _machine.as_json(name),
            "backend": backend,
            "device": of_device,
            "passed": not failed,
            "seconds": round(time.monotonic() - started, 1),
            "cases": [_as_json(outcome) for outcome in outcomes],
            "rates": [rate.as_json() for rate in measured],
        }
        Path(report).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
        print(f"written to {report}: attach it to an issue of the project, whose title names the GPU")
    else:
        print("--report FILE writes this as JSON, to be attached to an issue of the project")
    return 1 if failed else 0


def _by_reason(refused: list[Outcome]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for outcome in refused:
        names.setdefault(outcome.refused, []).append(outcome.name)
    return names
