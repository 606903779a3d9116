# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes that somebody makes who does not know the code. Each error names the function that was called, the argument,
the value that was given, and what to pass instead."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

import tangram  # noqa: E402
from tangram import Mask  # noqa: E402
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
    "ranges that run over": (lambda: flex(Q, K, V, [(0, 17)], [(0, 16)]), "Mask", "q_range", "[0, 17)", "in [0, 16)"),
    "cells twice": (
        lambda: flex(Q, K, V, [(0, 8), (4, 16)], [(0, 16), (0, 16)]),
        "Mask",
        "slices",
        "slices[1]=[4, 16)",
        "must not cover a cell twice",
    ),
    "a fifth type": (lambda: flex(Q, K, V, [(0, 16)], [(0, 16)], [4]), "from_ranges", "mask types", "=4", "0 to 3"),
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
        "tangram",
        "backend",
        "backend='flash'",
        "one of sm90, cpu, reference",
    ),
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
    "documents that do not begin at 0": (lambda: Mask.varlen([5, 9]), "varlen", "cu_seqlens", "got 5", "start with 0"),
    "lengths for borders": (lambda: Mask.varlen([0, 9, 4]), "varlen", "cu_seqlens", "=4 after 9", "must not decrease"),
    # Over ranks.
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
    "the number of a group": (lambda: key(cp_group_or_mesh=4), "tangram", "cp_group_or_mesh", "int", "ProcessGroup"),
    "padding that does not fit": (
        lambda: key(pad_size=3, chunk_size=8),
        "make_plan",
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
    "a strategy that is not there": (
        lambda: tangram.DistAttnConfig(strategy="zigzag"),
        "parse_strategy",
        "strategy",
        "'zigzag'",
        "one of auto, tangram, ulysses",
    ),
    "a plan of no ranks": (lambda: tangram.plan(CAUSAL, 0), "make_plan", "cp_size", "(got 0)", "in [1, "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_to_do(mistake):
    call, *wanted = MISTAKES[mistake]
    with pytest.raises((tangram.Error, TypeError)) as raised:
        call()
    text = str(raised.value)
    for what, part in zip(("function", "argument", "value", "remedy"), wanted, strict=True):
        assert part in text, f"{what} {part!r} is not in: {text}"
    assert len(text) < 500 and "(got " in text, text


def test_there_are_thirty():
    assert len(MISTAKES) >= 30
