# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Drawings of masks for notebooks: one polygon for each slice."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import AttnSlice, Mask

SIZE = 320
"""Pixels of the longer side."""
MAX_SLICES = 4000
"""A drawing of more pieces would only slow the notebook down."""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")

Point = tuple[float, float]


def _clip(polygon: list[Point], bound: float, sign: int) -> list[Point]:
    """The part of the polygon where `sign * (x - y - bound) >= 0` (Sutherland and Hodgman, 1974)."""
    clipped: list[Point] = []
    for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        a = sign * (x0 - y0 - bound)
        b = sign * (x1 - y1 - bound)
        if a >= 0:
            clipped.append((x0, y0))
        if (a < 0) != (b < 0):
            t = a / (a - b)
            clipped.append((x0 + t * (x1 - x0), y0 + t * (y1 - y0)))
    return clipped


def slice_polygon(piece: AttnSlice) -> list[Point]:
    """Corners (key, query) of a slice. A diagonal runs through the middle of the steps that the cells make."""
    x0, x1 = piece.k_range.begin, piece.k_range.end
    y0, y1 = piece.q_range.begin, piece.q_range.end
    polygon: list[Point] = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    polygon = _clip(polygon, piece.min_diag - 0.5, 1)
    return _clip(polygon, piece.max_diag + 0.5, -1)


def mask_svg(mask: Mask) -> str:
    """The mask as SVG: queries down, keys to the right."""
    scale = SIZE / max(mask.seqlen_q, mask.seqlen_k, 1)
    width, height = scale * mask.seqlen_k, scale * mask.seqlen_q
    shapes = []
    for i, piece in enumerate(mask.slices[:MAX_SLICES]):
        points = " ".join(f"{x * scale:.2f},{y * scale:.2f}" for x, y in slice_polygon(piece))
        title = escape(repr(piece))
        shapes.append(f'<polygon points="{points}" fill="{COLOURS[i % len(COLOURS)]}"><title>{title}</title></polygon>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2:.0f}" height="{height + 2:.0f}" '
        f'viewBox="-1 -1 {width + 2:.2f} {height + 2:.2f}">'
        f'<rect width="{width:.2f}" height="{height:.2f}" fill="#f4f4f4" stroke="#888"/>{"".join(shapes)}</svg>'
    )


def mask_html(mask: Mask) -> str:
    """What a notebook shows: the drawing and a line of numbers."""
    cells = mask.seqlen_q * mask.seqlen_k
    share = 100 * mask.area / cells if cells else 0.0
    drawn = "" if len(mask.slices) <= MAX_SLICES else f", the first {MAX_SLICES} drawn"
    return (
        f"<div>{mask_svg(mask)}<div><small>{mask.seqlen_q:,} queries × {mask.seqlen_k:,} keys, "
        f"{len(mask.slices):,} slices{drawn}, {share:.1f} % visible</small></div></div>"
    )
