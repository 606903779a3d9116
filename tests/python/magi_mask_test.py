# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.magi: masks that are dense, as ranges and types."""

import numpy as np
import pytest

from reference import typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import magi  # noqa: E402
from tangram.magi import AttnMask, AttnMaskType, AttnRange, AttnRanges  # noqa: E402


def cells_of(mask):
    ranges = (mask.q_ranges.to_naive_ranges(), mask.k_ranges.to_naive_ranges())
    kinds = [kind.to_int_type() for kind in mask.attn_mask_type]
    return typed_cells(*ranges, kinds, mask.total_seqlen_q, mask.total_seqlen_k)


def test_a_dense_mask_is_ranges_and_types():
    dense = torch.zeros(9, 12, dtype=torch.int32)
    dense[:4, :5] = 1  # full
    dense[4:, 2:7] = torch.tril(torch.ones(5, 5, dtype=torch.int32))  # causal, and a row at its left
    dense[6] = 0
    for given in (dense, dense.tolist(), dense != 0, 7 * dense):
        mask = magi.from_mask(given)
        assert isinstance(mask, AttnMask) and isinstance(mask.q_ranges, AttnRanges)
        assert (mask.total_seqlen_q, mask.total_seqlen_k) == (9, 12) and mask.area == int(dense.sum())
        assert np.array_equal(cells_of(mask), dense.numpy() != 0)
        assert torch.equal(mask.mask_tensor[..., 0], dense) and np.array_equal(mask.mask_flag_array, dense.numpy())
    assert [kind for *_, kind in mask.tuples()] == mask.attn_mask_type
    part = (AttnRange(3, 6), AttnRange(2, 5))
    assert mask.calc_sub_area(*part) == int(dense[3:6, 2:5].sum())
    assert torch.equal(mask.make_sub_mask(*part).mask_tensor[..., 0], dense[3:6, 2:5])
    with pytest.raises(ValueError, match=r"AttnMask: .* within the mask's 9 x 12 cells .got .0, 10. and"):
        mask.calc_sub_area(AttnRange(0, 10), AttnRange(0, 1))


def test_what_a_mask_is_like():
    causal, full = magi.from_mask(torch.ones(6, 6).tril()), magi.from_mask(torch.ones(3, 4))
    assert causal.is_pure_causal() and causal.is_square() and causal.is_varlen_causal() and not causal.is_pure_full()
    assert full.is_pure_full() and not full.is_square() and full.is_varlen_full() and not full.is_empty()
    assert magi.from_mask(torch.zeros(3, 3)).is_empty()
    documents = AttnMask.from_ranges(
        AttnRanges.from_ranges([(0, 4), (4, 9)]), AttnRanges.from_ranges([(0, 4), (4, 9)]), ["causal", "causal"]
    )
    assert (documents.total_seqlen_q, documents.area) == (9, 10 + 15) and documents.is_varlen_causal()
    assert documents.attn_mask_type == [AttnMaskType.CAUSAL] * 2 and not documents.is_pure_causal()
    assert documents.mask == tangram.Mask.varlen([0, 4, 9])
    again = magi.from_mask(documents.mask_tensor[..., 0])
    assert again.q_ranges == documents.q_ranges and again.attn_mask_type == documents.attn_mask_type


def test_masks_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"from_mask: mask must have two dimensions.*got shape=.1, 3, 3."):
        magi.from_mask(torch.ones(1, 3, 3))
    one = AttnRanges.from_ranges([(0, 4)])
    with pytest.raises(ValueError, match="AttnMask.from_ranges: q_ranges and k_ranges must be equally long"):
        AttnMask.from_ranges(one, AttnRanges(), ["full"], 4, 4)
    noise = torch.rand(300, 300, generator=torch.Generator().manual_seed(0)) < 0.5
    with pytest.raises(ValueError, match="^from_mask: the mask must be made of few"):
        magi.from_mask(noise)
    assert magi.from_mask(noise, max_slices=1 << 20).area == int(noise.sum())
