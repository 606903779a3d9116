# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users who do not know the code. Each error names the function that was called, the argument, the value
that was given, and what to pass instead."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

import tangram  # noqa: E402
from mistakes import check_text  # noqa: E402
from tangram import Mask, magi  # noqa: E402
from tangram.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402

ROWS = 16
Q, K, V = torch.ones(ROWS, 4, 8), torch.ones(ROWS, 2, 8), torch.ones(ROWS, 2, 8)
BATCH = torch.ones(1, ROWS, 2, 8)
CAUSAL = Mask.causal(ROWS)


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def key(**given):
    return tangram.mask_key(CAUSAL, 4, 2, 8, **given)


def flex(q=Q, k=K, v=V, *ranges, **options):
    return tangram.flex_flash_attn_func(q, k, v, *(ranges or (CAUSAL,)), **options)


def calc(q=Q, k=K, v=V, the_key=None, **options):
    return tangram.calc_attn(q, k, v, the_key or key(), **options)


FLEX = "flex_flash_attn_func"
# By what was meant: the call; the function, the argument, the value and the remedy that the text must have.
MISTAKES = {
    # One device.
    "heads before rows": (lambda: flex(Q.transpose(0, 1)), FLEX, "first", "tensors 4 x 16", "[rows, heads"),
    "a batch": (lambda: flex(BATCH, BATCH, BATCH), FLEX, "q", "(1, 16, 2, 8)", 'layout="bshd"'),
    "the layout of PyTorch": (
        lambda: flex(BATCH, BATCH, BATCH, layout="bhsd"),
        FLEX,
        "layout",
        "'bhsd'",
        "one of shd, bshd",
    ),
    "heads that do not divide": (
        lambda: flex(torch.ones(ROWS, 3, 8)),
        FLEX,
        "heads of q",
        "(16, 3, 8)",
        "a multiple of those of k",
    ),
    "half of the tensors in bfloat16": (
        lambda: flex(Q.bfloat16()),
        FLEX,
        "q, k and v",
        "q=torch.bfloat16",
        "share one dtype",
    ),
    "integers": (lambda: flex(*(x.int() for x in (Q, K, V))), FLEX, "q", "torch.int32", "float32"),
    "a tensor elsewhere": (lambda: flex(Q, K.to("meta")), FLEX, "k", "k=meta", "on one device"),
    "a mask of another length": (
        lambda: flex(Q, K, V, Mask.causal(15)),
        FLEX,
        "mask",
        "mask 15 x 15",
        "the lengths of q and k",
    ),
    "no key ranges": (
        lambda: flex(Q, K, V, [(0, 16)]),
        FLEX,
        "q_ranges",
        "no k_ranges",
        "a Mask, or ranges with as many k_ranges",
    ),
    "a dense mask as ranges": (
        lambda: flex(Q, K, V, torch.ones(ROWS, ROWS, dtype=torch.bool), [(0, 16)]),
        FLEX,
        "q_ranges",
        "torch.bool[16, 16]",
        "tangram.from_dense",
    ),
    "ranges that run over": (lambda: flex(Q, K, V, [(0, 17)], [(0, 16)]), FLEX, "q_range", "[0, 17)", "in [0, 16)"),
    "cells twice": (
        lambda: flex(Q, K, V, [(0, 8), (4, 16)], [(0, 16), (0, 16)]),
        FLEX,
        "slices",
        "slices[1]=[4, 16)",
        "must not cover a cell twice",
    ),
    "a fifth type": (lambda: flex(Q, K, V, [(0, 16)], [(0, 16)], [4]), FLEX, "mask types", "got 4", "0 to 3"),
    "dropout": (lambda: flex(dropout_p=0.1), FLEX, "dropout_p", "0.1", "must be 0"),
    "a learnt scale": (
        lambda: flex(softmax_scale=torch.tensor(0.1)),
        FLEX,
        "softmax_scale",
        "Tensor",
        "a number or None",
    ),
    "a negative scale": (lambda: flex(softmax_scale=-1.0), FLEX, "softmax_scale", "=-1.0", "positive"),
    "a sink of wrong heads": (
        lambda: flex(sink=torch.ones(1, 3)),
        FLEX,
        "sink",
        "sink=[1, 3]",
        "[seqlen_sink, 4], the heads of q",
    ),
    "a backend of another library": (
        lambda: flex(backend="flash"),
        FLEX,
        "backend",
        "backend='flash'",
        "one of sm90, sm80, cpu, reference",
    ),
    "a mask left out": (lambda: flex(Q, K, V, None), FLEX, "q_ranges", "(got None)", "a Mask, or"),
    "types that are no integers": (
        lambda: flex(Q, K, V, [(0, 16)], [(0, 16)], [1.0]),
        FLEX,
        "attn_type_map",
        "(got [1.0])",
        "lists of integers",
    ),
    "a mask among numbers": (
        lambda: flex(Q, K, V, [CAUSAL, 1]),
        FLEX,
        "a list of masks",
        "got int in it",
        "must hold nothing else",
    ),
    "a cap as text": (lambda: flex(softcap="30"), FLEX, "softcap", "(got '30')", "a number"),
    "multiprocessors below zero": (lambda: flex(sm_margin=-1), FLEX, "sm_margin", "(got -1)", "must not be negative"),
    # Masks.
    "additive values": (
        lambda: tangram.from_dense(torch.zeros(4, 4)),
        "from_dense",
        "mask",
        "float32",
        "`mask == 0`",
    ),
    "a tensor for a BlockMask": (
        lambda: tangram.from_block_mask(torch.ones(4, 4, dtype=torch.bool)),
        "from_block_mask",
        "block_mask",
        "Tensor",
        "from_dense takes tensors",
    ),
    "documents that do not begin at 0": (
        lambda: Mask.varlen([5, 9]),
        "Mask.varlen",
        "cu_seqlens",
        "got 5",
        "start with 0",
    ),
    "lengths for borders": (
        lambda: Mask.varlen([0, 9, 4]),
        "Mask.varlen",
        "cu_seqlens",
        "=4 after 9",
        "must not decrease",
    ),
    "borders as a table": (
        lambda: Mask.varlen(torch.zeros(1, 2, dtype=torch.int32)),
        "Mask.varlen",
        "cu_seqlens",
        "(got 2)",
        "one dimension",
    ),
    "borders that are no integers": (
        lambda: Mask.varlen(torch.tensor([0.0, 9.0])),
        "Mask.varlen",
        "cu_seqlens",
        "(got float32)",
        "int32 or int64",
    ),
    "a range upside down": (
        lambda: Mask.from_ranges([(4, 0)], [(0, 4)]),
        "Mask.from_ranges",
        "q_ranges[0]",
        "[4, 0)",
        "rise from begin to end",
    ),
    "a length for lengths": (
        lambda: Mask.shared_prefix(4, 9),
        "Mask.shared_prefix",
        "continuation_lengths",
        "(got 9)",
        "a list or an integer array",
    ),
    "lengths as text": (
        lambda: Mask.from_ranges([(0, 4)], [(0, 4)], None, "16"),
        "Mask.from_ranges",
        "seqlen_q",
        "(got '16')",
        "a whole number",
    ),
    "a window of one number": (
        lambda: tangram.infer_attn_mask_from_sliding_window((0, 4), (0, 4), 3),
        "infer_attn_mask_from_sliding_window",
        "window_size",
        "(got 3)",
        "a pair (left, right)",
    ),
    "a length for a range": (
        lambda: tangram.infer_attn_mask_from_sliding_window(4, (0, 4), (3, 0)),
        "infer_attn_mask_from_sliding_window",
        "q_range",
        "(got 4)",
        "a pair (begin, end)",
    ),
    "windows of packed documents as one number": (
        lambda: tangram.infer_attn_mask_from_cu_seqlens([0, 4], [0, 4], window_size=3),
        "infer_attn_mask_from_cu_seqlens",
        "window_size",
        "(got 3)",
        "a pair (left, right)",
    ),
    "no chunks": (
        lambda: tangram.compute_pad_size(1000, 4, 0),
        "compute_pad_size",
        "chunk_size",
        "(got 0)",
        "lie in [1,",
    ),
    # Over ranks.
    "a key of other names": (
        lambda: tangram.dispatch(Q, magi.magi_attn_varlen_key([0, ROWS], [0, ROWS], 4, 2, 8, 0, 8, dist.group.WORLD)),
        "dispatch",
        "key must",
        "got a key of tangram.magi",
        "key.inner",
    ),
    "key and tensor in turn": (
        lambda: tangram.dispatch(key(), Q),
        "dispatch",
        "x must",
        "(got DistAttnRuntimeKey)",
        "before the key",
    ),
    "positions of a mask": (
        lambda: tangram.get_position_ids(CAUSAL),
        "get_position_ids",
        "key must",
        "(got Mask)",
        "mask_key(mask,",
    ),
    "heads that are no integers": (
        lambda: tangram.mask_key(CAUSAL, 4.0, 2, 8),
        "mask_key",
        "num_heads_q",
        "(got 4.0)",
        "a whole number",
    ),
    "heads in turn": (
        lambda: tangram.mask_key(CAUSAL, 2, 4, 8),
        "mask_key",
        "num_heads_q",
        "num_heads_kv=4",
        "multiple of num_heads_kv",
    ),
    "a window of one side": (
        lambda: tangram.magi_attn_varlen_key([0, ROWS], [0, ROWS], 4, 2, 8, 0, None, window_size=3),
        "magi_attn_varlen_key",
        "window_size",
        "window_size=3",
        "two integers",
    ),
    "a mask for a key": (
        lambda: tangram.make_mask_key_after_dispatch(CAUSAL, CAUSAL),
        "make_mask_key_after_dispatch",
        "key_for_dispatch",
        "(got Mask)",
        "mask_key(mask,",
    ),
    "sinks of wrong heads over ranks": (
        lambda: calc(sink=torch.ones(1, 3)),
        "calc_attn",
        "sink",
        "float32[1, 3]",
        "of shape [n, 4]",
    ),
    "a negative cap over ranks": (lambda: calc(softcap=-2.0), "calc_attn", "softcap", "(got -2)", "not negative"),
    "a configuration as a dict": (
        lambda: tangram.plan(CAUSAL, 2, config={"strategy": "auto"}),
        "plan",
        "config",
        "(got dict)",
        "a DistAttnConfig",
    ),
    "ranks as text": (lambda: tangram.plan(CAUSAL, "2"), "plan", "cp_size", "(got '2')", "a whole number"),
    "no key": (lambda: tangram.calc_attn(Q, K, V, CAUSAL), "calc_attn", "key", "got Mask", "which mask_key(mask,"),
    "arrays": (lambda: calc(Q.numpy(), K, V), "calc_attn", "torch", "got ndarray", "needs torch tensors"),
    "whole tensors for shards": (lambda: calc(torch.ones(20, 4, 8)), "calc_attn", "q", "[20, 4, 8]", "shard [16, 4"),
    "a shard to dispatch": (
        lambda: tangram.dispatch(Q[:8], key()),
        "dispatch",
        "x",
        "(8, 4, 8)",
        "must have 16 rows",
    ),
    "ignored labels in bytes": (
        lambda: tangram.dispatch(torch.ones(16, dtype=torch.uint8), key(), pad_value=-100),
        "dispatch",
        "pad_value",
        "-100",
        "a value of torch.uint8",
    ),
    "a side of its own": (lambda: tangram.dispatch(Q, key(), side="v"), "dispatch", "side", "'v'", "'q' or 'k'"),
    "another dim to roll": (lambda: tangram.roll(Q, key(), 1, dims=1), "roll", "dims", "dims=1", "dimension 0"),
    "half a row to roll": (lambda: tangram.roll(Q, key(), 0.5), "roll", "shifts", "0.5", "an integer"),
    "a list for a mask": (
        lambda: tangram.mask_key([(0, 16)], 4, 2, 8),
        "mask_key",
        "mask must",
        "got list",
        "Mask.from_ranges(...)",
    ),
    "the number of a group": (lambda: key(cp_group_or_mesh=4), "mask_key", "cp_group_or_mesh", "int", "ProcessGroup"),
    "padding that does not fit": (
        lambda: key(pad_size=3, chunk_size=8),
        "mask_key",
        "chunk_size",
        "seqlen_q=19",
        "pad it by compute_pad_size",
    ),
    "a sum of sinks": (
        lambda: calc(sink=torch.ones(1, 4), dsink_reduce="mean"),
        "calc_attn",
        "dsink_reduce",
        "'mean'",
        "'none', 'sum' or 'avg'",
    ),
    # By other names.
    "numbers for ranges": (
        lambda: magi.AttnRanges.from_ranges([0, 4]),
        "AttnRange",
        "a range",
        "(got 0)",
        "a pair (start, end)",
    ),
    "a degree as text": (
        lambda: magi.OverlapConfig(degree="2"),
        "OverlapConfig",
        "degree",
        "degree='2'",
        "an integer, or None",
    ),
    "dropout by position": (
        lambda: flash_attn_func(BATCH, BATCH, BATCH, 0.1),
        "flash_attn_func",
        "dropout_p",
        "dropout_p=0.1",
        "dropout_p=0.0",
    ),
    "packed rows for a batch": (
        lambda: flash_attn_func(Q, K, V),
        "flash_attn_func",
        "q",
        "[16, 4, 8]",
        "[batch, rows, heads, dim]",
    ),
    "borders of more rows": (
        lambda: flash_attn_varlen_func(Q, K, V, torch.tensor([0, 20]), torch.tensor([0, 16])),
        "flash_attn_varlen_func",
        "cu_seqlens_q",
        "[0, 20]",
        "rise from 0 to the 16 rows",
    ),
    "seconds as text": (
        lambda: tangram.configure(timeout_s="30"),
        "configure",
        "timeout_s",
        "timeout_s='30'",
        "of type int or float",
    ),
    "an order of launches that is not there": (
        lambda: tangram.OverlapConfig(launch_order="nccl"),
        "OverlapConfig",
        "launch_order",
        "'nccl'",
        "one of auto, copy_engine",
    ),
    "an algorithm that is not there": (
        lambda: tangram.DispatchConfig("minheap"),
        "DispatchConfig",
        "algorithm",
        "'minheap'",
        "did you mean 'min_heap'",
    ),
    "a number of stages for an overlap": (
        lambda: tangram.DistAttnConfig(overlap=2),
        "DistAttnConfig",
        "overlap",
        "(got 2)",
        "an OverlapConfig",
    ),
    "a field that is not there": (
        lambda: tangram.DistAttnConfig(num_stages=2),
        "DistAttnConfig",
        "has the fields cp_size",
        "(got num_stages=2)",
        "overlap",
    ),
    "heads in floating point": (
        lambda: tangram.HeadConfig(4.0, 2),
        "HeadConfig",
        "num_heads_q",
        "(got 4.0)",
        "a whole number",
    ),
    "a HeadConfig whose heads do not divide": (
        lambda: tangram.HeadConfig(8, 3, 64),
        "HeadConfig",
        "num_heads_q",
        "num_heads_kv=3",
        "multiple of num_heads_kv",
    ),
    "no heads of keys": (
        lambda: tangram.HeadConfig(8, 0, 64),
        "HeadConfig",
        "num_heads_q",
        "num_heads_kv=0",
        "multiple of num_heads_kv",
    ),
    "values without a dim": (
        lambda: tangram.HeadConfig(8, 2, 64, 0),
        "HeadConfig",
        "head dims",
        "head_dim_v=0",
        "positive",
    ),
    "a dtype of torch": (
        lambda: tangram.HeadConfig(4, 2, dtype=torch.bfloat16),
        "HeadConfig",
        "dtype",
        "(got torch.bfloat16)",
        "a str such as 'bfloat16'",
    ),
    "stages as text": (lambda: tangram.OverlapConfig("2"), "OverlapConfig", "num_stages_fwd", "(got '2')", "whole"),
    "chunks in floating point": (
        lambda: tangram.DispatchConfig("auto", 512.0),
        "DispatchConfig",
        "chunk_size",
        "(got 512.0)",
        "a whole number",
    ),
    "a rate as text": (
        lambda: tangram.CostModel(link_bytes_per_s="4e11"),
        "CostModel",
        "link_bytes_per_s",
        "(got '4e11')",
        "a number",
    ),
    "groups as nothing": (
        lambda: tangram.MovementConfig("auto", None),
        "MovementConfig",
        "head_groups",
        "(got None)",
        "a whole number",
    ),
    "pairs for slices": (
        lambda: Mask(16, 16, [((0, 4), (0, 4))]),
        "Mask",
        "slices",
        "(got [((0, 4), (0, 4))])",
        "Mask.from_ranges takes pairs",
    ),
    "results added up in 8 bits": (
        lambda: tangram.DistAttnConfig(reduce_dtype="fp8"),
        "DistAttnConfig",
        "reduce_dtype",
        "'fp8'",
        "float32, bfloat16 or float16",
    ),
    "a rank that is not there": (
        lambda: tangram.plan(CAUSAL, 2).peak_bytes(5),
        "Plan.peak_bytes",
        "rank",
        "(got 5)",
        "in [0, 2)",
    ),
    "a strategy that is not there": (
        lambda: tangram.DistAttnConfig(strategy="zigzag"),
        "DistAttnConfig",
        "strategy",
        "'zigzag'",
        "one of auto, tangram, ulysses",
    ),
    "a plan of no ranks": (lambda: tangram.plan(CAUSAL, 0), "plan", "cp_size", "(got 0)", "in [1, "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_to_do(mistake):
    check_text(*MISTAKES[mistake])


def test_there_are_thirty():
    assert len(MISTAKES) >= 30


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process without a GPU")
def test_a_buffer_over_ranks_without_a_gpu_is_not_available():
    """It was torch's own error, that there is no driver."""
    with pytest.raises(tangram.NotAvailable, match="DistMaskBuffer: needs a GPU.* pass each key to calc_attn"):
        tangram.DistMaskBuffer(key())
