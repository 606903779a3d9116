# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Dense boolean masks and BlockMasks of FlexAttention as few slices, cell by cell."""

import random

import numpy as np
import pytest

import tangram
from masks import random_typed
from reference import mask_cells, typed_cells
from tangram import Mask, from_block_mask, from_dense, masks_from_block_indices

FAMILIES = {
    "full": (Mask.full(40, 50), 1),
    "causal": (Mask.causal(40), 1),
    "causal of more keys": (Mask.causal(40, 60), 1),
    "documents": (Mask.varlen([0, 7, 20, 64]), 3),
    "window": (Mask.sliding_window(64, (9, 0)), 1),
    "window on both sides": (Mask.sliding_window(64, (9, 3)), 1),
    "window in documents": (Mask.sliding_window([0, 20, 64], (9, 3)), 2),
    "frames": (Mask.block_causal(64, 16), 4),
    "prefix": (Mask.prefix_lm(64, 20), 2),
    "shared prefix": (Mask.shared_prefix(20, [10, 12, 22]), 7),
    "global rows": (Mask.global_window(64, 4, (7, 0)), 4),
    "blocks": (Mask.block_sparse(64, 64, 16, 16, [(0, 0), (1, 2), (3, 1), (3, 2)]), 3),
    "nothing": (Mask(8, 9, []), 0),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_become_few_slices(name):
    mask, most = FAMILIES[name]
    read = from_dense(mask_cells(mask))
    assert np.array_equal(mask_cells(read), mask_cells(mask)) and len(read.slices) <= most
    assert (read.seqlen_q, read.seqlen_k) == (mask.seqlen_q, mask.seqlen_k)


def test_any_cells_are_kept():
    rng = random.Random(0)
    generator = np.random.default_rng(0)
    for _ in range(40):
        cells = typed_cells(*random_typed(rng), 24, 24)
        assert np.array_equal(mask_cells(from_dense(cells)), cells)
        cells = generator.random((rng.randint(1, 20), rng.randint(1, 30))) < rng.choice([0.1, 0.5, 0.9])
        assert np.array_equal(mask_cells(from_dense(cells)), cells)


def test_batches_lie_in_a_row_and_heads_apart():
    causal, window = mask_cells(Mask.causal(6, 8)), mask_cells(Mask(6, 8, []))
    batch = np.stack([np.stack([causal]), np.stack([window])])
    read = from_dense(batch)
    want = np.zeros((12, 16), bool)
    want[:6, :8] = causal
    assert np.array_equal(mask_cells(read), want)
    heads = from_dense(np.stack([np.stack([causal, window])]))
    assert isinstance(heads, list) and [m.area for m in heads] == [causal.sum(), 0]
    assert from_dense(np.stack([np.stack([causal, causal])])) == from_dense(causal)


def test_a_mask_that_is_too_irregular_says_how_irregular():
    cells = np.random.default_rng(1).random((128, 128)) < 0.5
    with pytest.raises(tangram.InvalidArgument) as refused:
        from_dense(cells)
    text = str(refused.value)
    assert "slices of 2." in text and "visible cells on average" in text and "runs of keys a row" in text
    assert "max_slices=1024" in text and "use dense attention" in text
    assert np.array_equal(mask_cells(from_dense(cells, max_slices=1 << 20)), cells)
    with pytest.raises(tangram.InvalidArgument, match="max_slices=2"):
        from_dense(mask_cells(Mask.varlen([0, 5, 10, 15])), max_slices=2)


def test_what_is_no_mask_is_named():
    with pytest.raises(tangram.InvalidArgument, match=r"must be boolean.*`mask == 0` \(got float64\)"):
        from_dense(np.zeros((4, 4)))
    with pytest.raises(tangram.InvalidArgument, match=r"must have shape \[seqlen_q, seqlen_k\].*got \(2, 4, 4\)"):
        from_dense(np.zeros((2, 4, 4), bool))
    with pytest.raises(tangram.InvalidArgument, match="must be a BlockMask .*from_dense takes tensors"):
        from_block_mask(np.zeros((4, 4), bool))


def block_masks():
    flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch is not installed")
    import torch

    documents = torch.tensor([0] * 50 + [1] * 90 + [2] * 60)
    return flex, {
        "causal": lambda b, h, q, k: q >= k,
        "documents": lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]),
        "window": lambda b, h, q, k: (q >= k) & (q - k <= 30),
        "by head": lambda b, h, q, k: (q >= k) & (q - k <= 20 * (h + 1)),
        "by sequence": lambda b, h, q, k: (q >= k) | (k < 30 * b),
        "nothing": lambda b, h, q, k: q < 0,
    }


@pytest.mark.parametrize("name", ["causal", "documents", "window", "by head", "by sequence", "nothing"])
def test_block_masks(name):
    flex, functions = block_masks()
    batch, heads = (2 if name == "by sequence" else 1), (2 if name == "by head" else 1)
    # 200 rows are no whole blocks of 64.
    made = flex.create_block_mask(functions[name], batch, heads, 200, 200, device="cpu", BLOCK_SIZE=64)
    dense = flex.create_mask(functions[name], batch, heads, 200, 200, device="cpu").numpy()
    read = from_block_mask(made)
    for head, mask in enumerate(read if isinstance(read, list) else [read]):
        cells = mask_cells(mask)
        for b in range(batch):
            part = slice(200 * b, 200 * (b + 1))
            assert np.array_equal(cells[part, part], dense[b, head])
        assert cells.sum() == dense[:, head].sum() and len(mask.slices) <= 3 * batch
    assert isinstance(read, list) == (heads == 2)


def test_a_block_mask_computes_what_flex_attention_computes():
    flex, functions = block_masks()
    import torch

    made = flex.create_block_mask(functions["documents"], 1, 1, 200, 200, device="cpu", BLOCK_SIZE=64)
    q, k, v = torch.randn(3, 2, 200, 2, 16)
    out, _ = tangram.flex_flash_attn_func(q, k, v, from_block_mask(made), layout="bshd")
    want = flex.flex_attention(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=made).transpose(1, 2)
    assert torch.allclose(out, want, atol=1e-5)  # float32: sums of at most 90 products


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_groups_of_heads_chose(causal):
    rng = np.random.default_rng(4)
    seqlen_q, seqlen_k, block_q, block_k, width = 70, 90, 16, 8, 5  # the last blocks are shorter
    indices = np.full((3, 5, width), -1, np.int32)
    cells = np.zeros((3, seqlen_q, seqlen_k), bool)
    for group in range(3):
        for row in range(5):
            chosen = rng.permutation(12)[: rng.integers(0, width + 1)]  # some rows see nothing
            indices[group, row, : len(chosen)] = chosen
            for block in chosen:
                cells[group, row * 16 : row * 16 + 16, block * 8 : block * 8 + 8] = True
    if causal:
        cells &= np.tril(np.ones((seqlen_q, seqlen_k), bool), seqlen_k - seqlen_q)
    masks = masks_from_block_indices(seqlen_q, seqlen_k, block_q, block_k, indices, causal=causal)
    assert len(masks) == 3
    for mask, expected in zip(masks, cells, strict=True):
        assert np.array_equal(mask_cells(mask), expected)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert masks_from_block_indices(70, 90, 16, 8, torch.from_numpy(indices), causal=causal) == masks


def test_blocks_that_groups_cannot_have_chosen_are_refused():
    for wrong in (np.zeros((4, 2), int), np.zeros((0, 4, 2), int), np.zeros((1, 4, 2)), np.zeros((1, 4, 2), bool)):
        with pytest.raises(tangram.InvalidArgument, match=r"^masks_from_block_indices: indices must be integers \["):
            masks_from_block_indices(64, 64, 16, 16, wrong)
    for values, text in (
        ([[[4], [0], [0], [0]]], r"^masks_from_block_indices: indices must lie in \[0, 4\) \(got 4 in query block 0"),
        ([[[1, 1], [0, -1], [0, -1], [0, -1]]], r"^masks_from_block_indices: indices must not repeat"),
        ([[[-1, 1], [0, -1], [0, -1], [0, -1]]], r"^masks_from_block_indices: .*-1"),
        ([[[0], [0], [0]]], r"^masks_from_block_indices: "),
    ):
        with pytest.raises(tangram.InvalidArgument, match=text):
            masks_from_block_indices(64, 64, 16, 16, np.array(values))
