# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""AttnRectangle and AttnRectangles of the published API: parts of a mask by ranges of queries, keys and diagonals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from .. import _core
from ..errors import InvalidArgument
from ._enums import AttnMaskType
from ._range import AttnRange, RangeType
from ._ranges import AttnRanges

_FAR = 10**9
"""Beyond all diagonals."""


class AttnRectangle:
    """Cells (i, j) with i in q_range, j in k_range and `d_range.start <= j - i <= d_range.end`; both ends count.

    Made from a type of mask, or with its own range of diagonals. Ranges shrink to what the others leave, so that each
    row, key and diagonal has a cell, where there is any. Ranges that are passed stay as they are.
    """

    def __init__(
        self,
        q_range: AttnRange,
        k_range: AttnRange,
        d_range: AttnRange | None = None,
        mask_type: AttnMaskType | int = AttnMaskType.FULL,
    ) -> None:
        if not isinstance(mask_type, (AttnMaskType, int)):
            raise TypeError(f"AttnRectangle: mask_type must be AttnMaskType or 0 to 3 (got {mask_type!r})")
        kind = AttnMaskType.from_int_type(mask_type) if isinstance(mask_type, int) else mask_type
        self._q_range, self._k_range = q_range.clone(), k_range.clone()
        self._d_range = AttnRange(-_FAR, _FAR) if d_range is None else d_range.clone()
        if kind in (AttnMaskType.CAUSAL, AttnMaskType.BICAUSAL):
            self._d_range.end = min(self._d_range.end, k_range.end - q_range.end)
        if kind in (AttnMaskType.INVCAUSAL, AttnMaskType.BICAUSAL):
            self._d_range.start = max(self._d_range.start, k_range.start - q_range.start)
        self.shrink_d_range()
        self.shrink_q_range()
        self.shrink_k_range()
        self.check_valid()

    # ---- ranges ----

    @property
    def q_range(self) -> AttnRange:
        return self._q_range

    @q_range.setter
    def q_range(self, value: AttnRange) -> None:
        self.check_valid(q_range=value)
        self._q_range = value

    @property
    def k_range(self) -> AttnRange:
        return self._k_range

    @k_range.setter
    def k_range(self, value: AttnRange) -> None:
        self.check_valid(k_range=value)
        self._k_range = value

    @property
    def d_range(self) -> AttnRange:
        return self._d_range

    @d_range.setter
    def d_range(self, value: AttnRange) -> None:
        self.check_valid(d_range=value)
        self._d_range = value

    def is_valid(
        self, q_range: AttnRange | None = None, k_range: AttnRange | None = None, d_range: AttnRange | None = None
    ) -> bool:
        """Whether there are rows, keys and a diagonal, with other ranges than its own where they are given."""
        q, k = q_range or self._q_range, k_range or self._k_range
        d = self._d_range if d_range is None else d_range  # a range of one diagonal has the length 0
        return q.is_valid_open() and k.is_valid_open() and d.is_valid_close()

    def check_valid(
        self, q_range: AttnRange | None = None, k_range: AttnRange | None = None, d_range: AttnRange | None = None
    ) -> None:
        """Raises ValueError unless is_valid."""
        if not self.is_valid(q_range, k_range, d_range):
            got = (q_range or self._q_range, k_range or self._k_range, self._d_range if d_range is None else d_range)
            raise InvalidArgument(
                f"AttnRectangle: there must be a row, a key and a diagonal (got {got[0]}, {got[1]} and {got[2]})"
            )

    def get_valid_or_none(self) -> AttnRectangle | None:
        return self if self.is_valid() else None

    def shrink_d_range(self) -> bool:
        """Leaves out diagonals outside of the rectangle; whether any is left."""
        q, k, d = self._q_range, self._k_range, self._d_range
        d.start, d.end = max(d.start, k.start - (q.end - 1)), min(d.end, k.end - 1 - q.start)
        return d.is_valid_close()

    def shrink_q_range(self) -> bool:
        """Leaves out rows without cells; whether any is left."""
        q, k, d = self._q_range, self._k_range, self._d_range
        q.start, q.end = max(q.start, k.start - d.end), min(q.end, k.end - d.start)
        return q.is_valid_open()

    def shrink_k_range(self) -> bool:
        """Leaves out keys without cells; whether any is left."""
        q, k, d = self._q_range, self._k_range, self._d_range
        k.start, k.end = max(k.start, d.start + q.start), min(k.end, d.end + q.end)
        return k.is_valid_open()

    def clone(self) -> AttnRectangle:
        made = AttnRectangle.__new__(AttnRectangle)
        made._q_range, made._k_range = self._q_range.clone(), self._k_range.clone()
        made._d_range = self._d_range.clone()
        return made

    # ---- parts ----

    def _within(self, rows: tuple[int, int] | None, keys: tuple[int, int] | None) -> AttnRectangle:
        part = self.clone()
        for each, bounds in ((part._q_range, rows), (part._k_range, keys)):
            if bounds is not None:
                each.start, each.end = max(each.start, bounds[0]), min(each.end, bounds[1])
        part.shrink_d_range()
        if rows is None:
            part.shrink_q_range()
        else:
            part.shrink_k_range()
        return part

    def cut_q(self, cut_pos: int) -> tuple[AttnRectangle | None, AttnRectangle | None]:
        """The parts before and from row cut_pos on; None: has no row."""
        if cut_pos <= self._q_range.start:
            return None, self
        if cut_pos >= self._q_range.end:
            return self, None
        return self._within((-_FAR, cut_pos), None), self._within((cut_pos, _FAR), None)

    def cut_k(self, cut_pos: int) -> tuple[AttnRectangle | None, AttnRectangle | None]:
        """The parts before and from key cut_pos on; None: has no key."""
        if cut_pos <= self._k_range.start:
            return None, self
        if cut_pos >= self._k_range.end:
            return self, None
        return self._within(None, (-_FAR, cut_pos)), self._within(None, (cut_pos, _FAR))

    def get_rect_within_q_segment(self, q_start: int, q_end: int) -> AttnRectangle | None:
        """The part within rows `[q_start, q_end)`; None: there is none."""
        apart = q_end <= self._q_range.start or q_start >= self._q_range.end
        return None if apart else self._within((q_start, q_end), None)

    def get_rect_within_k_segment(self, k_start: int, k_end: int) -> AttnRectangle | None:
        """The part within keys `[k_start, k_end)`; None: there is none."""
        apart = k_end <= self._k_range.start or k_start >= self._k_range.end
        return None if apart else self._within(None, (k_start, k_end))

    def intersection_q_id_on_left_boundary(self) -> int:
        """The row in which the lowest diagonal meets the first key."""
        return self._k_range.start - self._d_range.start

    def intersection_q_id_on_right_boundary(self) -> int:
        """The row in which the highest diagonal meets the last key."""
        return self._k_range.end - 1 - self._d_range.end

    # ---- asking ----

    def _lowest_is_open(self) -> bool:
        return self._d_range.start <= self._k_range.start - (self._q_range.end - 1)

    def _highest_is_open(self) -> bool:
        return self._d_range.end >= self._k_range.end - 1 - self._q_range.start

    def is_full(self) -> bool:
        return self._lowest_is_open() and self._highest_is_open()

    def is_causal(self) -> bool:
        return self._lowest_is_open() and self._d_range.end == self._k_range.end - self._q_range.end

    def is_inv_causal(self) -> bool:
        return self._highest_is_open() and self._d_range.start == self._k_range.start - self._q_range.start

    def is_bi_causal(self) -> bool:
        q, k, d = self._q_range, self._k_range, self._d_range
        return d.start == k.start - q.start and d.end == k.end - q.end

    def _slice(self) -> _core.AttnSlice:
        q, k, d = self._q_range, self._k_range, self._d_range
        return _core.AttnSlice(_core.Range(q.start, q.end), _core.Range(k.start, k.end), d.start, d.end)

    def to_qk_range_mask_type(self) -> list[tuple[AttnRange, AttnRange, int]]:
        """Ranges and types (0 to 3) of the same cells; they may be cut in other places than there."""
        q, k, kinds = _core.Mask(self._q_range.end, self._k_range.end, [self._slice()]).to_typed()
        return [(AttnRange(*a), AttnRange(*b), kind) for a, b, kind in zip(q, k, kinds, strict=True)]

    def area(self) -> int:
        """Number of cells."""
        return _core.Mask(self._q_range.end, self._k_range.end, [self._slice()]).area

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttnRectangle) and self._ranges() == other._ranges()

    def __hash__(self) -> int:
        return hash(self._ranges())

    def _ranges(self) -> tuple[AttnRange, AttnRange, AttnRange]:
        return self._q_range, self._k_range, self._d_range

    def __repr__(self) -> str:
        return f"{self._q_range} x {self._k_range} x {self._d_range}"


class AttnRectangles:
    """Rectangles in the order in which they were put in."""

    def __init__(self) -> None:
        self._rects: list[AttnRectangle] = []

    @staticmethod
    def from_ranges(
        q_ranges: Iterable[RangeType] | AttnRanges,
        k_ranges: Iterable[RangeType] | AttnRanges,
        mask_types: Sequence[int | AttnMaskType],
        check: bool = False,
    ) -> AttnRectangles:
        """Rectangles of typed slices; those without cells are left out."""
        q, k = AttnRanges.from_ranges(q_ranges, check), AttnRanges.from_ranges(k_ranges, check)
        if not len(q) == len(k) == len(mask_types):
            raise InvalidArgument(
                "AttnRectangles.from_ranges: q_ranges, k_ranges and mask_types must be equally long "
                f"(got {len(q)}, {len(k)} and {len(mask_types)})"
            )
        made = AttnRectangles()
        for rows, keys, kind in zip(q, k, mask_types, strict=True):
            typed = AttnMaskType.from_int_type(kind) if isinstance(kind, int) else kind
            has_none = typed is AttnMaskType.BICAUSAL and rows.seqlen > keys.seqlen
            if not (rows.is_empty() or keys.is_empty() or has_none):
                made.append(AttnRectangle(rows, keys, mask_type=typed))
        return made

    def is_valid(self) -> bool:
        return all(rect.is_valid() for rect in self._rects)

    def check_valid(self) -> None:
        """Raises ValueError unless each is_valid."""
        for rect in self._rects:
            rect.check_valid()

    def append(self, attn_rect: AttnRectangle, check: bool = False) -> None:
        if check:
            attn_rect.check_valid()
        self._rects.append(attn_rect)

    def extend(self, attn_rects: AttnRectangles, check: bool = False) -> None:
        if check:
            attn_rects.check_valid()
        self._rects.extend(attn_rects._rects)

    def get_qo_ranges_union(self) -> AttnRanges:
        """Rows of all, merged."""
        return AttnRanges.from_ranges([rect.q_range for rect in self._rects]).merge()

    def get_kv_ranges_union(self) -> AttnRanges:
        """Keys of all, merged."""
        return AttnRanges.from_ranges([rect.k_range for rect in self._rects]).merge()

    def total_seqlen_qo(self) -> int:
        return self.get_qo_ranges_union().total_seqlen

    def total_seqlen_kv(self) -> int:
        return self.get_kv_ranges_union().total_seqlen

    def cut_q(self, cut_pos: int) -> tuple[AttnRectangles, AttnRectangles]:
        """The parts of all before and from row cut_pos on."""
        cuts = [rect.cut_q(cut_pos) for rect in self._rects]
        return _those(a for a, _ in cuts), _those(b for _, b in cuts)

    def cut_k(self, cut_pos: int) -> tuple[AttnRectangles, AttnRectangles]:
        """The parts of all before and from key cut_pos on."""
        cuts = [rect.cut_k(cut_pos) for rect in self._rects]
        return _those(a for a, _ in cuts), _those(b for _, b in cuts)

    def get_rects_within_q_segment(self, q_start: int, q_end: int) -> AttnRectangles:
        return _those(rect.get_rect_within_q_segment(q_start, q_end) for rect in self._rects)

    def get_rects_within_k_segment(self, k_start: int, k_end: int) -> AttnRectangles:
        return _those(rect.get_rect_within_k_segment(k_start, k_end) for rect in self._rects)

    def area(self) -> int:
        """Cells of all added up."""
        return sum(rect.area() for rect in self._rects)

    @property
    def size(self) -> int:
        return len(self._rects)

    def is_empty(self) -> bool:
        return not self._rects

    def __len__(self) -> int:
        return len(self._rects)

    @overload
    def __getitem__(self, idx: int) -> AttnRectangle: ...
    @overload
    def __getitem__(self, idx: slice) -> AttnRectangles: ...
    def __getitem__(self, idx: int | slice) -> AttnRectangle | AttnRectangles:
        """A rectangle; of a slice a list of the same objects."""
        return _those(self._rects[idx]) if isinstance(idx, slice) else self._rects[idx]

    def __setitem__(self, idx: int | slice, value: AttnRectangle | AttnRectangles) -> None:
        if isinstance(idx, int) and isinstance(value, AttnRectangle):
            self._rects[idx] = value
        elif isinstance(idx, slice) and isinstance(value, AttnRectangles):
            self._rects[idx] = value._rects
        else:
            raise InvalidArgument(
                "AttnRectangles: a position takes an AttnRectangle, a slice AttnRectangles "
                f"(got {idx} and {type(value).__name__})"
            )

    def __iter__(self) -> Iterator[AttnRectangle]:
        return iter(self._rects)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, AttnRectangles) and self._rects == other._rects

    def __hash__(self) -> int:
        return hash(tuple(self._rects))

    def __repr__(self) -> str:
        return repr(self._rects) if self._rects else "[-1, -1) x [-1, -1): None"


def _those(rects: Iterable[AttnRectangle | None]) -> AttnRectangles:
    """The rectangles among them, not copied; None is left out."""
    made = AttnRectangles()
    made._rects = [rect for rect in rects if rect is not None]
    return made
