# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of training over GPUs against dense attention in float64; cuda_checks.py runs them on every rank."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.distributed as dist

import tangram
from reference import attention, mask_cells, typed_cells
from tangram import DistAttnConfig, InvalidArgument, MovementConfig, OverlapConfig

HEADS, HEADS_KV, DIM = 4, 2, 64
TOTAL = 1000  # needs padding
RANGES = ([(0, 300), (300, 600), (600, 1000)], [(0, 300), (100, 600), (0, 1000)], ["causal", "full", "bi_causal"])
NUMBERS = [1, 0, 3]
# Kernels round probabilities, dS and results to 8 bits of fraction: relative L2 errors of whole tensors, the bounds of
# flex_cuda_test.py.
BOUND = 4 / 512


def key_of(ranges=RANGES, total=TOTAL, config=None, head_dim=DIM):
    pad = tangram.compute_pad_size(total, dist.get_world_size(), 64)
    return tangram.magi_attn_flex_key(
        *ranges, total, total, HEADS, HEADS_KV, head_dim, pad, None, chunk_size=64, dist_attn_config=config
    )


def whole(seed, total=TOTAL, head_dims=(DIM, DIM)):
    generator = torch.Generator().manual_seed(seed)
    dim, dim_v = head_dims
    shapes = [(total, HEADS, dim), (total, HEADS_KV, dim), (total, HEADS_KV, dim_v)]
    return [torch.randn(s, generator=generator).to("cuda", torch.bfloat16).requires_grad_() for s in shapes]


def as_double(x):
    return x.detach().double().cpu().numpy()


def assert_close(got, want, bound, name):
    got = as_double(got)
    error = np.linalg.norm(got - want)
    assert error <= bound * np.linalg.norm(want) + 1e-3, (name, error, np.linalg.norm(want))


def step(tensors, key, dout, **options):
    """(out, meta, gradients of the whole tensors)."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out, meta = tangram.calc_attn(*(tangram.dispatch(x, key) for x in leaves), key, **options)
    full = tangram.undispatch(out, key)
    full.backward(dout)
    return full.detach(), meta, [x.grad for x in leaves]


def inputs_of_step(sink, head_dims=(DIM, DIM)):
    """(q, k, v, sink or None, dout) of the whole sequence."""
    generator = torch.Generator().manual_seed(5)
    s = torch.randn(2, HEADS, generator=generator).to("cuda").requires_grad_() if sink else None
    tensors = whole(1, head_dims=head_dims)
    dout = torch.randn(TOTAL, HEADS, head_dims[1], generator=generator).to("cuda", torch.bfloat16)
    return *tensors, s, dout


@cache
def expected_of_step(softcap, sink, head_dims):
    *tensors, s, dout = inputs_of_step(sink, head_dims)
    return attention(
        *(as_double(x) for x in tensors),
        typed_cells(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL),
        softcap=softcap,
        sink=None if s is None else as_double(s),
        dout=as_double(dout),
    )


def check_step(config=None, softcap=0.0, sink=False, head_dims=(DIM, DIM)):
    key = key_of(config=config, head_dim=head_dims[0])
    *tensors, s, dout = inputs_of_step(sink, head_dims)
    out, meta, grads = step(tensors, key, dout, sink=s, softcap=softcap, return_max_logits=True)
    expected = expected_of_step(softcap, sink, head_dims)
    assert_close(out, expected.out, BOUND, "out")
    np.testing.assert_allclose(as_double(meta.max_logits), expected.max_logits, rtol=1e-3)
    np.testing.assert_allclose(as_double(tangram.undispatch(meta.lse, key)), expected.lse, atol=1e-3)
    for name, got, want in zip("qkv", grads, (expected.dq, expected.dk, expected.dv), strict=True):
        assert_close(got, want, 3 * BOUND, f"d{name}")
    if s is not None:
        assert_close(s.grad, expected.dsink, 10 * BOUND, "dsink")
    tangram.check_errors()


def check_new_masks():
    """Keys of masks that follow each other; over nodes of a GPU each their ranks do not meet to prepare passes."""
    rng = np.random.default_rng(0)
    total = 1024
    tensors = whole(9, total)
    generator = torch.Generator().manual_seed(7)
    dout = torch.randn(total, HEADS, DIM, generator=generator).to("cuda", torch.bfloat16)
    for stages in (1, 1, 1, 4):
        ends = [0, *sorted(rng.choice(np.arange(1, total), 5, replace=False).tolist()), total]
        mask = tangram.Mask.varlen(ends, causal=True)
        config = DistAttnConfig(overlap=OverlapConfig(stages, stages))
        key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, dist_attn_config=config)
        out, _, grads = step(tensors, key, dout)
        expected = attention(*(as_double(x) for x in tensors), mask_cells(mask), dout=as_double(dout))
        assert_close(out, expected.out, BOUND, "out")
        for name, got, want in zip("qkv", grads, (expected.dq, expected.dk, expected.dv), strict=True):
            assert_close(got, want, 3 * BOUND, f"d{name}")
    tangram.check_errors()


def check_hybrid():
    """One dispatch, two masks in turn, many times: epochs of several passes in one sequence."""
    first = key_of()
    second = tangram.make_varlen_key_for_new_mask_after_dispatch([0, TOTAL], [0, TOTAL], first, window_size=(63, 0))
    q, k, v = whole(8)
    shards = [tangram.dispatch(x.detach(), first) for x in (q, k, v)]
    i, j = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
    cells = {id(first): typed_cells(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL), id(second): (j <= i) & (i - j <= 63)}
    expected = {name: attention(*(as_double(x) for x in (q, k, v)), c).out for name, c in cells.items()}
    for _ in range(25):
        outs = [(key, tangram.calc_attn(*shards, key)[0]) for key in (first, second, second)]
    for key, out in outs:
        assert_close(tangram.undispatch(out, first), expected[id(key)], BOUND, "out of a hybrid layer")
    tangram.check_errors()


def check_strategies():
    """Every strategy gives what one process would, with and without what it keeps between the passes."""
    for strategy in ("ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp", "auto"):
        for keeps in (False, True):
            config = DistAttnConfig(strategy=strategy, overlap=OverlapConfig(keep_remote_kv=keeps))
            check_step(config, softcap=2.0, sink=True)
    if dist.get_world_size() == 1:
        return
    tangram.check_errors()


def check_dtypes():
    """Results and gradients in float32, or one of both, by every way of moving rows; those of q are the roundings."""
    float32, bfloat16 = torch.float32, torch.bfloat16
    configs = [DistAttnConfig(strategy=strategy) for strategy in ("tangram", "ulysses", "hcms", "ring", "usp")]
    configs.append(DistAttnConfig(movement=MovementConfig("qo", head_groups=1)))
    for config in configs:
        key = key_of(config=config)
        leaves = [tangram.dispatch(t.detach(), key).requires_grad_() for t in whole(4)]
        results = {}
        for dtypes in ((None, None), (float32, float32), (float32, bfloat16), (None, float32)):
            out_dtype, grad_dtype = dtypes
            for x in leaves:
                x.grad_dtype = grad_dtype or bfloat16
            out, _ = tangram.calc_attn(*leaves, key, deterministic=True, out_dtype=out_dtype, grad_dtype=grad_dtype)
            grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
            assert out.dtype is (out_dtype or bfloat16) and grads[0].dtype is (grad_dtype or bfloat16), (config, dtypes)
            results[dtypes] = (out, *grads)
        plain, wide = results[None, None], results[float32, float32]
        for ours, exact in zip(plain, wide, strict=True):
            assert_close(ours, as_double(exact), BOUND, f"rounded results of {config}")
        assert torch.equal(results[float32, bfloat16][0], wide[0]) and torch.equal(results[None, float32][0], plain[0])
    tangram.check_errors()


@cache
def expected_with_row_sinks(count):
    *tensors, _, dout = inputs_of_step(False)
    cells = typed_cells(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL)
    sinks = as_double(row_sinks(count))
    return attention(*(as_double(x) for x in tensors), cells, sink=sinks, dout=as_double(dout))


def row_sinks(count):
    return torch.randn(TOTAL, count, HEADS, generator=torch.Generator().manual_seed(7)).to("cuda")


def check_row_sinks():
    """Sinks of single rows, which move with the heads of their queries, and their gradients back."""
    compiled = torch.compile(tangram.calc_attn, backend="aot_eager")
    for strategy in ("tangram", "ulysses", "hcms", "usp", "ring"):
        for count, keeps, run in ((2, False, tangram.calc_attn), (1, True, tangram.calc_attn), (2, False, compiled)):
            key = key_of(config=DistAttnConfig(strategy=strategy, overlap=OverlapConfig(keep_remote_kv=keeps)))
            *tensors, _, dout = inputs_of_step(False)
            leaves = [t.detach().requires_grad_() for t in (*tensors, row_sinks(count))]
            *shards, rows = (tangram.dispatch(x, key) for x in leaves)
            out, meta = run(*shards, key, sink=rows, sink_layout="ssh")
            full, lse = tangram.undispatch(out, key), tangram.undispatch(meta.lse, key)
            full.backward(dout)
            expected = expected_with_row_sinks(count)
            np.testing.assert_allclose(as_double(lse), expected.lse, atol=1e-3)
            got = (full, *(x.grad for x in leaves))
            for name, value, bound in zip(("out", "dq", "dk", "dv", "dsink"), got, (1, 3, 3, 3, 10), strict=True):
                assert_close(value, getattr(expected, name), bound * BOUND, f"{name} of {strategy}")
    tangram.check_errors()
    if dist.get_world_size() == 1:
        return
    key = key_of(config=DistAttnConfig(strategy="ulysses"))
    q, k, v = (tangram.dispatch(t.detach(), key) for t in whole(4))
    try:  # a number that differs: an error on all, and the group works on
        tangram.calc_attn(q, k, v, key, sink=q.new_zeros(q.shape[0], 3 + dist.get_rank(), HEADS), sink_layout="ssh")
    except InvalidArgument as error:
        assert "row_sinks, result_dtype and grad_dtype: must be equal on every rank" in str(error), error
    else:
        raise AssertionError("accepted ranks with different numbers of sinks")
    tangram.calc_attn(q, k, v, key)
    tangram.check_errors()


def check_movement():
    """Plans in which queries move give what one process would, with and without what they keep."""
    configs = [DistAttnConfig(movement=MovementConfig("qo", head_groups=groups)) for groups in (1, HEADS_KV)]
    configs += [DistAttnConfig(movement=MovementConfig("binary_greedy")), DistAttnConfig(planner="any")]
    keeps = OverlapConfig(keep_remote_kv=True)
    configs.append(DistAttnConfig(overlap=keeps, movement=MovementConfig("qo", head_groups=1)))
    configs.append(DistAttnConfig(movement=MovementConfig("qo", head_groups=1), reduce_dtype="bfloat16"))
    for config in configs:
        check_step(config, softcap=2.0, sink=True)
        check_step(config)


def check_head_masks(movement="kv"):
    """A mask for each group of heads: on GPUs group by group, over one dispatch, or in one plan where queries move."""
    masks = [tangram.Mask.causal(TOTAL), tangram.Mask.sliding_window(TOTAL, (99, 9))]
    config = DistAttnConfig(movement=MovementConfig(movement))
    key = tangram.mask_key(masks, HEADS, HEADS_KV, DIM, chunk_size=64, dist_attn_config=config)
    i, j = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
    cells = [j <= i, (i - j <= 99) & (j - i <= 9)]
    *tensors, s, dout = inputs_of_step(True)
    out, meta, grads = step(tensors, key, dout, sink=s, return_max_logits=True)
    parts = []
    for g in range(2):
        of_q, of_kv = slice(2 * g, 2 * g + 2), slice(g, g + 1)
        q, k, v = (as_double(x) for x in tensors)
        operands = (q[:, of_q], k[:, of_kv], v[:, of_kv], cells[g])
        parts.append(attention(*operands, sink=as_double(s)[:, of_q], dout=as_double(dout)[:, of_q]))
    for name, got, bound in (("out", out, 1), *zip(("dq", "dk", "dv"), grads, (3, 3, 3), strict=True)):
        assert_close(got, np.concatenate([getattr(part, name) for part in parts], 1), bound * BOUND, name)
    assert_close(s.grad, np.concatenate([part.dsink for part in parts], 1), 10 * BOUND, "dsink")
    np.testing.assert_allclose(as_double(meta.max_logits), np.concatenate([p.max_logits for p in parts]), rtol=1e-3)
    tangram.check_errors()


def check_changing_blocks():
    """Blocks that every step chooses anew, for all heads or each K/V head for itself: planned and computed at once."""
    rows = 1024  # whole blocks, so that small ones are gathered where all keys come first
    tensors = whole(8, rows)
    generator = torch.Generator("cuda").manual_seed(7)
    dout = torch.randn(rows, HEADS, DIM, device="cuda", generator=generator).to(torch.bfloat16)
    q, k, v = (as_double(x) for x in tensors)
    for number, movement in enumerate(("kv", "kv", "auto", "auto")):
        config = DistAttnConfig(movement=MovementConfig(movement))
        for block, groups in ((64, 1 + number % 2), (16, 2 - number % 2)):
            blocks = rows // block
            scores = torch.rand(groups, blocks, blocks, device="cuda", generator=generator)
            indices = scores.topk(blocks // 6).indices
            indices[:, 0] = -1  # rows that see nothing
            masks = tangram.masks_from_block_indices(rows, rows, block, block, indices)
            key = tangram.mask_key(masks, HEADS, HEADS_KV, DIM, chunk_size=64, dist_attn_config=config)
            out, _, grads = step(tensors, key, dout)
            visible = np.zeros((groups, blocks, blocks + 1), bool)
            np.put_along_axis(visible, indices.cpu().numpy(), True, axis=2)
            visible = visible[:, :, :-1].repeat(block, 1).repeat(block, 2)
            parts = []
            for g in range(groups):
                of_q, of_kv = (slice(g * n // groups, (g + 1) * n // groups) for n in (HEADS, HEADS_KV))
                parts.append(attention(q[:, of_q], k[:, of_kv], v[:, of_kv], visible[g], dout=as_double(dout)[:, of_q]))
            for name, got, bound in (("out", out, 1), *zip(("dq", "dk", "dv"), grads, (3, 3, 3), strict=True)):
                wanted = np.concatenate([getattr(part, name) for part in parts], 1)
                assert_close(got, wanted, bound * BOUND, (name, movement, block, groups))
    tangram.check_errors()


def check_reference():
    """The dense reference takes tensors in GPU memory too, through the host."""
    key = key_of()
    *tensors, _, dout = inputs_of_step(False)
    out, _, grads = step(tensors, key, dout, backend="reference")
    assert out.is_cuda and all(x.is_cuda for x in grads)
    expected = expected_of_step(0.0, False, (DIM, DIM))
    for name, got in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True):
        assert_close(got, getattr(expected, name), BOUND, name)


def check_kept():
    """Among passes with one key the latest keeps remote K/V; an earlier one fetches them again."""
    results = []
    for keeps in (True, False):
        key = key_of(config=DistAttnConfig(overlap=OverlapConfig(keep_remote_kv=keeps)))
        shards = [tangram.dispatch(t.detach(), key).requires_grad_() for t in whole(1)]
        grads = []
        for _ in range(3):
            tangram.calc_attn(*shards, key)  # without a backward pass
            outs = [tangram.calc_attn(*(x * scale for x in shards), key)[0] for scale in (1, 2)]
            for out in (outs[1], outs[0], outs[1]):  # that of the latest twice
                grads += torch.autograd.grad(out, shards, torch.ones_like(out), retain_graph=True)
        results.append(grads)
    for ours, wanted in zip(*results, strict=True):
        assert_close(ours, as_double(wanted), BOUND, "a gradient from kept keys")
    tangram.check_errors()


def check_published():
    """A program of the published API, and float32, which is computed on the host."""
    from tangram import magi

    world, size, rank = dist.group.WORLD, dist.get_world_size(), dist.get_rank()
    pad = magi.compute_pad_size(TOTAL, size, 64)
    ranges = [magi.AttnRanges.from_ranges(each) for each in RANGES[:2]]
    overlap = magi.OverlapConfig(degree=2, min_chunk_size=64)
    config = magi.DistAttnConfig(overlap_config=overlap)
    key = magi.magi_attn_flex_key(*ranges, RANGES[2], TOTAL, TOTAL, HEADS, HEADS_KV, DIM, pad, 64, world, config)
    *tensors, s, dout = inputs_of_step(True)
    leaves = [x.detach().requires_grad_() for x in tensors]
    out, meta = magi.calc_attn(*(magi.dispatch(x, key) for x in leaves), key, s, None, 2.0)
    full = magi.undispatch(out, key)
    full.backward(dout)
    dsink = s.grad.cpu()
    dist.all_reduce(dsink)
    expected = expected_of_step(2.0, True, (DIM, DIM))
    grads = zip("qkv", leaves, (expected.dq, expected.dk, expected.dv), strict=True)
    assert_close(full, expected.out, BOUND, "out")
    np.testing.assert_allclose(as_double(magi.undispatch(meta.lse, key)), expected.lse, atol=1e-3)
    for name, x, want in grads:
        assert_close(x.grad, want, 3 * BOUND, f"d{name}")
    assert_close(dsink, expected.dsink, 10 * BOUND, "dsink")
    weights = torch.randn(size, TOTAL, 3, generator=torch.Generator().manual_seed(4)).to("cuda")
    x = magi.dispatch(torch.zeros(TOTAL, 3, device="cuda"), key).requires_grad_()
    magi.undispatch(x, key, is_partial_grad=True).backward(weights[rank])
    positions = tangram.get_position_ids(key.inner, device="cuda")
    real = tangram.get_loss_mask(key.inner, device="cuda")
    torch.testing.assert_close(x.grad[real], weights.sum(0)[positions[real]], atol=1e-5, rtol=0)
    labels = torch.arange(TOTAL, device="cuda")
    assert torch.equal(magi.undispatch(magi.roll(magi.dispatch(labels, key), -1, 0, key), key), labels.roll(-1))
    wide = [x.detach().float().requires_grad_() for x in tensors]
    out, meta = tangram.calc_attn(*(magi.dispatch(x, key) for x in wide), key.inner, softcap=2.0)
    assert out.is_cuda and out.dtype == torch.float32
    exact = attention(*map(as_double, wide), typed_cells(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL), softcap=2.0)
    np.testing.assert_allclose(as_double(magi.undispatch(out, key)), exact.out, atol=2e-4)
    tangram.check_errors()
