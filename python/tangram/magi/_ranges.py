# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A list of ranges with the names of the published API: built, cut, merged, and mapped to rows that lie compact."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ._range import AttnRange, NaiveRange, RangeType

NaiveRanges: TypeAlias = Sequence[NaiveRange]


def is_valid_cu_seqlens(cu_seqlens: Sequence[int], seq_len: int) -> bool:
    """Whether borders rise from 0 to seq_len; none at all are valid."""
    if len(cu_seqlens) == 0:
        return True
    rises = all(a < b for a, b in zip(cu_seqlens, cu_seqlens[1:], strict=False))
    return cu_seqlens[0] == 0 and cu_seqlens[-1] == seq_len and rises


def check_valid_cu_seqlens(cu_seqlens: Sequence[int], seq_len: int) -> None:
    """Raises InvalidArgument, a ValueError, unless is_valid_cu_seqlens."""
    if not is_valid_cu_seqlens(cu_seqlens, seq_len):
        raise InvalidArgument(
            f"AttnRanges.from_cu_seqlens: cu_seqlens must rise from 0 to seq_len={seq_len}, without equal values "
            f"(got cu_seqlens={list(cu_seqlens)[:8]}, {len(cu_seqlens)} values)"
        )


class AttnRanges:
    """Ranges in the order in which they were put in; they may overlap.

    *Sorted*: by start. *Merged*: sorted, and no two touch. Local rows are those of the merged ranges laid side by side:
    of `[[5, 10), [15, 20)]` the global row 15 is the local row 5.
    """

    def __init__(self) -> None:
        self._ranges: list[AttnRange] = []

    # ---- making ----

    @staticmethod
    def from_ranges(ranges: Iterable[RangeType] | AttnRanges, check: bool = False) -> AttnRanges:
        """Makes ranges from pairs or ranges, or copies others. Raises RangeError when one ends before it starts."""
        made = AttnRanges()
        made._ranges = [AttnRange.from_range(each) for each in ranges]
        if check:
            made.check_valid()
        return made

    @staticmethod
    def from_cu_seqlens(cu_seqlens: Sequence[int], seq_len: int) -> AttnRanges:
        """Documents by their borders, which rise from 0 to seq_len; raises ValueError otherwise."""
        check_valid_cu_seqlens(cu_seqlens, seq_len)
        return AttnRanges.from_ranges(list(zip(cu_seqlens, cu_seqlens[1:], strict=False)))

    def clone(self) -> AttnRanges:
        return AttnRanges.from_ranges(self)

    # ---- changing ----

    def append(self, attn_range: AttnRange, check: bool = False) -> None:
        if check:
            attn_range.check_valid()
        self._ranges.append(attn_range)

    def insert(self, idx: int, attn_range: AttnRange, check: bool = False) -> None:
        """Before position idx; behind all where there is none."""
        if check:
            attn_range.check_valid()
        self._ranges.insert(idx, attn_range)

    def extend(self, attn_ranges: AttnRanges, check: bool = False) -> None:
        if check:
            attn_ranges.check_valid()
        self._ranges.extend(attn_ranges._ranges)

    def pop(self, idx: int = -1) -> AttnRange:
        """Takes one out. Raises IndexError where there is none."""
        if self.is_empty():
            raise IndexError("AttnRanges.pop: there must be a range (got none)")
        return self._ranges.pop(idx)

    # ---- others made of these ----

    def clear_empty(self) -> AttnRanges:
        """The ranges that have rows."""
        return _of(each for each in self._ranges if not each.is_empty())

    def sort(self) -> AttnRanges:
        """Copies by start; what starts at one row keeps its order."""
        return _of(each.clone() for each in sorted(self._ranges, key=lambda each: each.start))

    def merge(self) -> AttnRanges:
        """Sorted, what overlaps or touches made one."""
        merged: list[AttnRange] = []
        for each in self.sort()._ranges:
            if merged and each.start <= merged[-1].end:
                merged[-1].end = max(merged[-1].end, each.end)
            else:
                merged.append(each)
        return _of(merged)

    def merge_with_split_alignment(self, split_alignment: int = 1) -> AttnRanges:
        """merge of ranges whose ends move out to multiples of split_alignment."""
        if not isinstance(split_alignment, int) or split_alignment < 1:
            raise InvalidArgument(
                "AttnRanges.merge_with_split_alignment: split_alignment must be a whole number from 1 on "
                f"(got split_alignment={split_alignment!r})"
            )
        unit = split_alignment
        return _of(AttnRange(each.start // unit * unit, -(-each.end // unit) * unit) for each in self._ranges).merge()

    def chunk(self, chunk_size: int, check: bool = True) -> list[AttnRanges]:
        """Cut in order into lists of chunk_size rows, the last one shorter. They must not overlap."""
        if check and not self.is_non_overlap():
            raise InvalidArgument(f"AttnRanges.chunk: ranges must not overlap (got {self!r:.200})")
        chunks: list[AttnRanges] = []
        room = 0
        for each in self._ranges:
            start = each.start
            while start < each.end:
                if room == 0:
                    chunks.append(AttnRanges())
                    room = chunk_size
                end = min(each.end, start + room)
                chunks[-1].append(AttnRange(start, end))
                room -= end - start
                start = end
        return chunks

    def truncate(self, start: int | None = None, end: int | None = None) -> AttnRanges:
        """The parts within `[start, end)`, those without rows left out."""
        return _of(each.truncate(start, end) for each in self._ranges).clear_empty()

    def find_hole_ranges(
        self, other_attn_ranges: AttnRanges, is_self_merged: bool = False, is_other_merged: bool = False
    ) -> AttnRanges:
        """Rows of these that are not in the others, merged."""
        mine = self if is_self_merged else self.merge()
        others = list(other_attn_ranges if is_other_merged else other_attn_ranges.merge())
        holes = AttnRanges()
        at = 0
        for each in mine:
            start = each.start
            while at < len(others) and others[at].end <= start:
                at += 1
            for other in others[at:]:
                if other.start >= each.end:
                    break
                if start < other.start:
                    holes.append(AttnRange(start, other.start))
                start = max(start, other.end)
            if start < each.end:
                holes.append(AttnRange(start, each.end))
        return holes

    def find_overlap_ranges(
        self, other_attn_ranges: AttnRanges, is_self_merged: bool = False, is_other_merged: bool = False
    ) -> AttnRanges:
        """Rows of these and of the others, merged."""
        mine = list(self if is_self_merged else self.merge())
        others = list(other_attn_ranges if is_other_merged else other_attn_ranges.merge())
        found = AttnRanges()
        i = j = 0
        while i < len(mine) and j < len(others):
            if mine[i].is_overlap_with(others[j]):
                found.append(mine[i].intersect(others[j]))
            if mine[i].end > others[j].end:
                j += 1
            else:
                i += 1
        return found

    # ---- local rows ----

    def make_range_local(
        self, other_attn_range: AttnRange, is_self_merged: bool = False, prefix_offset: list[int] | None = None
    ) -> tuple[AttnRange, AttnRange]:
        """Where a range lies among these rows laid side by side, and the merged range that holds it.

        Args:
            is_self_merged: saves the merging. prefix_offset: the local row at which each merged range begins.

        Raises ValueError when the range is not within one merged range.
        """
        merged = self if is_self_merged else self.merge()
        offsets = _offsets(merged) if prefix_offset is None else prefix_offset
        place = bisect_right([each.start for each in merged], other_attn_range.start) - 1
        if place < 0 or not other_attn_range.is_subrange_of(merged[place]):
            raise InvalidArgument(
                f"AttnRanges.make_range_local: the range must lie within one of the merged ranges {merged!r:.200} "
                f"(got {other_attn_range})"
            )
        return other_attn_range.offset(offsets[place] - merged[place].start), merged[place]

    def make_ranges_local(self, other_attn_ranges: AttnRanges, is_self_merged: bool = False) -> AttnRanges:
        """make_range_local for each of the others, in their order."""
        merged = self if is_self_merged else self.merge()
        offsets = _offsets(merged)
        return _of(merged.make_range_local(each, True, offsets)[0] for each in other_attn_ranges)

    # ---- asking ----

    def is_valid(self) -> bool:
        return all(each.is_valid_close() for each in self._ranges)

    def check_valid(self) -> None:
        """Raises ValueError when one ends before it starts."""
        if not self.is_valid():
            raise InvalidArgument(f"AttnRanges: start must not exceed end (got {self!r:.200})")

    def is_sorted(self) -> bool:
        return all(a.start <= b.start for a, b in self._neighbours())

    def is_merged(self) -> bool:
        return self.is_sorted() and all(a.end < b.start for a, b in self._neighbours())

    def is_non_overlap(self) -> bool:
        return self.total_seqlen == self.merge().total_seqlen

    def is_cu_seqlens(self, seqlen: int) -> bool:
        """Whether they are documents one after the other from 0 to seqlen."""
        if self.is_empty():
            return seqlen == 0
        touch = all(a.end == b.start for a, b in self._neighbours())
        return self._ranges[0].start == 0 and touch and self._ranges[-1].end == seqlen

    def _neighbours(self) -> Iterator[tuple[AttnRange, AttnRange]]:
        return zip(self._ranges, self._ranges[1:], strict=False)

    def intersect_size(self) -> int:
        """Rows that more than one range covers, each counted once less than it is covered."""
        return _covered_again(self._ranges, None)

    def intersect_size_with(self, other: AttnRanges) -> int:
        """Sum of sizes over both lists, counting only rows that both cover."""
        return _covered_again(self._ranges, other._ranges)

    def union_size(self) -> int:
        return self.total_seqlen

    def union_size_with(self, other: AttnRanges) -> int:
        return self.total_seqlen + other.total_seqlen

    @property
    def total_seqlen(self) -> int:
        """Rows of all ranges added up."""
        return sum(each.seqlen for each in self._ranges)

    @property
    def max_seqlen(self) -> int:
        """Rows of the longest; 0 without ranges."""
        return max((each.seqlen for each in self._ranges), default=0)

    @property
    def start(self) -> int:
        """The first row. Raises ValueError without ranges."""
        self._require_some("start")
        return min(each.start for each in self._ranges)

    @property
    def end(self) -> int:
        """Behind the last row. Raises ValueError without ranges."""
        self._require_some("end")
        return max(each.end for each in self._ranges)

    def _require_some(self, name: str) -> None:
        if self.is_empty():
            raise InvalidArgument(f"AttnRanges.{name}: there must be a range (got none)")

    @property
    def size(self) -> int:
        return len(self._ranges)

    @property
    def points(self) -> list[int]:
        """All starts and ends, rising, each once."""
        return sorted({point for each in self._ranges for point in each.to_naive_range()})

    def is_empty(self) -> bool:
        return not self._ranges

    # ---- other forms ----

    def to_naive_ranges(self) -> list[tuple[int, int]]:
        return [each.to_naive_range() for each in self._ranges]

    def to_cu_seqlens(self, seq_len: int) -> list[int]:
        """Borders of documents. Raises ValueError unless is_cu_seqlens."""
        if not self.is_cu_seqlens(seq_len):
            raise InvalidArgument(
                f"AttnRanges.to_cu_seqlens: ranges must follow each other from 0 to seq_len={seq_len} "
                f"(got {self!r:.200})"
            )
        return [0, *(each.end for each in self._ranges)]

    def to_tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """`[n, 2]` int32."""
        return torch.tensor(self.to_naive_ranges(), dtype=torch.int32, device=device).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._ranges)

    @overload
    def __getitem__(self, idx: int) -> AttnRange: ...
    @overload
    def __getitem__(self, idx: slice) -> AttnRanges: ...
    def __getitem__(self, idx: int | slice) -> AttnRange | AttnRanges:
        """A range; of a slice a list of the same objects."""
        return _of(self._ranges[idx]) if isinstance(idx, slice) else self._ranges[idx]

    def __setitem__(self, idx: int | slice, value: AttnRange | AttnRanges) -> None:
        if isinstance(idx, int) and isinstance(value, AttnRange):
            self._ranges[idx] = value
            return
        if not isinstance(idx, slice) or not isinstance(value, AttnRanges):
            raise InvalidArgument(
                f"AttnRanges: a position takes an AttnRange, a slice AttnRanges (got {idx} and {value!r:.200})"
            )
        start, stop = idx.start, idx.stop
        # Published behaviour: the ends that are named count, even behind the last range, where a list grows.
        wanted = len(self._ranges[idx]) if start is None or stop is None else stop - start
        if wanted != len(value):
            raise InvalidArgument(
                f"AttnRanges: a slice takes as many AttnRanges as it names, {wanted} (got {idx} and {value!r:.200})"
            )
        self._ranges[idx] = value._ranges

    def __iter__(self) -> Iterator[AttnRange]:
        return iter(self._ranges)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, AttnRanges) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges))

    def __repr__(self) -> str:
        return repr(self._ranges) if self._ranges else "[[,)]"  # not that of an empty list


def _of(ranges: Iterable[AttnRange]) -> AttnRanges:
    """List that holds the given objects themselves."""
    made = AttnRanges()
    made._ranges = list(ranges)
    return made


def _offsets(merged: AttnRanges) -> list[int]:
    offsets, at = [], 0
    for each in merged:
        offsets.append(at)
        at += each.seqlen
    return offsets


def _covered_again(ranges: list[AttnRange], others: list[AttnRange] | None) -> int:
    """Sum over rows of (number of ranges that cover it) - 1; with others, over rows that both lists cover."""
    events: list[tuple[int, int, int]] = []
    for which, each_list in enumerate((ranges, others or [])):
        for each in each_list:
            events += [(each.start, which, 1), (each.end, which, -1)]
    counts = [0, 0]
    size = last = 0
    for row, which, change in sorted(events):
        again = sum(counts) - 1
        if again > 0 and (others is None or min(counts) > 0):
            size += again * (row - last)
        counts[which] += change
        last = row
    return size


RangesType: TypeAlias = AttnRanges | NaiveRanges
