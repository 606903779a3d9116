# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that are taken out of tensors, as runs: tens of them, where a table of rows has as many entries as a shard rows.

With a new mask at every step a table would be used once or twice. On a GPU it would be copied there, and the host would
wait. So few runs are taken one by one, and only of many a table is made: on a GPU by the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import _cuda
from ._core import RowRuns
from ._worker_thread import run_on_worker

INDEX_BYTES = 4
_FEW = 32
_ROWS_OF_RUN = 512
"""Rows of host memory for which a table saves as much time as a run costs."""


def expanded(runs: RowRuns, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The rows `[runs.rows]`, written by torch in the memory of `device` on the current stream."""
    few = torch.empty(2, len(runs), dtype=torch.int64)
    runs.write_runs(few)
    # From pageable memory: the host's values are taken before this returns, without a wait for the stream.
    offsets, lengths = few.to(device, non_blocking=True)
    rows = torch.repeat_interleave(offsets, lengths, output_size=runs.rows)
    return rows.add_(torch.arange(runs.rows, device=device)).to(dtype)


def written(runs: RowRuns, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The rows `[runs.rows]` in the memory of `device`."""
    if device.type == "cuda":
        _cuda.require_no_capture("the rows of a key", "tangram")
        return expanded(runs, dtype, device)
    rows = torch.empty(runs.rows, dtype=dtype)
    runs.write(rows)
    return rows.to(device)


@dataclass
class _OnGpu:
    """A table, and when it is written: streams other than the first must wait for that."""

    rows: Tensor
    stream: int
    end: torch.cuda.Event

    def for_current_stream(self) -> Tensor:
        # While a graph is captured earlier work may not be waited for; the caller synchronised before the capture.
        if _cuda.stream_of(self.rows) != self.stream and not _cuda.is_capturing():
            current = torch.cuda.current_stream(self.rows.device)
            current.wait_event(self.end)
            self.rows.record_stream(current)
        return self.rows


class RowTable:
    """Rows in an order, written out. int32 where they only index."""

    def __init__(self, runs: RowRuns, dtype: torch.dtype = torch.int32) -> None:
        self._runs = runs
        self._dtype = dtype
        self._on_host: Tensor | None = None
        self._on_gpus: dict[torch.device, _OnGpu] = {}

    def at(self, device: torch.device) -> Tensor:
        """The table in the memory of `device`, made there once."""
        if device.type == "cuda":
            return self._on_gpu(device).for_current_stream()
        if self._on_host is None:
            self._on_host = run_on_worker(lambda: written(self._runs, self._dtype, torch.device("cpu")))
        return self._on_host.to(device)

    def copy_at(self, device: torch.device) -> Tensor:
        """A tensor of its own, of which host memory keeps no other."""
        return self.at(device).clone() if device.type == "cuda" else written(self._runs, self._dtype, device)

    def _on_gpu(self, device: torch.device) -> _OnGpu:
        known = self._on_gpus.get(device)
        if known is None:
            rows = written(self._runs, self._dtype, device)
            end = torch.cuda.Event()  # type: ignore[no-untyped-call]
            end.record(torch.cuda.current_stream(device))
            known = self._on_gpus.setdefault(device, _OnGpu(rows, _cuda.stream_of(rows), end))
        return known


class RowPicks:
    """Rows to be taken out of tensors, in an order."""

    def __init__(self, runs: RowRuns) -> None:
        self._rows = runs.rows
        most_runs = max(_FEW, runs.rows // _ROWS_OF_RUN)
        self._ranges = runs.ranges() if len(runs) <= most_runs else None
        self._table = RowTable(runs)

    def __len__(self) -> int:
        return self._rows

    def of(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """The picked rows of `x`, `[len(self), ...]`, in memory of their own, and behind them those of `padding`."""
        ranges = self._ranges
        if ranges and (len(ranges) <= _FEW or not x.is_cuda):
            parts = [x[begin:end] for begin, end in ranges]
        else:
            parts = [x.index_select(0, self._table.at(x.device))]
            if padding is None:
                return parts[0]
        if padding is not None:
            parts.append(padding)
        return torch.cat(parts)
