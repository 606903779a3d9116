# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""mistakes_test.py of sparse attention: keys and blocks by their indices, and buffers of masks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mistakes import check_text  # noqa: E402
from tangram import (  # noqa: E402
    HeadConfig,
    Mask,
    MaskBuffer,
    NotAvailable,
    flex_flash_attn_func,
    magi,
    masks_from_block_indices,
    token_attn_func,  # noqa: E402
)

ROWS = 48
Q, K, V = torch.ones(ROWS, 4, 8), torch.ones(ROWS, 2, 8), torch.ones(ROWS, 2, 8)
KEYS = torch.arange(4).expand(ROWS, 2, 4)


def tokens(indices=KEYS, q=Q, k=K, v=V, **options):
    return token_attn_func(q, k, v, indices, **options)


def indexed(indices=KEYS, q=Q, k=K, v=V, *ranges, **options):
    named = {"index_attn_indices": indices, "index_attn_values": "tokens"} | options
    return magi.flex_flash_attn_func(q, k, v, *ranges, **named)


def with_key(key):
    indices = KEYS.clone()
    indices[5, 1, 2] = key
    return indices


HEADS = HeadConfig(16, 2, 8, 8, "float32")
TABLE = [[0, 1], [1, 2], [2, 0]]


def buffer(rows=ROWS, **options):
    return MaskBuffer(rows, ROWS, HEADS, device="cpu", **options)


def blocks(indices=TABLE, size=16, **options):
    made = buffer(**{"max_slices": 12, **options})
    made.set_blocks(indices, size, causal=False)
    return made


def attend(made, *beside, **options):
    rows = [torch.ones(ROWS, heads, 8, requires_grad=True) for heads in (16, 2, 2)]
    return flex_flash_attn_func(*rows, made, *beside, **options)[0]


def from_indices(indices, *sizes):
    return Mask.from_block_indices(ROWS, ROWS, *(sizes or (16, 16)), indices)


FLEX, TOKENS = "flex_flash_attn_func", "token_attn_func"
BUFFER, SET_BLOCKS, CU, RANGES = (
    "MaskBuffer",
    "MaskBuffer.set_blocks",
    "MaskBuffer.set_cu_seqlens",
    "MaskBuffer.set_ranges",
)
INDICES, GROUPS = "Mask.from_block_indices", "masks_from_block_indices"
PAIRS = np.array([[0, 20], [20, 40], [40, 48]])
# By what was meant: the call; the function, the argument, the value and the remedy that the text must have.
MISTAKES = {
    # Keys by their indices.
    "ranges beside keys": (
        lambda: indexed(KEYS, Q, K, V, torch.ones(2, 2, dtype=torch.int32), None),
        FLEX,
        "index_attn_indices",
        "(got q_ranges beside",
        "stand for the mask alone",
    ),
    "a range of zeros beside keys": (
        lambda: indexed(KEYS, Q, K, V, torch.zeros(1, 1, dtype=torch.int32)),
        FLEX,
        "index_attn_indices",
        "(got q_ranges beside",
        "stand for the mask alone",
    ),
    "types beside keys": (
        lambda: indexed(attn_type_map=torch.tensor([1, 0])),
        FLEX,
        "index_attn_indices",
        "(got attn_type_map beside",
        "stand for the mask alone",
    ),
    "blocks of keys as keys": (
        lambda: indexed(k_block_size=16),
        FLEX,
        "index_attn_indices",
        "(got k_block_size=16 beside",
        "by single rows",
    ),
    "ranges that are loaded as keys": (
        lambda: indexed(sparse_load=True),
        FLEX,
        "index_attn_indices",
        "(got sparse_load=True beside",
        "stand for the mask alone",
    ),
    "a list of keys": (lambda: indexed(KEYS.tolist()), FLEX, "index_attn_indices", "(got list)", "must be a tensor"),
    "an array of keys": (
        lambda: indexed(KEYS.numpy()),
        FLEX,
        "index_attn_indices",
        "(got ndarray)",
        "torch.from_numpy takes it",
    ),
    "arrays under the other names": (
        lambda: indexed(KEYS, Q.numpy(), K.numpy(), V.numpy()),
        FLEX,
        "q, k and v",
        "(got ndarray, ndarray, ndarray)",
        "tangram.flex_flash_attn_func takes arrays",
    ),
    "a batch with keys": (
        lambda: indexed(KEYS, Q[None], K[None], V[None]),
        FLEX,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "keys that hold nothing": (
        lambda: indexed(KEYS.to("meta")),
        FLEX,
        "index_attn_indices",
        "index_attn_indices on meta)",
        "where q does, or on the host",
    ),
    "a key behind the last one": (
        lambda: indexed(with_key(ROWS)),
        FLEX,
        "index_attn_indices",
        "(got key 48 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "an array of keys for tensors": (
        lambda: tokens(KEYS.numpy()),
        TOKENS,
        "indices",
        "(got ndarray)",
        "torch.from_numpy takes it",
    ),
    "a list of keys for tensors": (lambda: tokens(KEYS.tolist()), TOKENS, "indices", "(got list)", "must be a tensor"),
    "keys for each query head": (
        lambda: tokens(torch.cat([KEYS, KEYS], 1)),
        TOKENS,
        "indices",
        "(got int64[48, 4, 4])",
        "[rows of q, K/V heads, topk] = [48, 2, topk]",
    ),
    "a batch of tokens": (
        lambda: tokens(KEYS, Q[None], K[None], V[None]),
        TOKENS,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "a batch of arrays": (
        lambda: tokens(KEYS.numpy(), *(x[None].numpy() for x in (Q, K, V))),
        TOKENS,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "arrays beside tensors": (
        lambda: tokens(KEYS, Q, K.numpy(), V.numpy()),
        TOKENS,
        "q, k and v",
        "(got Tensor, ndarray, ndarray)",
        "all be tensors, or arrays",
    ),
    "a key that 32 bits do not hold": (
        lambda: tokens(with_key(2**33)),
        TOKENS,
        "indices",
        "(got key 8589934592 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "a key before the first": (
        lambda: tokens(with_key(-2).numpy(), Q.numpy(), K.numpy(), V.numpy()),
        TOKENS,
        "indices",
        "(got key -2 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "multiprocessors below zero": (lambda: tokens(sm_margin=-3), TOKENS, "sm_margin", "(got -3)", "not be negative"),
    "multiprocessors below zero with arrays": (
        lambda: tokens(KEYS.numpy(), Q.numpy(), K.numpy(), V.numpy(), sm_margin=-3),
        TOKENS,
        "sm_margin",
        "(got -3)",
        "not be negative",
    ),
    # Buffers on the host refuse what one on a GPU would.
    "more documents than there is room for": (
        lambda: buffer(max_documents=2).set_cu_seqlens([0, 9, 20, ROWS], causal=True),
        CU,
        "documents",
        "(got 3 documents, room for 2)",
        "a larger max_documents makes room",
    ),
    "more blocks than there is room for": (
        lambda: blocks(max_slices=5),
        SET_BLOCKS,
        "slices",
        "(got 3 query blocks of up to 2 blocks, room for 5 blocks)",
        "a larger max_slices makes room",
    ),
    "more ranges than there is room for": (
        lambda: buffer(max_slices=2).set_ranges(PAIRS, PAIRS),
        RANGES,
        "slices",
        "(got 3 ranges, room for 2)",
        "a larger max_slices makes room",
    ),
    "blocks of no tiles": (
        lambda: buffer(block_size=24),
        BUFFER,
        "blocks",
        "(got block_size=24)",
        "multiples of 16 rows",
    ),
    "smaller blocks than the buffer's": (
        lambda: blocks(block_size=32),
        SET_BLOCKS,
        "block_size",
        "(got block_size=16)",
        "at least that of the buffer, 32",
    ),
    "documents in a buffer for blocks": (
        lambda: buffer(block_size=16).set_cu_seqlens([0, ROWS], causal=True),
        CU,
        "a buffer made for blocks",
        "(got documents)",
        "set_blocks() or set()",
    ),
    "small blocks that repeat bit for bit": (
        lambda: buffer(block_size=16, deterministic=True),
        BUFFER,
        "blocks",
        "(got deterministic=true)",
        "a buffer without block_size",
    ),
    "blocks with softcap": (
        lambda: attend(blocks(block_size=16), softcap=3.0).sum().backward(),
        FLEX,
        "a MaskBuffer for blocks",
        "softcap=3",
        "must be without softcap",
    ),
    "blocks with a sink": (
        lambda: attend(blocks(block_size=16), sink=torch.zeros(1, 16)).sum().backward(),
        FLEX,
        "a MaskBuffer for blocks",
        "dsink=true",
        "must be without softcap, dsink",
    ),
    "blocks where each row was to see a key": (
        lambda: blocks(allow_fully_masked_rows=False),
        SET_BLOCKS,
        "device masks",
        "(got allow_fully_masked_rows=false)",
        "cannot rule out fully masked rows",
    ),
    "a row without keys where each was to see one": (
        lambda: buffer(allow_fully_masked_rows=False).set(Mask.from_ranges([(0, 8)], [(0, 8)], None, ROWS, ROWS)),
        "MaskBuffer.set",
        "each row",
        "allow_fully_masked_rows=false",
        "must see a key",
    ),
    "blocks below none": (
        lambda: buffer(block_size=-1),
        BUFFER,
        "blocks",
        "(got block_size=-1)",
        "must not be negative",
    ),
    "a block of blocks that is outside": (
        lambda: blocks([TABLE, [[0, 1], [1, 3], [2, 0]]], block_size=16, head_groups=2),
        SET_BLOCKS,
        "indices",
        "(got 3 in query block 1 of head group 1)",
        "must lie in [0, 3)",
    ),
    # What arguments are.
    "a size that is true": (
        lambda: blocks(size=True),
        SET_BLOCKS,
        "block_size",
        "(got True)",
        "whole number",
    ),
    "blocks of nothing": (lambda: blocks(size=np.int64(0)), SET_BLOCKS, "block_size", "(got 0)", "must be positive"),
    "blocks in floating point": (lambda: buffer(block_size=16.0), BUFFER, "block_size", "(got 16.0)", "a whole number"),
    "rows in floating point": (lambda: buffer(rows=48.0), BUFFER, "seqlen_q", "(got 48.0)", "a whole number"),
    "room as text": (
        lambda: buffer().reserve("9"),
        "MaskBuffer.reserve",
        "documents",
        "(got '9')",
        "a whole number",
    ),
    "a window of documents as one number": (
        lambda: buffer().set_cu_seqlens([0, ROWS], causal=True, window=3),
        CU,
        "window",
        "(got 3)",
        "a pair (left, right)",
    ),
    "rows of blocks of several lengths": (
        lambda: blocks([[0], [1, 2], [2]]),
        SET_BLOCKS,
        "block_indices",
        "(got rows of several lengths)",
        "fill rows up by -1",
    ),
    "blocks that hold nothing": (
        lambda: blocks(torch.tensor(TABLE, device="meta")),
        SET_BLOCKS,
        "block_indices",
        "(got meta)",
        "in host memory",
    ),
    "blocks left out": (lambda: from_indices(None), INDICES, "indices", "(got None)", "a list of lists or an integer"),
    "a row of blocks too few": (
        lambda: from_indices([[0], [1]]),
        INDICES,
        "indices",
        "(got 2)",
        "a row for each of the 3 query blocks",
    ),
    "a row of an array too few": (
        lambda: from_indices(np.zeros((2, 3), np.int64)),
        INDICES,
        "indices",
        "(got 2)",
        "a row for each of the 3 query blocks",
    ),
    "a size of blocks in floating point": (
        lambda: from_indices(TABLE, 16.0, 16),
        INDICES,
        "block_q",
        "(got 16.0)",
        "a whole number",
    ),
    "triples for pairs of blocks": (
        lambda: Mask.block_sparse(ROWS, ROWS, 16, 16, [(0, 0, 1)]),
        "Mask.block_sparse",
        "blocks",
        "(got (0, 0, 1))",
        "pairs (query block, key block)",
    ),
    "blocks in floating point for pairs": (
        lambda: Mask.block_sparse(ROWS, ROWS, 16.0, 16, [(0, 0)]),
        "Mask.block_sparse",
        "block_q",
        "(got 16.0)",
        "a whole number",
    ),
    "blocks of one group for all": (
        lambda: masks_from_block_indices(ROWS, ROWS, 16, 16, np.array(TABLE)),
        GROUPS,
        "indices",
        "(got (3, 2) of int64)",
        "Mask.from_block_indices",
    ),
    "no groups": (
        lambda: masks_from_block_indices(ROWS, ROWS, 16, 16, []),
        GROUPS,
        "indices",
        "(got none)",
        "one group",
    ),
    "a block of a group that is outside": (
        lambda: masks_from_block_indices(ROWS, ROWS, 16, 16, [TABLE, [[0], [1], [9]]]),
        GROUPS,
        "indices",
        "(got 9 in query block 2 of group 1)",
        "must lie in [0, 3)",
    ),
    "ranges beside a buffer": (
        lambda: attend(blocks(), [(0, ROWS)]),
        FLEX,
        "a MaskBuffer",
        "(got k_ranges too)",
        "must stand alone",
    ),
    "types beside a mask": (
        lambda: attend(Mask.full(ROWS), None, [1]),
        FLEX,
        "a Mask in q_ranges",
        "(got attn_type_map too)",
        "must stand alone",
    ),
    "ranges beside a mask of a batch": (
        lambda: flex_flash_attn_func(Q[None], K[None], V[None], Mask.full(ROWS), [(0, ROWS)], layout="bshd"),
        FLEX,
        "masks in q_ranges",
        "(got k_ranges too)",
        "must stand alone",
    ),
    "a call for another backend than the buffer's": (
        lambda: attend(blocks(), backend="reference"),
        FLEX,
        "backend",
        "(got reference on the host)",
        "those of the MaskBuffer, cpu on the host",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_a_buffer_on_a_gpu_that_is_not_there(device):
    with pytest.raises(NotAvailable, match="^MaskBuffer: "):
        MaskBuffer(ROWS, ROWS, HEADS, device=device)


def test_what_other_libraries_hold_is_taken():
    """Whole numbers of NumPy and torch, pairs of blocks as a tensor, groups as lists of several lengths."""
    made = MaskBuffer(
        np.int64(ROWS), torch.tensor(ROWS), HEADS, device="cpu", max_slices=np.int32(12), block_size=np.int64(16)
    )
    made.set_blocks(TABLE, np.int64(16), causal=False)
    made.set(Mask.block_sparse(ROWS, ROWS, np.int64(16), 16, torch.tensor([(0, 0), (1, 2)])))
    buffer().set_cu_seqlens([0, 20, ROWS], causal=True, window=np.array([3, 0]))
    ragged = [[[0], [1, 2], []], [[2], [1], [0, 1]]]
    padded = np.array([[[0, -1], [1, 2], [-1, -1]], [[2, -1], [1, -1], [0, 1]]])
    assert masks_from_block_indices(ROWS, ROWS, 16, 16, ragged) == masks_from_block_indices(ROWS, ROWS, 16, 16, padded)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_to_do(mistake):
    check_text(*MISTAKES[mistake])
