# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What every rank of a group checks; distributed_test.py starts the ranks with torchrun."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import time
import weakref
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from ranks.as_device import as_device  # noqa: E402
from reference import attention, typed_cells  # noqa: E402
from tangram import (  # noqa: E402
    DistAttnConfig,
    InvalidArgument,
    MovementConfig,
    OverlapConfig,
    _cuda,
    _torch_group,
    _values,
)
from tangram._keys import KEYS_PER_GROUP  # noqa: E402

HEADS, HEADS_KV, DIM = 4, 2, 16


def whole(total, seed, heads_v=DIM, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(total, HEADS, DIM), (total, HEADS_KV, DIM), (total, HEADS_KV, heads_v)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def flex_key(ranges, total, group, config=None, chunk_size=16):
    pad = tangram.compute_pad_size(total, dist.get_world_size(group), chunk_size)
    return tangram.magi_attn_flex_key(
        *ranges, total, total, HEADS, HEADS_KV, DIM, pad, group, chunk_size=chunk_size, dist_attn_config=config
    )


RANGES = ([(0, 40), (40, 90), (90, 150)], [(0, 40), (20, 90), (0, 150)], ["causal", "full", "bi_causal"])
NUMBERS = [1, 0, 3]


def check_step(group, config=None, softcap=0.0, sink=False, dtype=torch.float32):
    """Forward and backward through dispatch, calc_attn and undispatch against dense float64."""
    total = 150  # needs padding
    key = flex_key(RANGES, total, group, config)
    q, k, v = whole(total, 1, dtype=dtype)
    s = torch.randn(2, HEADS, generator=torch.Generator().manual_seed(5)).requires_grad_() if sink else None
    out, meta = tangram.calc_attn(
        *(tangram.dispatch(x, key) for x in (q, k, v)), key, sink=s, softcap=softcap, return_max_logits=True
    )
    full = tangram.undispatch(out, key)
    dout = torch.randn(full.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    full.backward(dout)
    expected = attention(
        *(x.detach().double().numpy() for x in (q, k, v)),
        typed_cells(RANGES[0], RANGES[1], NUMBERS, total, total),
        softcap=softcap,
        sink=None if s is None else s.detach().numpy(),
        dout=dout.double().numpy(),
    )
    # float32: sums of at most 150 products of values around 1. bfloat16: 8 bits of fraction, values up to 4.
    atol = 1e-4 if dtype == torch.float32 else 0.08
    np.testing.assert_allclose(full.detach().double().numpy(), expected.out, atol=atol)
    np.testing.assert_allclose(meta.max_logits.numpy(), expected.max_logits, atol=atol)
    lse = tangram.undispatch(meta.lse, key)
    np.testing.assert_allclose(lse.numpy(), expected.lse, atol=atol)
    for x, want in zip((q, k, v), (expected.dq, expected.dk, expected.dv), strict=True):
        np.testing.assert_allclose(x.grad.double().numpy(), want, atol=atol)
    if s is not None:
        np.testing.assert_allclose(s.grad.numpy(), expected.dsink, atol=1e-3)


def rows_of_backward(group, config):
    """Rows that a backward pass receives; gradients are those of the same pass that keeps nothing."""
    plain = _values.changed(config, overlap=OverlapConfig())
    results = []
    for each in (plain, config):
        key = flex_key(RANGES, 150, group, each)
        shards = [tangram.dispatch(x.detach(), key).requires_grad_() for x in whole(150, 1)]
        out, _ = tangram.calc_attn(*shards, key)
        before = key.group.group.traffic()
        results.append(torch.autograd.grad(out, shards, torch.ones_like(out)))
        rows = key.group.group.traffic() - before
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted)
    return rows


def check_strategies(group):
    """Every strategy gives what one process would, and what a strategy cannot do is a ValueError on every rank."""
    for strategy in ("ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp", "auto"):
        config = DistAttnConfig(strategy=strategy)
        key = flex_key(RANGES, 150, group, config)
        assert key.config.strategy == strategy
        assert (key.plan.config.strategy == strategy) == (strategy != "auto")
        check_step(group, config, softcap=2.0, sink=True)
    check_step(group, DistAttnConfig(strategy="hybrid_cp", document_rows=20))
    for strategy in ("ulysses", "hcms", "usp", "ring"):
        # Tensors that forward leaves by heads need not travel there again for backward.
        config = DistAttnConfig(strategy=strategy)
        plain = rows_of_backward(group, config)
        kept = rows_of_backward(group, _values.changed(config, overlap=OverlapConfig(keep_remote_kv=True)))
        by_heads = flex_key(RANGES, 150, group, config).plan.exchanges_heads
        assert kept < plain if by_heads else kept == plain, (strategy, kept, plain)
    count = dist.get_world_size(group)
    if count == 4:  # 2 x 2
        check_step(group, DistAttnConfig(strategy="usp", head_ranks=2))
        check_step(group, DistAttnConfig(strategy="loong_train", head_ranks=1, inner_ring=2))
        check_step(group, DistAttnConfig(strategy="hcms", head_chunks=[1]))
        check_step(group, DistAttnConfig(strategy="ulysses"), dtype=torch.bfloat16)
    for config, text in (
        (DistAttnConfig(strategy="usp", head_ranks=3), "head_ranks"),
        (DistAttnConfig(strategy="hcms", head_chunks=[7]), "head_chunks must add up"),
        (DistAttnConfig(strategy="auto", head_ranks=2), "strategy auto chooses"),
        (DistAttnConfig(strategy="ring", inner_ring=2), "inner_ring is for loong_train"),
    ):
        try:
            flex_key(RANGES, 150, group, config)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")
    key = flex_key(RANGES, 150, group, DistAttnConfig(strategy="ulysses"))
    q, k, v = (tangram.dispatch(x.detach(), key) for x in whole(150, 1))
    # Sinks of single rows travel with the heads: where all rows have the same, they are those of the heads.
    sinks = torch.linspace(-1, 2, HEADS).reshape(1, HEADS)
    rows = sinks.repeat(q.shape[0], 1, 1)
    of_rows, _ = tangram.calc_attn(q, k, v, key, sink=rows, sink_layout="ssh")
    of_heads, _ = tangram.calc_attn(q, k, v, key, sink=sinks)
    torch.testing.assert_close(of_rows, of_heads)


def check_rows(group):
    total = 150
    key = flex_key(RANGES, total, group)
    for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.int32):
        x = torch.arange(total * 2).reshape(total, 2).to(dtype)
        shard = tangram.dispatch(x, key, pad_value=-7)
        positions = tangram.get_position_ids(key)
        real = positions < total
        assert torch.equal(shard[real], x[positions[real]]) and (shard[~real] == -7).all()
        assert torch.equal(tangram.undispatch(shard, key), x)
        for shifts in (1, -1, 77, 0):
            rolled = tangram.undispatch(tangram.roll(shard, key, shifts), key)
            assert torch.equal(rolled, x.roll(shifts, 0)), (dtype, shifts)
    labels = torch.arange(total)
    assert torch.equal(tangram.undispatch(tangram.dispatch(labels, key), key), labels)

    x = torch.randn(total, 3, generator=torch.Generator().manual_seed(3)).requires_grad_()
    weight = torch.randn(total, 3, generator=torch.Generator().manual_seed(4))
    y = tangram.undispatch(tangram.roll(tangram.dispatch(x, key), key, -1), key)
    y.backward(weight)
    assert torch.equal(x.grad, weight.roll(1, 0))


def check_rows_of_any_kind(group):
    """Odd numbers of bytes, views with offsets, several dimensions, none at all."""
    total = 150
    key = flex_key(RANGES, total, group)
    generator = torch.Generator().manual_seed(9)
    for x in (
        torch.rand(total, generator=generator) < 0.5,
        torch.randint(0, 255, (total, 3), generator=generator, dtype=torch.uint8),
        torch.randint(0, 255, (total, 2, 7), generator=generator, dtype=torch.uint8),
        torch.randn(total + 1, 5, generator=generator).to(torch.float16)[1:],
        torch.randn(7, total, generator=generator).t(),
        torch.randn(total, 2, 3, 2, generator=generator, dtype=torch.float64),
        torch.empty(total, 0),
    ):
        shard = tangram.dispatch(x, key, pad_value=1)
        assert torch.equal(tangram.undispatch(shard, key), x), (x.dtype, x.shape)
        rolled = tangram.undispatch(tangram.roll(shard, key, 5), key)
        assert torch.equal(rolled, x.roll(5, 0)) and rolled.dtype == x.dtype


def check_refusals(group):
    """What the front finds wrong on one rank is an error on all, and the group works on."""
    rank = dist.get_rank(group)
    key = flex_key(RANGES, 150, group)
    q, k, v = (tangram.dispatch(x.detach(), key) for x in whole(150, 1))
    tangram.calc_attn(q, k, v, key)
    wrong = {
        "x must have the": lambda bad: tangram.undispatch(q[1:] if bad else q, key),
        "roll: x must have": lambda bad: tangram.roll(q[1:] if bad else q, key, 1),
        "k=torch.float64": lambda bad: tangram.calc_attn(q, k.double() if bad else k, v, key),
        "v=torch.float32[2, 16]": lambda bad: tangram.calc_attn(q, k, v[0] if bad else v, key),
        "q=torch.float32[": lambda bad: tangram.calc_attn(*((k, q) if bad else (q, k)), v, key),
    }
    for text, call in wrong.items():
        try:
            call(rank == 1)
        except InvalidArgument as error:
            assert text in str(error) and (rank == 1 or "rank 1" in str(error)), error
        else:
            raise AssertionError(f"accepted: {text}")
        assert torch.equal(tangram.undispatch(q, key), whole(150, 1)[0])
    for call in (tangram.undispatch, tangram.dispatch, lambda x, key: tangram.calc_attn(x, x, x, key)):
        try:
            call(q, "key")
        except InvalidArgument as error:
            assert "key must be a DistAttnRuntimeKey (got str)" in str(error), error
        else:
            raise AssertionError("accepted a name as a key")


def check_keys_are_hard_to_misuse(group):
    total = 150
    key = flex_key(RANGES, total, group)
    pad = key.pad_size
    assert copy.deepcopy({"key": key})["key"] is key and repr(key).startswith(f"DistAttnRuntimeKey(rank={key.rank}, ")
    common = (total, total, HEADS, HEADS_KV, DIM)

    def make(q=((0, total),), kind="full", padding=pad, config=None):
        return tangram.magi_attn_flex_key(
            list(q), [(0, total)], kind, *common, padding, group, chunk_size=16, dist_attn_config=config
        )

    assert make(padding=[pad, pad]) is make(padding=(pad, pad)) is make() and make().pad_size == pad
    x = tangram.dispatch(torch.zeros(total, 2), key)
    for call, text in (
        (lambda: make(padding=1.5), "pad_size must be an integer"),
        (lambda: make(padding=(1, 2, 3)), "pad_size must be an integer"),
        (lambda: make(q=(0, total)), "ranges must be pairs"),
        (lambda: make(kind=[1.5]), "mask types are names or integers (got 1.5)"),
        (lambda: make(config={"overlap": 1}), "must be a DistAttnConfig (got dict)"),
        (lambda: tangram.dispatch(np.zeros(total), key), "dispatch: needs a torch tensor (got ndarray)"),
        (lambda: tangram.dispatch_labels([0] * total, key), "dispatch_labels: needs a torch tensor (got list)"),
        (lambda: tangram.roll(x, key, 1, 1), "dimension 0 of a dispatched tensor (got dims=1)"),
        (lambda: torch.vmap(lambda y: tangram.dispatch(y, key))(torch.zeros(2, total)), "torch.func are not supported"),
    ):
        try:
            call()
        except InvalidArgument as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")
    assert torch.equal(tangram.roll(x, key, 1, -2), x)
    try:
        pickle.dumps(key)
    except TypeError as error:
        assert "belongs to its process group" in str(error)
    else:
        raise AssertionError("pickled a key")
    # Rows only move, so second derivatives through them are exact: of sum((x^2)^2) they are 12 x^2.
    y = torch.randn(total, 2, generator=torch.Generator().manual_seed(6)).requires_grad_()
    moved = tangram.undispatch(tangram.roll(tangram.dispatch(y * y, key), key, 7), key)
    (first,) = torch.autograd.grad(moved.square().sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    torch.testing.assert_close(second, 12 * y.detach() ** 2)


def check_executors(group):
    """Few keys hold GPU memory at a time; those of a captured graph as long as they live."""

    def executor(key):
        return weakref.ref(key.attention(torch.float32, DIM, None, 0))

    keys = [tangram.mask_key(tangram.Mask.causal(48 + i), HEADS, HEADS_KV, DIM, group) for i in range(12)]
    first, second = executor(keys[0]), executor(keys[1])
    assert executor(keys[0])() is first()
    with patch.object(_cuda, "is_capturing", lambda: True):
        executor(keys[1])
    others = [executor(key) for key in keys[2:]]
    assert first() is None and second() is not None
    assert sum(other() is not None for other in others) == 8
    del keys[1]
    tangram.distributed.clear_keys()
    assert second() is None


def check_kept_on_device(group):
    """Of passes with one key the latest keeps remote K/V in GPU memory; an earlier one fetches them again."""

    def run(keeps):
        key = flex_key(RANGES, 150, group, DistAttnConfig(overlap=OverlapConfig(1, 1, keep_remote_kv=keeps)))
        shards = [tangram.dispatch(x.detach(), key).requires_grad_() for x in whole(150, 1)]
        tangram.calc_attn(*shards, key)  # nobody asks for its gradients
        outs = [tangram.calc_attn(*(x * scale for x in shards), key)[0] for scale in (1, 2)]
        grads, rows = [], []
        for out in (outs[1], outs[0], outs[1]):  # that of the latest twice
            before = key.group.group.traffic()
            grads += torch.autograd.grad(out, shards, torch.ones_like(out), retain_graph=True)
            rows.append(key.group.group.traffic() - before)
        with torch.no_grad():
            tangram.calc_attn(*shards, key)
        return grads, rows

    (kept, kept_rows), (plain, plain_rows) = run(True), run(False)
    for ours, wanted in zip(kept, plain, strict=True):
        torch.testing.assert_close(ours, wanted)
    moved = torch.tensor([kept_rows, plain_rows])
    dist.all_reduce(moved, group=group)
    assert moved[0, 0] < moved[1, 0] and torch.equal(moved[0, 1:], moved[1, 1:]), moved


def check_as_device(group):
    """The way of tensors in GPU memory, over host memory."""
    with as_device():
        check_rows(group)
        check_rows_of_any_kind(group)
        check_step(group, softcap=2.0, sink=True)
        check_step(group, DistAttnConfig(overlap=OverlapConfig(2, 2, keep_remote_kv=True)))
        check_hybrid(group)
        check_compiled(group)
        check_compiled_steps(group)
        check_cross(group)
        check_executors(group)
        check_kept_on_device(group)
        for strategy in ("ulysses", "ring", "hybrid_cp", "auto"):
            check_step(group, DistAttnConfig(strategy=strategy, overlap=OverlapConfig(keep_remote_kv=True)))
        key = flex_key(RANGES, 150, group)
        on_device = key.group.on_device(0)
        assert on_device.calls > 0
        tangram.check_errors(group)
        assert on_device.checks == 1
        try:
            key.group.on_device(1)
        except InvalidArgument as error:
            assert "a rank computes on one GPU of a group (got 1 after 0)" in str(error), error
        else:
            raise AssertionError("computes on two GPUs")
    key.group._on_device = None
    check_step(group)


def check_keys(group):
    a = flex_key(RANGES, 150, group)
    assert flex_key(RANGES, 150, group) is a and tangram.get_most_recent_key(group) is a
    tensors = [torch.tensor(r, dtype=torch.int32) for r in (*RANGES[:2], NUMBERS)]
    assert flex_key((tensors[0], tensors[1], tensors[2].tolist()), 150, group) is a
    b = flex_key(RANGES, 150, group, DistAttnConfig(overlap=OverlapConfig(num_stages_fwd=2)))
    assert b is not a and tangram.get_most_recent_key(group) is b
    next_mask = tangram.Mask.varlen([0, 20, 150])
    ahead = tangram.mask_key_ahead(next_mask, HEADS, HEADS_KV, DIM, group).result(timeout=60)
    assert tangram.get_most_recent_key(group) is b
    assert tangram.mask_key(next_mask, HEADS, HEADS_KV, DIM, group) is ahead is tangram.get_most_recent_key(group)
    cu = [0, 30, 100, 150]
    c = tangram.magi_attn_varlen_key(cu, cu, HEADS, HEADS_KV, DIM, a.pad_size, group, causal=True, chunk_size=16)
    assert c.plan.mask.area == sum(n * (n + 1) // 2 for n in (30, 70, 50))
    # The keys used last are kept, those of each group apart.
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    of_another_group = tangram.mask_key(next_mask, HEADS, HEADS_KV, DIM, alone)
    for i in range(KEYS_PER_GROUP - 1):
        tangram.mask_key(tangram.Mask.sliding_window(256, (i, 0)), HEADS, HEADS_KV, DIM, group)
        assert flex_key(RANGES, 150, group) is a
    assert tangram.mask_key(next_mask, HEADS, HEADS_KV, DIM, group) is not ahead
    assert tangram.mask_key(next_mask, HEADS, HEADS_KV, DIM, alone) is of_another_group


def check_hybrid(group):
    """One dispatch, two masks."""
    total = 150
    first = flex_key(RANGES, total, group)
    second = tangram.make_varlen_key_for_new_mask_after_dispatch([0, 150], [0, 150], first, window_size=(9, 0))
    third = tangram.make_flex_key_for_new_mask_after_dispatch([(0, 150)], [(0, 150)], "causal", first)
    assert second.plan.q_dispatch == first.plan.q_dispatch == third.plan.q_dispatch
    q, k, v = whole(total, 8)
    i, j = np.arange(total)[:, None], np.arange(total)[None, :]
    with torch.no_grad():
        shards = [tangram.dispatch(x, first) for x in (q, k, v)]
        for key, cells in ((second, (j <= i) & (i - j <= 9)), (third, j <= i)):
            out = tangram.undispatch(tangram.calc_attn(*shards, key)[0], first)
            expected = attention(*(x.detach().numpy() for x in (q, k, v)), cells)
            np.testing.assert_allclose(out.numpy(), expected.out, atol=1e-4)


def check_compiled(group):
    """A graph without breaks, for any number of keys."""
    compiled_steps = 0

    def backend(graph, _):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    def step(q, k, v, key, sink):
        out, meta = tangram.calc_attn(q * 2, k, v, key, sink=sink, softcap=3.0, return_max_logits=True)
        return (out * 3).sum(), meta.max_logits

    compiled = [torch.compile(step, backend=b, fullgraph=True) for b in (backend, "aot_eager")]
    for left in range(5):
        key = tangram.mask_key(tangram.Mask.sliding_window(64, (left, 0)), 2, 2, 8, group, chunk_size=8)
        generator = torch.Generator().manual_seed(10 * left + key.rank)
        inputs = [torch.randn(key.rows("q").per_rank, 2, 8, generator=generator).requires_grad_() for _ in range(3)]
        inputs.append(torch.ones(2, 2).requires_grad_())
        results = []
        for run in (step, *compiled):
            loss, peaks = run(*inputs[:3], key, inputs[3])
            results.append([loss.detach(), peaks, *torch.autograd.grad(loss, inputs)])
        for others in results[1:]:
            for ours, wanted in zip(others, results[0], strict=True):
                torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    assert compiled_steps <= 2, compiled_steps  # for one key, and for all others


def check_compiled_steps(group):
    """A whole step, from the tensors that all ranks hold and back to them, in one graph."""
    compiled_steps = 0

    def backend(graph, _):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    def step(x, labels, key):
        q = tangram.dispatch(x, key) * 2
        out = tangram.calc_attn(q, q[:, :2], q[:, :2], key)[0]
        whole = tangram.undispatch(tangram.roll(out, key, -3), key)
        return (whole * whole).sum(), tangram.dispatch(labels, key, pad_value=-100)

    compiled = [torch.compile(step, backend=b, fullgraph=True) for b in (backend, "aot_eager")]
    for total in (60, 75, 90, 100):
        key = tangram.mask_key(tangram.Mask.sliding_window(total, (9, 0)), 4, 2, 8, group, chunk_size=8)
        x = torch.randn(total, 4, 8, generator=torch.Generator().manual_seed(total)).requires_grad_()
        results = []
        for run in (step, *compiled):
            loss, labels = run(x, torch.arange(total), key)
            results.append([loss.detach(), labels, *torch.autograd.grad(loss, x)])
        for others in results[1:]:
            for ours, wanted in zip(others, results[0], strict=True):
                torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-4)
    assert compiled_steps <= 3, compiled_steps


def check_errors(group):
    """A mistake of one rank ends in an error on all, and the group works on."""
    rank = dist.get_rank(group)
    key = flex_key(RANGES, 150, group)
    with torch.no_grad():
        q, k, v = (tangram.dispatch(x, key) for x in whole(150, 1))
        bad = q[:-1] if rank == 1 else q
        try:
            tangram.calc_attn(bad, k, v, key)
        except InvalidArgument as error:
            assert rank == 1 or "rank 1" in str(error), error
        else:
            raise AssertionError("accepted a shard of wrong size")
        tangram.calc_attn(q, k, v, key)
    inputs = [x.requires_grad_() for x in (q.clone(), k.clone(), v.clone())]
    for loss in (lambda out: out.square().sum(), lambda out: out.sum()):
        (dq,) = torch.autograd.grad(loss(tangram.calc_attn(*inputs, key)[0]), inputs[0], create_graph=True)
        try:
            (dq.sum() + inputs[0].sum()).backward()
        except RuntimeError as error:
            assert "calc_attn: second derivatives are not supported" in str(error), error
        else:
            raise AssertionError("made second derivatives")
    with torch.no_grad():
        other = flex_key(([(0, 100 + min(rank, 1))], [(0, 150)], "full"), 150, group)
        try:
            tangram.calc_attn(q, k, v, other)
        except InvalidArgument as error:
            assert "equal on every rank" in str(error), error
        else:
            raise AssertionError("accepted ranks with different masks")
        tangram.calc_attn(q, k, v, key)


def check_cross(group):
    """Queries and keys of different length have a dispatch each."""
    total_q, total_k = 90, 200
    ranges = ([(0, 40), (40, 90)], [(0, 120), (60, 200)], [0, 1])
    mask = tangram.Mask.from_ranges(*ranges, total_q, total_k)
    key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group, chunk_size=8)
    assert not key.is_self_attention
    same = tangram.magi_attn_flex_key(
        *ranges, total_q, total_k, HEADS, HEADS_KV, DIM, key.pad_size, group, chunk_size=8
    )
    assert same.plan == key.plan
    generator = torch.Generator().manual_seed(6)
    q = torch.randn(total_q, HEADS, DIM, generator=generator).requires_grad_()
    k, v = (torch.randn(total_k, HEADS_KV, DIM, generator=generator).requires_grad_() for _ in range(2))
    dout = torch.randn(q.shape, generator=generator)
    shards = [tangram.dispatch(q, key), tangram.dispatch(k, key, side="k"), tangram.dispatch(v, key, side="k")]
    out = tangram.undispatch(tangram.calc_attn(*shards, key)[0], key)
    out.backward(dout)
    cells = typed_cells(*ranges, total_q, total_k)
    expected = attention(*(x.detach().numpy() for x in (q, k, v)), cells, dout=dout.numpy())
    np.testing.assert_allclose(out.detach().numpy(), expected.out, atol=1e-4)
    for x, want in zip((q, k, v), (expected.dq, expected.dk, expected.dv), strict=True):
        np.testing.assert_allclose(x.grad.numpy(), want, atol=1e-4)
    positions = tangram.get_position_ids(key, "k")
    real = tangram.get_loss_mask(key, "k")
    assert torch.equal(real, positions < total_k)
    assert torch.equal(tangram.dispatch(torch.arange(total_k), key, side="k")[real], positions[real])
    rolled = tangram.roll(tangram.dispatch(torch.arange(total_k), key, side="k"), key, 3, side="k")
    assert torch.equal(tangram.undispatch(rolled, key, side="k"), torch.arange(total_k).roll(3))
    try:
        tangram.dispatch(k, key)
    except InvalidArgument as error:
        assert "90 rows on side 'q' (got shape=(200," in str(error), error
    else:
        raise AssertionError("accepted keys as queries")


def check_labels(group):
    """Labels of shards against those of the whole sequence."""
    total, cu = 150, [0, 37, 37, 38, 150]
    key = flex_key(RANGES, total, group)
    tokens = torch.arange(1000, 1000 + total)
    real = tangram.get_loss_mask(key)
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(key.cp_size)]
    dist.all_gather(counts, real.sum()[None], group=group)
    assert sum(counts).item() == total and real.shape[0] * key.cp_size >= total
    for shift in (0, 1, 2, 200):
        for borders in (None, cu, torch.tensor(cu, dtype=torch.int32)):
            labels = tangram.dispatch_labels(tokens, key, shift, borders, ignore_index=-7)
            assert (labels[~real] == -7).all()
            ends = [e for b, e in zip(cu, cu[1:], strict=False) for _ in range(e - b)] if borders is not None else None
            whole = [1000 + i + shift if i + shift < (total if ends is None else ends[i]) else -7 for i in range(total)]
            assert tangram.undispatch(labels, key).tolist() == whole
    for wrong in ([0, 100], [0, 90, 80, 150]):
        try:
            tangram.dispatch_labels(tokens, key, 1, wrong)
        except InvalidArgument as error:
            assert "cu_seqlens must rise from 0 to 150" in str(error), error
        else:
            raise AssertionError("accepted borders that do not fit")


def check_padding(group):
    """mask_key pads by itself, whatever the length."""
    for total in (1, 7, 129, 1000):
        key = tangram.mask_key(tangram.Mask.causal(total), 1, 1, 8, group)
        q, k, v = (torch.randn(total, 1, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
        out = tangram.calc_attn(*(tangram.dispatch(x, key) for x in (q, k, v)), key)[0]
        expected = tangram.flex_flash_attn_func(q, k, v, tangram.Mask.causal(total))[0]
        torch.testing.assert_close(tangram.undispatch(out, key), expected)
        assert total < 64 or key.pad_size <= total // 16
    mask = tangram.Mask.causal(120, 128)  # would be padded to one length
    key = tangram.mask_key(mask, 1, 1, 8, group, chunk_size=32)
    assert not key.is_self_attention


def check_death(how):
    """A rank that stops answering is named by the others at the deadline, one that dies at once."""
    key = flex_key(RANGES, 150, None)
    shards = [tangram.dispatch(x, key) for x in whole(150, 1)]
    out, _ = tangram.calc_attn(*shards, key)
    if dist.get_rank() == 1:
        if how == "silence":
            time.sleep(10)
        os._exit(0)
    started = time.monotonic()
    try:
        out.sum().backward()
    except tangram.Timeout as error:
        assert how == "silence" and 2 < time.monotonic() - started < 9, error
        assert isinstance(error, TimeoutError) and isinstance(error, RuntimeError)
        assert "rank 1" in str(error) and "grad" in str(error) or "stage" in str(error), error
    except tangram.CommError as error:
        assert how == "kill" and time.monotonic() - started < 10, error  # the deadline is 30 s
        assert "rank 1" in str(error) and isinstance(error, RuntimeError), error
    else:
        raise AssertionError("the backward pass of a single rank came to an end")
    print(f"rank {dist.get_rank()} saw it", flush=True)


def check_nobody_comes():
    """The first key is where ranks meet."""
    if dist.get_rank() == 1:
        time.sleep(5)
        os._exit(0)
    try:
        flex_key(RANGES, 150, None)
    except tangram.Timeout as error:
        assert "must make its first key" in str(error) and "of rank 1 on rank 0" in str(error), error
    else:
        raise AssertionError("made a key alone")
    print("rank 0 saw it", flush=True)


def main():
    dist.init_process_group("gloo")
    if sys.argv[1] in ("silence", "kill"):
        check_death(sys.argv[1])
        os._exit(0)
    if sys.argv[1] == "hosts":
        # As if each rank had a host of its own: they meet at a port of rank 0.
        rank = dist.get_rank()
        _torch_group._host_id = lambda: f"host {rank}"
        check_step(dist.group.WORLD)
        check_rows(dist.group.WORLD)
        dist.barrier()
        dist.destroy_process_group()
        return
    if sys.argv[1] == "alone":
        check_nobody_comes()
        os._exit(0)
    world = dist.group.WORLD
    check_keys(None)
    check_rows(world)
    check_step(world)
    check_step(world, softcap=2.0, sink=True)
    check_step(world, DistAttnConfig(overlap=OverlapConfig(2, 2, keep_remote_kv=True)))
    check_step(world, DistAttnConfig(movement=MovementConfig("qo", head_groups=HEADS_KV)), softcap=2.0, sink=True)
    keeps = OverlapConfig(keep_remote_kv=True)
    check_step(world, DistAttnConfig(overlap=keeps, movement=MovementConfig("qo", head_groups=1)))
    check_step(world, dtype=torch.bfloat16)
    check_hybrid(world)
    check_errors(world)
    check_compiled(world)
    check_compiled_steps(world)
    check_cross(world)
    check_labels(world)
    check_padding(world)
    check_rows_of_any_kind(world)
    check_refusals(world)
    check_keys_are_hard_to_misuse(world)
    check_as_device(world)
    check_strategies(world)
    if dist.get_world_size() == 4:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        check_step(mesh["cp"].get_group())  # two groups at once
        check_step(mesh["dp"].get_group())
        flat = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
        for whole_mesh in (mesh["cp"], flat, mesh):
            key = tangram.mask_key(tangram.Mask.causal(64), HEADS, HEADS_KV, DIM, whole_mesh)
            assert key.cp_size == whole_mesh.size() and tangram.get_most_recent_key(whole_mesh) is key
            x = torch.arange(64)
            assert torch.equal(tangram.undispatch(tangram.dispatch(x, key), key), x)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
