# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Calls as a program makes them that was written for MagiAttention: its argument names, ranges and mask types."""

import enum
from dataclasses import dataclass

import numpy as np
import pytest

from reference import attention, typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

import tangram  # noqa: E402

TOTAL, HEADS, HEADS_KV, DIM = 64, 4, 2, 16


class AttnMaskType(enum.Enum):
    """Published enum: the names are values."""

    FULL = "full"
    CAUSAL = "causal"
    BICAUSAL = "bi_causal"
    INVCAUSAL = "inv_causal"


@dataclass
class AttnRange:
    start: int
    end: int


class AttnRanges:
    """A container of ranges that have a start and an end."""

    def __init__(self, ranges):
        self._ranges = [AttnRange(*r) for r in ranges]

    def __iter__(self):
        return iter(self._ranges)

    def __len__(self):
        return len(self._ranges)


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def operands(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(TOTAL, HEADS, DIM), (TOTAL, HEADS_KV, DIM), (TOTAL, HEADS_KV, DIM)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def expected(tensors, cells):
    return attention(*(t.numpy() for t in tensors), cells).out


def test_options_that_choose_kernels_change_nothing():
    tensors = operands()
    ranges = [
        torch.tensor(r, dtype=torch.int32) for r in ([[0, 20], [20, 64], [20, 64]], [[0, 20], [10, 20], [20, 64]])
    ]
    types = torch.tensor([1, 0, 1], dtype=torch.int32)
    plain, _ = tangram.flex_flash_attn_func(*tensors, *ranges, types)
    for option, value in {
        "auto_range_merge": True,
        "max_seqlen_q": 44,
        "ref_block_size": (128, 128),
        "swap_ab": True,
        "pack_gqa": True,
        "cat_gqa": True,
        "sparse_load": True,
        "swap_bwd_qk_loop": True,
        "disable_fwd_atomic_reduction": True,
        "disable_bwd_dkv_atomic_reduction": True,
        "disable_bwd_dq_atomic_reduction": True,
        "range_merge": True,
        "block_sparse": True,
        "sm_margin": 8,
        "deterministic": True,
        "sink": None,
    }.items():
        out, meta = tangram.flex_flash_attn_func(*tensors, *ranges, attn_type_map=types, **{option: value})
        assert torch.equal(out, plain) and meta.lse.shape == (TOTAL, HEADS), option
    cells = typed_cells(*(r.tolist() for r in (*ranges, types)), TOTAL, TOTAL)
    np.testing.assert_allclose(plain.numpy(), expected(tensors, cells), atol=1e-4)


@pytest.mark.parametrize("pad_size", [0, None])
def test_a_step_by_ranges_and_names(group, pad_size):
    q_ranges, k_ranges = [(0, 16), (16, 40), (40, 64)], [(0, 16), (0, 40), (16, 64)]
    types = [AttnMaskType.CAUSAL, "full", AttnMaskType.BICAUSAL]
    key = tangram.magi_attn_flex_key(
        q_ranges=AttnRanges(q_ranges),
        k_ranges=AttnRanges(k_ranges),
        attn_mask_type=types,
        total_seqlen_q=TOTAL,
        total_seqlen_k=TOTAL,
        num_heads_q=HEADS,
        num_heads_kv=HEADS_KV,
        head_dim=DIM,
        pad_size=pad_size,
        cp_group_or_mesh=group,
        chunk_size=16,
        dist_attn_config=tangram.DistAttnConfig(overlap=tangram.OverlapConfig(num_stages_fwd=2)),
        is_same_source=True,
        is_q_permutable=True,
        is_k_permutable=True,
    )
    tensors = operands(1)
    # Sink, scale and softcap are positional there.
    out, meta = tangram.calc_attn(*(tangram.dispatch(x, key) for x in tensors), key, None, DIM**-0.5, 0.0)
    cells = typed_cells(q_ranges, k_ranges, [1, 0, 3], TOTAL, TOTAL)
    np.testing.assert_allclose(tangram.undispatch(out, key).numpy(), expected(tensors, cells), atol=1e-4)
    assert tangram.get_most_recent_key(group) is key and meta.lse.shape == out.shape[:2]
    assert tangram.get_position_ids(key).sort().values.tolist() == list(range(TOTAL))


def test_a_step_by_borders_of_documents_and_a_second_mask(group):
    cu = torch.tensor([0, 20, TOTAL], dtype=torch.int32)
    key = tangram.magi_attn_varlen_key(
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        num_heads_q=HEADS,
        num_heads_kv=HEADS_KV,
        head_dim=DIM,
        pad_size=tangram.compute_pad_size(TOTAL, 1, 16),
        cp_group_or_mesh=group,
        causal=True,
        window_size=(-1, -1),
        chunk_size=16,
    )
    window = tangram.make_varlen_key_for_new_mask_after_dispatch(
        cu_seqlens_q=cu, cu_seqlens_k=cu, causal=False, window_size=(5, 0), key_for_dispatch=key
    )
    flex = tangram.make_flex_key_for_new_mask_after_dispatch(
        q_ranges=AttnRanges([(0, TOTAL)]),
        k_ranges=AttnRanges([(0, TOTAL)]),
        attn_mask_type="causal",
        key_for_dispatch=key,
    )
    tensors = operands(2)
    shards = [tangram.dispatch(x, key) for x in tensors]
    i, j = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
    causal, same = j <= i, (i < 20) == (j < 20)
    for each, cells in ((key, causal & same), (window, causal & same & (i - j <= 5)), (flex, causal)):
        out = tangram.undispatch(tangram.calc_attn(*shards, each)[0], each)
        np.testing.assert_allclose(out.numpy(), expected(tensors, cells), atol=1e-4)
    with pytest.raises(ValueError, match="causal must be false when a window is given"):
        tangram.magi_attn_varlen_key(cu, cu, HEADS, HEADS_KV, DIM, 0, group, causal=True, window_size=(5, 0))


def test_padding_is_computed_when_it_is_left_open(group):
    key = tangram.magi_attn_varlen_key([0, 50], [0, 50], HEADS, HEADS_KV, DIM, None, group, chunk_size=16)
    assert key.pad_size == tangram.compute_pad_size(50, 1, 16) == 14
    config = tangram.DistAttnConfig(dispatch=tangram.DispatchConfig(chunk_size=16))
    given = {"pad_size": None, "cp_group_or_mesh": group, "dist_attn_config": config}
    assert tangram.magi_attn_varlen_key([0, 50], [0, 50], HEADS, HEADS_KV, DIM, **given) is key
    with pytest.raises(ValueError, match="multiple of"):
        tangram.magi_attn_varlen_key([0, 50], [0, 50], HEADS, HEADS_KV, DIM, 0, group, chunk_size=16)
