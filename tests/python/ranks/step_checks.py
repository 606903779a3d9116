# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Steps through dispatch, calc_attn and undispatch against dense attention in float64."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

import tangram
from reference import attention, typed_cells
from tangram import DistAttnConfig, InvalidArgument, MovementConfig, OverlapConfig, _values

HEADS, HEADS_KV, DIM = 4, 2, 16


RANGES = ([(0, 40), (40, 90), (90, 150)], [(0, 40), (20, 90), (0, 150)], ["causal", "full", "bi_causal"])
NUMBERS = [1, 0, 3]


def whole(total, seed, dtype=torch.float32, head_dims=(DIM, DIM)):
    generator = torch.Generator().manual_seed(seed)
    dim, dim_v = head_dims
    shapes = [(total, HEADS, dim), (total, HEADS_KV, dim), (total, HEADS_KV, dim_v)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def flex_key(ranges, total, group, config=None, chunk_size=16, head_dim=DIM):
    pad = tangram.compute_pad_size(total, dist.get_world_size(group), chunk_size)
    return tangram.magi_attn_flex_key(
        *ranges, total, total, HEADS, HEADS_KV, head_dim, pad, group, chunk_size=chunk_size, dist_attn_config=config
    )


def check_step(group, config=None, softcap=0.0, sink=False, dtype=torch.float32, head_dims=(DIM, DIM)):
    """Forward and backward through dispatch, calc_attn and undispatch against dense float64."""
    total = 150  # needs padding
    key = flex_key(RANGES, total, group, config, head_dim=head_dims[0])
    q, k, v = whole(total, 1, dtype, head_dims)
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


def check_row_sinks(group, config=None, run=tangram.calc_attn):
    """Sinks of single rows, which move with the heads of their queries, and their gradients back."""
    total = 150
    key = flex_key(RANGES, total, group, config)
    for count in (2, 1):
        q, k, v = whole(total, 1)
        generator = torch.Generator().manual_seed(9 + count)
        sinks = torch.randn(total, count, HEADS, generator=generator).requires_grad_()
        dout = torch.randn(q.shape, generator=generator)
        shards = [tangram.dispatch(x, key) for x in (q, k, v)]
        out, meta = run(*shards, key, sink=tangram.dispatch(sinks, key), sink_layout="ssh", softcap=2.0)
        full, lse = tangram.undispatch(out, key), tangram.undispatch(meta.lse, key)
        full.backward(dout)
        expected = attention(
            *(x.detach().numpy() for x in (q, k, v)),
            typed_cells(RANGES[0], RANGES[1], NUMBERS, total, total),
            softcap=2.0,
            sink=sinks.detach().numpy(),
            dout=dout.numpy(),
        )
        # Tolerance of check_step: sums of at most 150 products of values around 1 in float32.
        for name, got in zip(("out", "lse", "dq", "dk", "dv"), (full, lse, q.grad, k.grad, v.grad), strict=True):
            np.testing.assert_allclose(got.detach().numpy(), getattr(expected, name), atol=1e-4, err_msg=name)
        np.testing.assert_allclose(sinks.grad.numpy(), expected.dsink, atol=1e-4)


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


def check_head_masks(group):
    """A mask for each group of heads, in one plan of any movement, and beside a mask of all heads."""
    total = 150
    masks = [tangram.Mask.causal(total), tangram.Mask.sliding_window(total, (30, 4))]
    i, j = np.arange(total)[:, None], np.arange(total)[None, :]
    cells = [j <= i, (i - j <= 30) & (j - i <= 4)]
    generator = torch.Generator().manual_seed(13)
    sinks = torch.randn(2, HEADS, generator=generator)
    dout = torch.randn(total, HEADS, DIM, generator=generator)
    expected = []
    for g in range(2):
        of_q, of_kv = slice(2 * g, 2 * g + 2), slice(g, g + 1)
        q, k, v = (x.detach().numpy() for x in whole(total, 1))
        operands = (q[:, of_q], k[:, of_kv], v[:, of_kv], cells[g])
        expected.append(attention(*operands, sink=sinks[:, of_q].numpy(), dout=dout[:, of_q].numpy()))
    dispatched = flex_key(RANGES, total, group)
    keys = [tangram.make_mask_key_after_dispatch(masks, dispatched)]
    for movement in ("kv", "qo", "auto"):
        config = DistAttnConfig(movement=MovementConfig(movement))
        keys.append(tangram.mask_key(masks, HEADS, HEADS_KV, DIM, group, chunk_size=16, dist_attn_config=config))
        same = tangram.mask_key(list(masks), HEADS, HEADS_KV, DIM, group, chunk_size=16, dist_attn_config=config)
        assert same is keys[-1]
    for key in keys:
        q, k, v = whole(total, 1)
        sink = sinks.clone().requires_grad_()
        shards = (tangram.dispatch(x, key) for x in (q, k, v))
        out, meta = tangram.calc_attn(*shards, key, sink=sink, return_max_logits=True)
        full = tangram.undispatch(out, key)
        full.backward(dout)
        lse = tangram.undispatch(meta.lse, key)
        for name, got in (("out", full), ("lse", lse), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
            want = np.concatenate([getattr(one, name) for one in expected], 1)
            np.testing.assert_allclose(got.detach().numpy(), want, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(sink.grad.numpy(), np.concatenate([one.dsink for one in expected], 1), atol=1e-3)
        np.testing.assert_allclose(
            meta.max_logits.numpy(), np.concatenate([one.max_logits for one in expected]), atol=1e-4
        )
    for wrong, text in (
        (masks * 2, "must divide num_heads_kv"),
        ([masks[0], tangram.Mask.causal(total + 1)], "must be of one size"),
        ([masks[0], "causal"], "must hold nothing else"),
    ):
        try:
            tangram.mask_key(wrong, HEADS, HEADS_KV, DIM, group, chunk_size=16)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")


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
    assert (positions[~real] == total_k - 1).all()
    assert torch.equal(tangram.dispatch(torch.arange(total_k), key, side="k")[real], positions[real])
    rolled = tangram.roll(tangram.dispatch(torch.arange(total_k), key, side="k"), key, 3, side="k")
    assert torch.equal(tangram.undispatch(rolled, key, side="k"), torch.arange(total_k).roll(3))
    try:
        tangram.dispatch(k, key)
    except InvalidArgument as error:
        assert "90 rows on side 'q' (got shape=(200," in str(error), error
    else:
        raise AssertionError("accepted keys as queries")


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
        # Tensors that forward leaves by heads need not move there again for backward.
        config = DistAttnConfig(strategy=strategy)
        plain = rows_of_backward(group, config)
        kept = rows_of_backward(group, _values.changed(config, overlap=OverlapConfig(keep_remote_kv=True)))
        by_heads = flex_key(RANGES, 150, group, config).plan.exchanges_heads
        assert kept < plain if by_heads else kept == plain, (strategy, kept, plain)
    count = dist.get_world_size(group)
    if count == 4:  # 2 x 2
        check_step(group, DistAttnConfig(strategy="usp", ulysses_degree=2))
        check_step(group, DistAttnConfig(strategy="loong_train", ulysses_degree=1, inner_ring_size=2))
        check_step(group, DistAttnConfig(strategy="hcms", head_chunks=[1]))
        check_step(group, DistAttnConfig(strategy="ulysses"), dtype=torch.bfloat16)
    for config, text in (
        (DistAttnConfig(strategy="usp", ulysses_degree=3), "ulysses_degree"),
        (DistAttnConfig(strategy="hcms", head_chunks=[7]), "head_chunks must add up"),
        (DistAttnConfig(strategy="auto", ulysses_degree=2), "strategy auto chooses"),
        (DistAttnConfig(document_rows=20), "strategy.document_rows needs strategy hybrid_cp (got tangram)"),
        (DistAttnConfig(movement=MovementConfig("kv", head_groups=2)), "movement.head_groups needs a movement"),
        (
            DistAttnConfig(strategy="ring", inner_ring_size=2),
            "strategy.inner_ring_size needs strategy loong_train (got ring)",
        ),
    ):
        try:
            flex_key(RANGES, 150, group, config)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")
    for strategy in ("ulysses", "hcms", "usp", "ring"):
        for keeps in (False, True):
            check_row_sinks(group, DistAttnConfig(strategy=strategy, overlap=OverlapConfig(keep_remote_kv=keeps)))
