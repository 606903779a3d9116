# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks give PyTorch's FlexAttention the same masks as Tangram."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "attn"))
from torch_peers import mask_function  # noqa: E402

from reference import mask_cells  # noqa: E402
from tangram import Mask  # noqa: E402

ROWS = 300
ENDS = [0, 1, 130, 300]
# Rows 0 to 99 see the keys 20 to 59 and 80 to 89, the others the first ten.
BORDERS = torch.zeros(5, ROWS, dtype=torch.int32)
BORDERS[:, :100] = torch.tensor([0, 20, 60, 80, 90], dtype=torch.int32)[:, None]
BORDERS[:, 100:] = 10
SLICES = [((0, 100), (20, 60)), ((0, 100), (80, 90)), ((100, ROWS), (0, 10))]


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (Mask.causal(ROWS), {"kind": "causal"}),
        (Mask.varlen(ENDS, causal=False), {"kind": "full", "documents": ENDS}),
        (Mask.varlen(ENDS, causal=True), {"kind": "causal", "documents": ENDS}),
        (Mask.sliding_window(ROWS, (7, 0)), {"kind": "window", "window": 7}),
        (Mask.from_ranges(*zip(*SLICES, strict=True), [0, 0, 0]), {"kind": "slices", "borders": BORDERS}),
    ],
    ids=["causal", "documents", "causal documents", "window", "slices"],
)
def test_flex_attention_is_told_the_same_mask(mask, options):
    row, key = torch.arange(ROWS)[:, None], torch.arange(ROWS)[None]
    visible = mask_function(rows=ROWS, **options)(0, 0, row, key).numpy()
    cells = mask_cells(mask)
    assert np.array_equal(visible[:, : cells.shape[1]], cells) and not visible[:, cells.shape[1] :].any()


def test_full_masks_have_no_function():
    assert mask_function("full", ROWS) is None
