# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A half-open range of rows, with the names of the published API: start, end, seqlen."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TypeAlias

from ..errors import InvalidArgument

NaiveRange: TypeAlias = Sequence[int]
"""(start, end)."""


class RangeError(Exception):
    """A range that ends before it starts."""


class AttnRange:
    """Rows `[start, end)`. Mutable: `start` and `end` may be set, and are not checked then, so that both can be moved
    one after the other."""

    __slots__ = ("_start", "_end")

    def __init__(self, start: int, end: int) -> None:
        try:
            start, end = index(start), index(end)
        except TypeError:
            raise InvalidArgument(
                f"AttnRange: start and end must be integers (got start={start!r:.60}, end={end!r:.60})"
            ) from None
        self.check_valid(start, end)
        self._start, self._end = start, end

    @property
    def start(self) -> int:
        return self._start

    @start.setter
    def start(self, value: int) -> None:
        self._start = value

    @property
    def end(self) -> int:
        return self._end

    @end.setter
    def end(self, value: int) -> None:
        self._end = value

    @property
    def seqlen(self) -> int:
        """Number of rows."""
        return self._end - self._start

    @staticmethod
    def from_range(attn_range: NaiveRange | AttnRange, check: bool = False) -> AttnRange:
        """A copy of a range, or one of a pair. Raises RangeError when it ends before it starts."""
        if isinstance(attn_range, AttnRange):
            return attn_range.clone()
        try:
            start, end = attn_range
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"AttnRange: a range must be an AttnRange or a pair (start, end) (got {attn_range!r:.60})"
            ) from None
        return AttnRange(start, end)

    def to_naive_range(self) -> tuple[int, int]:
        return (self._start, self._end)

    def clone(self) -> AttnRange:
        return AttnRange(self._start, self._end)

    def offset(self, offset: int) -> AttnRange:
        """The range moved by so many rows."""
        return AttnRange(self._start + offset, self._end + offset)

    def truncate(self, start: int | None = None, end: int | None = None) -> AttnRange:
        """The part within `[start, end)`; None bounds nothing. Empty where there is none."""
        low = self._start if start is None else max(self._start, start)
        high = self._end if end is None else min(self._end, end)
        return AttnRange(low, max(low, high))

    def intersect(self, other: AttnRange) -> AttnRange:
        """Rows of both; empty where there are none."""
        end = min(self._end, other._end)
        return AttnRange(min(max(self._start, other._start), end), end)

    def intersect_size(self, other: AttnRange) -> int:
        return self.intersect(other).seqlen

    def union(self, other: AttnRange) -> list[AttnRange]:
        """One range where the two share rows, otherwise both."""
        if self.is_empty() or other.is_empty():
            return [self, other]
        for inner, outer in ((self, other), (other, self)):
            if inner.is_subrange_of(outer):
                return [outer]
        if not self.is_overlap_with(other):
            return [self, other]
        return [AttnRange(min(self._start, other._start), max(self._end, other._end))]

    def union_size(self, other: AttnRange) -> int:
        return sum(part.seqlen for part in self.union(other))

    def diff_by(self, other: AttnRange) -> list[AttnRange]:
        """Rows of `other` that are not in this range: none, one or two ranges."""
        before = (other._start, min(other._end, self._start))
        behind = (max(other._start, self._end), other._end)
        if not self.is_overlap_with(other):
            return [] if other.is_empty() else [other.clone()]
        return [AttnRange(start, end) for start, end in (before, behind) if start < end]

    def is_subrange_of(self, other: AttnRange) -> bool:
        return other._start <= self._start and self._end <= other._end

    def is_overlap_with(self, other: AttnRange) -> bool:
        return self._start < other._end and other._start < self._end

    def is_empty(self) -> bool:
        return self._start == self._end

    def is_valid_close(self, start: int | None = None, end: int | None = None) -> bool:
        """Whether start <= end, with other values than the range's own where they are given."""
        low, high = self._given(start, end)
        return low <= high

    def is_valid_open(self, start: int | None = None, end: int | None = None) -> bool:
        """Whether start < end."""
        low, high = self._given(start, end)
        return low < high

    def check_valid(self, start: int | None = None, end: int | None = None) -> None:
        """Raises RangeError unless start <= end."""
        if not self.is_valid_close(start, end):
            low, high = self._given(start, end)
            raise RangeError(f"AttnRange: start must not exceed end (got start={low}, end={high})")

    def _given(self, start: int | None, end: int | None) -> tuple[int, int]:
        return (self._start if start is None else start, self._end if end is None else end)

    def __len__(self) -> int:
        return self.seqlen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttnRange) and self.to_naive_range() == other.to_naive_range()

    def __hash__(self) -> int:
        return hash((self._start, self._end))

    def __repr__(self) -> str:
        return f"[{self._start}, {self._end})"


RangeType: TypeAlias = AttnRange | NaiveRange
