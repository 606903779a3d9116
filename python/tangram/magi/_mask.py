# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""AttnMask of the published API: a mask as ranges and types, beside its cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._from_masks import from_dense
from .._named import Named
from ..errors import InvalidArgument, NotAvailable
from ._dense import cells_of
from ._enums import AttnMaskType
from ._key import typed_mask
from ._range import AttnRange
from ._ranges import AttnRanges


class AttnMask:
    """Made by from_mask or AttnMask.from_ranges; `q_ranges`, `k_ranges`, `attn_mask_type` and the lengths are what
    magi_attn_flex_key takes. Equal where ranges, types and cells are."""

    masked_flag, unmasked_flag = 0, 1

    def __init__(
        self, q_ranges: AttnRanges, k_ranges: AttnRanges, attn_mask_type: list[AttnMaskType], mask: _core.Mask
    ) -> None:
        self.q_ranges = q_ranges
        self.k_ranges = k_ranges
        self.attn_mask_type = attn_mask_type
        self.total_seqlen_q = mask.seqlen_q
        self.total_seqlen_k = mask.seqlen_k
        self.mask = mask
        """Tangram's."""

    @staticmethod
    def from_ranges(
        q_ranges: AttnRanges,
        k_ranges: AttnRanges,
        attn_mask_type: Sequence[str | AttnMaskType],
        total_seqlen_q: int | None = None,
        total_seqlen_k: int | None = None,
    ) -> AttnMask:
        """Lengths that are None: up to the last range. Slices that share a cell are refused: it would count twice."""
        totals = ((total_seqlen_q, q_ranges), (total_seqlen_k, k_ranges))
        q_len, k_len = (AttnRanges.from_ranges(each).end if total is None else total for total, each in totals)
        q, k, kinds, mask = typed_mask("AttnMask.from_ranges", (q_ranges, k_ranges), attn_mask_type, (q_len, k_len))
        return AttnMask(q, k, list(kinds), mask)

    @staticmethod
    def from_mask(mask: Sequence[Sequence[int]] | Tensor, max_slices: int | None = None) -> AttnMask:
        """See from_mask."""
        cells = torch.as_tensor(mask, device="cpu") != 0
        if cells.ndim != 2:
            raise InvalidArgument(
                f"from_mask: mask must have two dimensions, queries and keys (got shape={tuple(cells.shape)})"
            )
        with Named("from_mask"):
            made = from_dense(cells, max_slices=max_slices)
        assert isinstance(made, _core.Mask)
        q, k, kinds = made.to_typed()
        types = [AttnMaskType.from_int_type(kind) for kind in kinds]
        return AttnMask(AttnRanges.from_ranges(q), AttnRanges.from_ranges(k), types, made)

    def tuples(self) -> Iterator[tuple[AttnRange, AttnRange, AttnMaskType]]:
        yield from zip(self.q_ranges, self.k_ranges, self.attn_mask_type, strict=True)

    @cached_property
    def mask_tensor(self) -> Tensor:
        """`[total_seqlen_q, total_seqlen_k, 1]` int32: 1 where a query sees a key."""
        return cells_of(self.mask).to(torch.int32)[..., None]

    @property
    def mask_flag_array(self) -> Any:
        """mask_tensor as an array of NumPy without the last dimension."""
        return self.mask_tensor[..., 0].numpy()

    def _part(self, q_range: AttnRange, k_range: AttnRange) -> Tensor:
        if q_range.end > self.total_seqlen_q or k_range.end > self.total_seqlen_k:
            raise InvalidArgument(
                f"AttnMask: q_range and k_range must lie within the mask's {self.total_seqlen_q} x "
                f"{self.total_seqlen_k} cells (got {q_range} and {k_range})"
            )
        return self.mask_tensor[q_range.start : q_range.end, k_range.start : k_range.end, 0]

    def calc_sub_area(self, q_range: AttnRange, k_range: AttnRange) -> int:
        """Visible cells of a rectangle."""
        return int(self._part(q_range, k_range).sum())

    def make_sub_mask(self, q_range: AttnRange, k_range: AttnRange) -> AttnMask:
        """The mask of a rectangle, whose rows and keys begin at 0."""
        return AttnMask.from_mask(self._part(q_range, k_range))

    @property
    def area(self) -> int:
        """Visible cells."""
        return self.mask.area

    def is_square(self) -> bool:
        return self.total_seqlen_q == self.total_seqlen_k

    def is_empty(self) -> bool:
        return self.area == 0

    def is_pure_full(self) -> bool:
        return self.area == self.total_seqlen_q * self.total_seqlen_k

    def is_pure_causal(self) -> bool:
        """Whether it is one causal mask, aligned to its last corner."""
        return self.mask == _core.Mask.causal(self.total_seqlen_q, self.total_seqlen_k)

    def is_varlen_full(self) -> bool:
        """Whether it is one full slice for each of packed documents."""
        return self._is_varlen(AttnMaskType.FULL)

    def is_varlen_causal(self) -> bool:
        return self._is_varlen(AttnMaskType.CAUSAL)

    @staticmethod
    def make_causal_mask(
        seqlen_q: int,
        seqlen_k: int,
        align: str = "bottom-right",
        dtype: torch.dtype = torch.int32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """`[seqlen_q, seqlen_k]`: 1 where a key is not behind its query, the last corners on one diagonal, or with
        align="top-left" the first."""
        if align not in ("bottom-right", "top-left"):
            raise InvalidArgument(
                f"AttnMask.make_causal_mask: align must be 'bottom-right' or 'top-left' (got align={align!r})"
            )
        diagonal = seqlen_k - seqlen_q if align == "bottom-right" else 0
        return torch.ones(seqlen_q, seqlen_k, dtype=dtype, device=device).tril(diagonal)

    def visualize(self, save_path: str | None = None) -> None:
        """Refused: a Mask draws itself."""
        raise NotAvailable(
            "AttnMask.visualize: nothing is drawn here, which needs no matplotlib: a notebook shows mask.mask, and "
            f"mask.mask._repr_html_() is its drawing (got save_path={save_path!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttnMask):
            return False
        ranges = (self.q_ranges, self.k_ranges, self.attn_mask_type, self.mask)
        return ranges == (other.q_ranges, other.k_ranges, other.attn_mask_type, other.mask)

    def __hash__(self) -> int:
        return hash((self.q_ranges, self.k_ranges, tuple(self.attn_mask_type)))

    def __repr__(self) -> str:
        kinds = ", ".join(kind.value for kind in self.attn_mask_type[:8])
        more = ", ..." if len(self.attn_mask_type) > 8 else ""
        return (
            f"AttnMask({self.total_seqlen_q} x {self.total_seqlen_k}, area={self.area}, "
            f"q_ranges={self.q_ranges!r:.200}, k_ranges={self.k_ranges!r:.200}, attn_mask_type=[{kinds}{more}])"
        )

    def _is_varlen(self, kind: AttnMaskType) -> bool:
        borders = ((self.q_ranges, self.total_seqlen_q), (self.k_ranges, self.total_seqlen_k))
        follow = all(ranges.is_cu_seqlens(total) for ranges, total in borders)
        return follow and all(each is kind for each in self.attn_mask_type)


def from_mask(mask: Sequence[Sequence[int]] | Tensor, max_slices: int | None = None) -> AttnMask:
    """The ranges and types of a dense mask `[queries, keys]`, visible where it is not zero.

    Unlike there a row may see keys with holes between them. A mask too irregular for slices is refused unless
    max_slices, which there is not, takes as many; see tangram.from_dense.
    """
    return AttnMask.from_mask(mask, max_slices)
