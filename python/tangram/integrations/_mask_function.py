# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A function (batch, head, query, key) -> visible as a Mask: documents in a row, each seen through one band.

The function is asked for the cells beside the diagonal, which show where documents begin, and for two whole rows, which
show the band. Then the guess is compared along its borders and on a grid; what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from ..errors import InvalidArgument

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Span = tuple[int, int]
"""(offset, length) of rows in the sequence."""
GRID = 96
"""Rows and columns of the grid of cells that are compared."""


@dataclass
class _Document:
    batch: int
    q: Span
    k: Span  # offset and end, not length


def mask_of(function: MaskFunction, batch: int, q: Span, k: Span, padding: Tensor | None) -> Mask:
    """The mask of `batch` sequences whose rows lie one after the other.

    Args:
        function: elementwise over index tensors of one shape; counts rows from the start of the sequence.
        q, k: offset and length of the queries and of the keys.
        padding: `[batch, keys]` bool, False hides a key from all queries.

    Raises InvalidArgument when the function is not a band within documents.
    """
    device = torch.device("cpu") if padding is None else padding.device
    # A model's function may hold tensors of its device; it tells by failing on another.
    documents = _documents(function, batch, q, k, device)
    band = _band(function, documents, device)
    _compare(function, documents, band, (batch, q, k), device)
    runs = visible_runs(padding, batch, k)
    slices = []
    for d in documents:
        for begin, end in runs[d.batch]:
            begin, end = max(begin, d.k[0]), min(end, d.k[1])
            if begin >= end:
                continue
            # Local rows: a key's distance to a query changes by what their rows are shifted.
            q_shift, k_shift = d.batch * q[1] - q[0], d.batch * k[1] - k[0]
            shift = k_shift - q_shift
            low = OPEN_MIN_DIAG if band[0] is None else shift - band[0]
            high = OPEN_MAX_DIAG if band[1] is None else shift + band[1]
            q_range = Range(d.q[0] + q_shift, d.q[1] + q_shift)
            slices.append(AttnSlice(q_range, Range(begin + k_shift, end + k_shift), low, high))
    return Mask(batch * q[1], batch * k[1], slices)


def _ask(function: MaskFunction, batch: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return function(batch, torch.zeros_like(batch), q, k).expand(q.shape)


def _documents(function: MaskFunction, batch: int, q: Span, k: Span, device: torch.device) -> list[_Document]:
    """A document begins where a query does not see the key before it."""
    rows = torch.arange(max(q[0], k[0]) + 1, min(q[0] + q[1], k[0] + k[1]), device=device)
    documents = []
    which = torch.arange(batch, device=device)[:, None].expand(batch, rows.shape[0])
    starts = ~_ask(function, which, rows.expand_as(which), (rows - 1).expand_as(which))
    for b in range(batch):
        # Keys before the first query belong to the first document.
        borders = [q[0], *(r for r in rows[starts[b]].tolist() if r > q[0]), q[0] + q[1]]
        for i in range(len(borders) - 1):
            first, last = i == 0, i == len(borders) - 2
            keys = (k[0] if first else borders[i], k[0] + k[1] if last else borders[i + 1])
            documents.append(_Document(b, (borders[i], borders[i + 1]), keys))
    return documents


Band = tuple[int | None, int | None]
"""Keys that a query sees before and after itself; None is all of its document."""


def _band(function: MaskFunction, documents: list[_Document], device: torch.device) -> Band:
    longest = max(documents, key=lambda d: d.k[1] - d.k[0])
    keys = torch.arange(*longest.k, device=device)
    which = torch.full_like(keys, longest.batch)
    first, last = longest.q[0], longest.q[1] - 1
    seen_last = keys[_ask(function, which, torch.full_like(keys, last), keys)]
    seen_first = keys[_ask(function, which, torch.full_like(keys, first), keys)]
    if seen_last.numel() == 0 or seen_first.numel() == 0:
        raise InvalidArgument("attn_implementation='tangram': every query must see a key before padding (got none)")
    left = None if int(seen_last[0]) == longest.k[0] else last - int(seen_last[0])
    right = None if int(seen_first[-1]) == longest.k[1] - 1 else int(seen_first[-1]) - first
    return left, right


def _compare(
    function: MaskFunction, documents: list[_Document], band: Band, sizes: tuple[int, Span, Span], device: torch.device
) -> None:
    batch, q, k = sizes
    number = torch.empty((batch, k[1]), dtype=torch.int64, device=device)  # of the document of a key
    number_q = torch.empty((batch, q[1]), dtype=torch.int64, device=device)
    for i, d in enumerate(documents):
        number[d.batch, d.k[0] - k[0] : d.k[1] - k[0]] = i
        number_q[d.batch, d.q[0] - q[0] : d.q[1] - q[0]] = i
    rows = torch.arange(q[0], q[0] + q[1], device=device)
    distances = {-1, 0, 1}
    for side, sign in ((band[0], -1), (band[1], 1)):
        if side is not None:
            distances |= {sign * side, sign * (side + 1)}
    beside = torch.tensor(sorted(distances), device=device)
    cells_q = [rows[:, None].expand(-1, beside.shape[0]).flatten()]
    cells_k = [(rows[:, None] + beside).flatten()]
    grid_q = torch.linspace(q[0], q[0] + q[1] - 1, min(GRID, q[1]), device=device).long()
    grid_k = torch.linspace(k[0], k[0] + k[1] - 1, min(GRID, k[1]), device=device).long()
    cells_q.append(grid_q.repeat_interleave(grid_k.shape[0]))
    cells_k.append(grid_k.repeat(grid_q.shape[0]))
    at_q, at_k = torch.cat(cells_q), torch.cat(cells_k)
    inside = (at_k >= k[0]) & (at_k < k[0] + k[1])
    at_q, at_k = at_q[inside], at_k[inside]
    for b in range(batch):
        expected = number_q[b, at_q - q[0]] == number[b, at_k - k[0]]
        if band[0] is not None:
            expected &= at_k >= at_q - band[0]
        if band[1] is not None:
            expected &= at_k <= at_q + band[1]
        wrong = _ask(function, torch.full_like(at_q, b), at_q, at_k) != expected
        if bool(wrong.any()):
            cell = int(wrong.nonzero()[0, 0])
            raise InvalidArgument(
                "attn_implementation='tangram': the model's mask must be causal, full or a window within documents; "
                f"pass tangram_mask for others (got query {int(at_q[cell])}, key {int(at_k[cell])} of sequence {b})"
            )


def visible_runs(padding: Tensor | None, batch: int, k: Span) -> list[list[Span]]:
    """[begin, end) of keys that are no padding, for each sequence."""
    if padding is None:
        return [[(k[0], k[0] + k[1])]] * batch
    kept = torch.zeros((batch, k[1] + 2), dtype=torch.int8)
    # The 2D mask may end before the keys do, where a cache has room left.
    seen = padding[:, k[0] : k[0] + k[1]].to("cpu", torch.int8)
    kept[:, 1 : 1 + seen.shape[1]] = seen
    runs = []
    for change in kept.diff(dim=1):
        begins, ends = ((change == sign).nonzero()[:, 0] + k[0] for sign in (1, -1))
        runs.append(list(zip(begins.tolist(), ends.tolist(), strict=True)))
    return runs
