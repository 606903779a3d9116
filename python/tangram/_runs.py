# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of visible keys, row by row, as few slices.

Going down the rows of a slice, its left edge stays at the begin of the rectangle and then moves by one key a row. Its
right edge moves by one key a row and then stays. A chain of runs whose edges do so is one slice. Chains are followed
from row to row, and end where an edge moves otherwise.
"""

from __future__ import annotations

from typing import Any

from ._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from .errors import InvalidArgument

FEW_SLICES = 1024
"""So many slices are taken whatever they hold."""
CELLS_OF_A_SLICE = 256
"""Visible cells that slices must hold on average where there are more."""
_HOPELESS = 1 << 20
"""Slices at which reading stops."""


class RunsToSlices:
    """Takes the rows of a mask in order and makes slices. NumPy is passed in, so that the package imports without."""

    def __init__(self, numpy: Any, function: str) -> None:
        self._np = numpy
        self._function = function
        self._row = 0
        self._closed: list[Any] = []
        self._num_slices = 0
        self._num_runs = 0
        self._area = 0
        self._start_chains(numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64))

    def add(self, begin: Any, end: Any) -> None:
        """The next row: its runs `[begin, end)`, rising, with gaps between them; int64 arrays."""
        np, old = self._np, self._begin
        self._num_runs += len(begin)
        self._area += int((end - begin).sum())
        if len(begin) == len(old) and np.array_equal(begin, old) and np.array_equal(end, self._end):
            if not self._left_moves.any():  # as in blocks: no chain ends
                self._right_stays = np.ones(len(begin), bool)
                self._row += 1
                return
        place = np.zeros(len(begin), np.int64)
        goes_on = np.zeros(len(begin), bool)
        if len(old):
            place = np.maximum(np.searchsorted(old, begin, side="right") - 1, 0)
            left, right = begin - old[place], end - self._end[place]
            goes_on = ((left == 0) & ~self._left_moves[place]) | (left == 1)
            goes_on &= (right == 0) | ((right == 1) & ~self._right_stays[place])
        ends = np.ones(len(old), bool)
        ends[place[goes_on]] = False
        self._close(ends)
        before = (self._first_row, self._first_begin, self._first_end, self._left_moves, self._right_stays)
        self._start_chains(begin, end)
        if goes_on.any():
            of = place[goes_on]
            self._first_row[goes_on], self._first_begin[goes_on] = before[0][of], before[1][of]
            self._first_end[goes_on] = before[2][of]
            self._left_moves[goes_on] = before[3][of] | (left[goes_on] == 1)
            self._right_stays[goes_on] = before[4][of] | (right[goes_on] == 0)
        self._row += 1

    def mask(self, seqlen_k: int, max_slices: int | None) -> Mask:
        """Mask of all rows that were added."""
        self._close(self._np.ones(len(self._begin), bool))
        self._require_few(max_slices)
        seqlen_q = self._row
        slices = [
            AttnSlice(Range(q0, q1), Range(k0, k1), low, high)
            for q0, q1, k0, k1, low, high in (row for part in self._closed for row in part.tolist())
        ]
        return Mask(seqlen_q, seqlen_k, slices)

    def _start_chains(self, begin: Any, end: Any) -> None:
        np = self._np
        self._begin, self._end = begin, end  # of the latest row
        self._first_row = np.full(len(begin), self._row, np.int64)
        self._first_begin, self._first_end = begin.copy(), end.copy()
        self._left_moves = np.zeros(len(begin), bool)
        self._right_stays = np.zeros(len(begin), bool)

    def _close(self, which: Any) -> None:
        np = self._np
        count = int(which.sum())
        if count == 0:
            return
        k1, q0 = self._end[which], self._first_row[which]
        low = np.where(self._left_moves[which], self._begin[which] - (self._row - 1), OPEN_MIN_DIAG)
        high = np.where(k1 > self._first_end[which], self._first_end[which] - 1 - q0, OPEN_MAX_DIAG)
        q1 = np.full(count, self._row, np.int64)
        self._closed.append(np.stack([q0, q1, self._first_begin[which], k1, low, high], 1))
        self._num_slices += count
        if self._num_slices > _HOPELESS:
            self._require_few(None)

    def _require_few(self, max_slices: int | None) -> None:
        most = max(FEW_SLICES, self._area // CELLS_OF_A_SLICE) if max_slices is None else max_slices
        if self._num_slices > most:
            mean = self._area / self._num_slices
            raise InvalidArgument(
                f"{self._function}: the mask must be made of few rectangles and bands: {self._num_slices} slices of "
                f"{mean:.1f} visible cells on average are too irregular for kernels that work on tiles, "
                f"{self._num_runs / max(1, self._row):.1f} runs of keys a row; use dense attention, or pass "
                f"max_slices (got {self._num_slices} slices, max_slices={most})"
            )
