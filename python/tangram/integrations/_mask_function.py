# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A function (batch, head, query, key) -> visible as a Mask: documents in a row, each seen through one band.

The function is asked for the cells beside the diagonal, which show where documents begin, and for two whole rows, which
show the band. Then the guess is compared along its borders and on a grid; what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from ..errors import InvalidArgument

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Span = tuple[int, int]
"""(offset, length) of rows in the sequence."""
GRID = 96
"""Rows and columns of the grid of cells that are compared."""


class Sizes(NamedTuple):
    """Sizes of a mask for `batch` sequences: which queries and keys of the sequence there are."""

    batch: int
    q: Span
    k: Span


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
    sizes = Sizes(batch, q, k)
    # A model's function may hold tensors of its device; it tells by failing on another.
    device = torch.device("cpu") if padding is None else padding.device
    starts = ask_starts(function, sizes, device)
    ends = ask_ends(function, sizes, torch.tensor(longest_document(starts, sizes), device=device))
    cells = ask_cells(function, sizes, torch.tensor(distances(starts, ends, sizes), device=device))
    return mask_of_answers(starts, ends, cells, sizes, padding)


def _ask(function: MaskFunction, batch: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return function(batch, torch.zeros_like(batch), q, k).expand(q.shape)


def _beside_diagonal(sizes: Sizes, device: torch.device) -> Tensor:
    _, q, k = sizes
    return torch.arange(max(q[0], k[0]) + 1, min(q[0] + q[1], k[0] + k[1]), device=device)


def ask_starts(function: MaskFunction, sizes: Sizes, device: torch.device) -> Tensor:
    """`[batch, rows]` bool: whether a query does not see the key before it, so that a document begins there."""
    rows = _beside_diagonal(sizes, device).expand(sizes.batch, -1)
    which = torch.arange(sizes.batch, device=device)[:, None].expand_as(rows)
    return ~_ask(function, which, rows, rows - 1)


def ask_ends(function: MaskFunction, sizes: Sizes, longest: Tensor) -> Tensor:
    """`[2, keys]` bool: what the first and the last query of longest_document see."""
    _, _, (offset, length) = sizes
    keys = torch.arange(offset, offset + length, device=longest.device).expand(2, -1)
    return _ask(function, longest[0].expand_as(keys), longest[1:, None].expand_as(keys), keys)


def ask_cells(function: MaskFunction, sizes: Sizes, beside: Tensor) -> Tensor:
    """`[batch, cells]` bool: whether _cells see each other."""
    at_q, at_k = _cells(sizes, beside)
    at_k = at_k.clamp(sizes.k[0], sizes.k[0] + sizes.k[1] - 1)  # outside there is nothing to ask
    which = torch.arange(sizes.batch, device=beside.device)[:, None].expand(-1, at_q.shape[0])
    return _ask(function, which, at_q.expand_as(which), at_k.expand_as(which))


def _cells(sizes: Sizes, beside: Tensor) -> tuple[Tensor, Tensor]:
    """(queries, keys) that are compared: at some distances from every query, and a grid."""
    _, q, k = sizes
    rows = torch.arange(q[0], q[0] + q[1], device=beside.device)[:, None]
    grid_q = torch.linspace(q[0], q[0] + q[1] - 1, min(GRID, q[1]), device=beside.device).long()[:, None]
    grid_k = torch.linspace(k[0], k[0] + k[1] - 1, min(GRID, k[1]), device=beside.device).long()
    at_q = [rows.expand(-1, beside.shape[0]).flatten(), grid_q.expand(-1, grid_k.shape[0]).flatten()]
    at_k = [(rows + beside).flatten(), grid_k.expand(grid_q.shape[0], -1).flatten()]
    return torch.cat(at_q), torch.cat(at_k)


def _documents(starts: Tensor, sizes: Sizes) -> list[_Document]:
    batch, q, k = sizes
    rows = _beside_diagonal(sizes, torch.device("cpu"))
    starts = starts.cpu()
    documents = []
    for b in range(batch):
        # Keys before the first query belong to the first document.
        borders = [q[0], *(r for r in rows[starts[b]].tolist() if r > q[0]), q[0] + q[1]]
        for i in range(len(borders) - 1):
            first, last = i == 0, i == len(borders) - 2
            keys = (k[0] if first else borders[i], k[0] + k[1] if last else borders[i + 1])
            documents.append(_Document(b, (borders[i], borders[i + 1]), keys))
    return documents


def _longest(documents: list[_Document]) -> _Document:
    return max(documents, key=lambda d: d.k[1] - d.k[0])


def longest_document(starts: Tensor, sizes: Sizes) -> list[int]:
    """Its sequence, its first query and its last."""
    longest = _longest(_documents(starts, sizes))
    return [longest.batch, longest.q[0], longest.q[1] - 1]


Band = tuple[int | None, int | None]
"""Keys that a query sees before and after itself; None is all of its document."""


def _band(documents: list[_Document], ends: Tensor, sizes: Sizes) -> Band:
    longest = _longest(documents)
    offset = sizes.k[0]
    first, last = longest.q[0], longest.q[1] - 1
    inside = ends[:, longest.k[0] - offset : longest.k[1] - offset].cpu()
    seen_first, seen_last = (row.nonzero().flatten() + longest.k[0] for row in inside)
    if seen_last.numel() == 0 or seen_first.numel() == 0:
        raise InvalidArgument("attn_implementation='tangram': every query must see a key before padding (got none)")
    left = None if int(seen_last[0]) == longest.k[0] else last - int(seen_last[0])
    right = None if int(seen_first[-1]) == longest.k[1] - 1 else int(seen_first[-1]) - first
    return left, right


def _distances(band: Band) -> list[int]:
    """At which cells are compared, alike in number for all bands."""
    left, right = (0 if side is None else side for side in band)
    return [-1, 0, 1, -left, -left - 1, right, right + 1]


def distances(starts: Tensor, ends: Tensor, sizes: Sizes) -> list[int]:
    return _distances(_band(_documents(starts, sizes), ends, sizes))


def _compare(documents: list[_Document], band: Band, cells: Tensor, sizes: Sizes) -> None:
    batch, q, k = sizes
    number = torch.empty((batch, k[1]), dtype=torch.int64)  # of the document of a key
    number_q = torch.empty((batch, q[1]), dtype=torch.int64)
    for i, d in enumerate(documents):
        number[d.batch, d.k[0] - k[0] : d.k[1] - k[0]] = i
        number_q[d.batch, d.q[0] - q[0] : d.q[1] - q[0]] = i
    at_q, at_k = _cells(sizes, torch.tensor(_distances(band)))
    inside = (at_k >= k[0]) & (at_k < k[0] + k[1])
    at_q, at_k = at_q[inside], at_k[inside]
    expected = number_q[:, at_q - q[0]] == number[:, at_k - k[0]]
    if band[0] is not None:
        expected &= at_k >= at_q - band[0]
    if band[1] is not None:
        expected &= at_k <= at_q + band[1]
    wrong = (cells.cpu()[:, inside] != expected).nonzero()[:1].flatten().tolist()
    if wrong:
        b, cell = wrong
        raise InvalidArgument(
            "attn_implementation='tangram': the model's mask must be causal, full or a window within documents; "
            f"pass tangram_mask for others (got query {int(at_q[cell])}, key {int(at_k[cell])} of sequence {b})"
        )


def mask_of_answers(starts: Tensor, ends: Tensor, cells: Tensor, sizes: Sizes, padding: Tensor | None) -> Mask:
    """mask_of, where the function was asked before: starts, ends and cells as ask_starts, ask_ends and ask_cells."""
    batch, q, k = sizes
    documents = _documents(starts, sizes)
    band = _band(documents, ends, sizes)
    _compare(documents, band, cells, sizes)
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
