# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Programs written for the published API, whose import alone is another one, against dense attention in float64."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

import tangram
from reference import attention, typed_cells
from tangram import magi
from tangram.magi import (
    AttnMaskType,
    AttnOverlapMode,
    AttnRanges,
    DispatchConfig,
    DistAttnConfig,
    MinHeapDispatchAlg,
    OverlapConfig,
    SequentialDispatchAlg,
    UniformOverlapAlg,
    calc_attn,
    compute_pad_size,
    dispatch,
    get_most_recent_key,
    get_position_ids,
    magi_attn_flex_key,
    magi_attn_varlen_key,
    make_flex_key_for_new_mask_after_dispatch,
    make_varlen_key_for_new_mask_after_dispatch,
    roll,
    roll_simple,
    undispatch,
)

TOTAL, CHUNK, HEADS, HEADS_KV, DIM = 150, 16, 4, 2, 16
Q_RANGES, K_RANGES = [[0, 40], [40, 90], [90, 150]], [[0, 40], [20, 90], [0, 150]]
TYPES = [AttnMaskType.CAUSAL, "full", AttnMaskType.BICAUSAL]
ATOL = 1e-4  # float32: sums of at most 150 products of values around 1


def whole(seed, heads_kv=HEADS_KV, heads=HEADS):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(TOTAL, heads, DIM), (TOTAL, heads_kv, DIM), (TOTAL, heads_kv, DIM)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def flex_cells(types=(1, 0, 3)):
    return typed_cells(Q_RANGES, K_RANGES, list(types), TOTAL, TOTAL)


def check_flex(world):
    """A step of training in the words of 1.1: by keywords, with a sink, whose gradient is the rank's own part."""
    world_size = dist.get_world_size(world)
    pad_size = compute_pad_size(total_seqlen_q=TOTAL, cp_size=world_size, chunk_size=CHUNK)
    key = magi_attn_flex_key(
        q_ranges=AttnRanges.from_ranges(Q_RANGES),
        k_ranges=AttnRanges.from_ranges(K_RANGES),
        attn_mask_type=TYPES,
        total_seqlen_q=TOTAL,
        total_seqlen_k=TOTAL,
        num_heads_q=HEADS,
        num_heads_kv=HEADS_KV,
        head_dim=DIM,
        pad_size=pad_size,
        chunk_size=CHUNK,
        cp_group_or_mesh=world,
        dist_attn_config=DistAttnConfig(
            dispatch_config=DispatchConfig(alg=MinHeapDispatchAlg()),
            overlap_config=OverlapConfig(
                enable=True,
                mode=AttnOverlapMode.STATIC,
                degree=2,
                min_chunk_size=8,
                max_num_chunks=64,
                alg=UniformOverlapAlg(),
            ),
        ),
    )
    assert (key.pad_size, key.chunk_size, key.total_seqlen_q) == (pad_size, CHUNK, TOTAL + pad_size)
    assert get_most_recent_key(world) == key and len(key.q_ranges) == len(key.attn_mask_type) == 3 + (pad_size > 0)
    q, k, v = whole(1)
    sink = torch.randn(2, HEADS, generator=torch.Generator().manual_seed(5)).requires_grad_()
    local = [dispatch(x, key) for x in (q, k, v)]
    local_out, meta = calc_attn(*local, key, sink, None, 2.0, True)
    total_out = undispatch(local_out, key)
    dout = torch.randn(total_out.shape, generator=torch.Generator().manual_seed(2))
    total_out.backward(dout)
    expected = attention(
        *(x.detach().numpy() for x in (q, k, v)),
        flex_cells(),
        softcap=2.0,
        sink=sink.detach().numpy(),
        dout=dout.numpy(),
    )
    np.testing.assert_allclose(total_out.detach().numpy(), expected.out, atol=ATOL)
    np.testing.assert_allclose(undispatch(meta.lse, key).numpy(), expected.lse, atol=ATOL)
    np.testing.assert_allclose(meta.max_logits.numpy(), expected.max_logits, atol=ATOL)
    for x, want in zip((q, k, v), (expected.dq, expected.dk, expected.dv), strict=True):
        np.testing.assert_allclose(x.grad.numpy(), want, atol=ATOL)
    dist.all_reduce(sink.grad, group=world)  # as a framework does for parameters
    np.testing.assert_allclose(sink.grad.numpy(), expected.dsink, atol=1e-3)
    positions = get_position_ids(key)
    # Padded rows have the last position, and so they get it from a tensor that dispatch pads.
    assert torch.equal(dispatch(torch.arange(TOTAL), key, pad_value=TOTAL - 1), positions)


def check_orders(world):
    """One key in the three orders of positional arguments, and heads that only calc_attn knows."""
    pad = compute_pad_size(TOTAL, dist.get_world_size(world), CHUNK)
    mask = (AttnRanges.from_ranges(Q_RANGES), AttnRanges.from_ranges(K_RANGES), TYPES, TOTAL, TOTAL)
    config = DistAttnConfig(dispatch_config=DispatchConfig(alg=SequentialDispatchAlg()))
    later = DistAttnConfig(dispatch_config=DispatchConfig(alg=SequentialDispatchAlg(), chunk_size=CHUNK))
    keys = [
        magi_attn_flex_key(*mask, HEADS, HEADS_KV, DIM, pad, CHUNK, world, config, True, True, True),
        magi_attn_flex_key(*mask, HEADS, HEADS_KV, DIM, 0, world, later),
        magi_attn_flex_key(*mask, pad, CHUNK, world, config),
    ]
    mode = OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=None, dynamic_max_degree=1)
    keys.append(magi_attn_flex_key(*mask, HEADS, HEADS_KV, DIM, pad, CHUNK, world, DistAttnConfig(overlap_config=mode)))
    assert max(len(rank.forward) for rank in keys[3].inner.plan.ranks) <= 2
    assert keys[0].inner is keys[1].inner and keys[0].inner is not keys[2].inner and keys[2].num_heads_q is None
    tensors = whole(3)
    want = attention(*(x.detach().numpy() for x in tensors), flex_cells()).out
    with torch.no_grad():
        for key in keys:
            assert key.chunk_size == CHUNK and key.pad_size == pad
            out, _ = calc_attn(*(dispatch(x, key) for x in tensors), key)
            np.testing.assert_allclose(undispatch(out, key).numpy(), want, atol=ATOL)


def check_documents_and_new_masks(world):
    """Packed documents; then a window, and a mask for other heads, over the same rows."""
    cu = torch.tensor([0, 60, TOTAL], dtype=torch.int32)
    pad = compute_pad_size(TOTAL, dist.get_world_size(world), CHUNK)
    key = magi_attn_varlen_key(cu, cu, HEADS, HEADS_KV, DIM, pad, CHUNK, world, True)
    window = make_varlen_key_for_new_mask_after_dispatch(cu, cu, key, causal=False, window_size=(9, 0))
    ranges = (AttnRanges.from_ranges(Q_RANGES), AttnRanges.from_ranges(K_RANGES), TYPES)
    flex = make_flex_key_for_new_mask_after_dispatch(*ranges, key, 2, 1, DIM, DistAttnConfig())
    of_1_0 = make_flex_key_for_new_mask_after_dispatch(*ranges, key, DistAttnConfig())
    assert get_most_recent_key(world) == of_1_0 and flex.num_heads_q == 2 and of_1_0.num_heads_q == HEADS
    i, j = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
    causal = ((i < 60) == (j < 60)) & (j <= i)
    cases = ((key, HEADS, causal), (window, HEADS, causal & (i - j <= 9)), (flex, 2, flex_cells()))
    with torch.no_grad():
        for each, heads, cells in (*cases, (of_1_0, HEADS, flex_cells())):
            tensors = whole(8, heads // 2, heads)
            out, _ = calc_attn(*(dispatch(x, key) for x in tensors), each)
            want = attention(*(x.numpy() for x in tensors), cells).out
            np.testing.assert_allclose(undispatch(out, each).numpy(), want, atol=ATOL)
    labels = torch.arange(TOTAL)
    rolled = torch.roll(labels, -1)
    assert torch.equal(undispatch(roll(dispatch(labels, key), -1, 0, key), key), rolled)
    batched = dispatch(labels, key)[None].expand(2, -1)
    for function in (roll, roll_simple):
        assert torch.equal(undispatch(function(batched, -1, 1, key)[1].contiguous(), key), rolled)
    for make, given in (
        (magi.magi_attn_varlen_dispatch, (cu, cu)),
        (magi.magi_attn_flex_dispatch, (*ranges, TOTAL, TOTAL)),
    ):
        x, made = make(labels, *given, HEADS, HEADS_KV, DIM, pad, CHUNK, world)
        assert torch.equal(x, dispatch(labels, made))


def check_partial_gradients(world):
    """Losses that differ between ranks are added up by undispatch, and equal ones are not."""
    rank, size = dist.get_rank(world), dist.get_world_size(world)
    pad = compute_pad_size(TOTAL, size, CHUNK)
    key = magi_attn_varlen_key([0, TOTAL], [0, TOTAL], HEADS, HEADS_KV, DIM, pad, CHUNK, world)
    weights = torch.randn(size, TOTAL, 3, generator=torch.Generator().manual_seed(4))
    for dtype, atol in ((torch.float32, 1e-6), (torch.bfloat16, 0.05)):
        x = dispatch(torch.randn(TOTAL, 3).to(dtype), key).requires_grad_()
        undispatch(x, key, is_partial_grad=True).backward(weights[rank].to(dtype))
        positions = get_position_ids(key)
        want = torch.zeros(len(positions), 3)
        real = tangram.get_loss_mask(key.inner)
        want[real] = weights.sum(0)[positions[real]]
        assert x.grad.dtype == dtype
        np.testing.assert_allclose(x.grad.float().numpy(), want.numpy(), atol=atol)
    # Second derivatives are exact, too: of the sum of w x^4 they are 12 w x^2. They were taken for those of a constant.
    x = dispatch(torch.randn(TOTAL, 3), key).requires_grad_()
    moved = undispatch(x * x, key, is_partial_grad=True)
    (first,) = torch.autograd.grad((weights[rank] * moved.square()).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    # float32: values of hundreds, five roundings.
    np.testing.assert_allclose(second.numpy(), (12 * want * x.detach() ** 2).numpy(), rtol=1e-6, atol=1e-4)


def check_clearing(world):
    pad = compute_pad_size(TOTAL, dist.get_world_size(world), CHUNK)
    key = magi_attn_varlen_key([0, TOTAL], [0, TOTAL], HEADS, HEADS_KV, DIM, pad, CHUNK, world)
    assert magi_attn_varlen_key([0, TOTAL], [0, TOTAL], HEADS, HEADS_KV, DIM, pad, CHUNK, world).inner is key.inner
    magi.clear_cache(world)
    try:
        get_most_recent_key(world)
    except ValueError as error:
        assert "a key must have been made for this group" in str(error), error
    else:
        raise AssertionError("a key that was forgotten is the most recent one")
    again = magi_attn_varlen_key([0, TOTAL], [0, TOTAL], HEADS, HEADS_KV, DIM, pad, CHUNK, world)
    assert again.inner is not key.inner and get_most_recent_key(world) == again
    x = torch.arange(TOTAL)
    assert torch.equal(undispatch(dispatch(x, key), key), x)  # one that is held goes on
    magi.clear_cache()


def check_managers(world):
    """A step in the words of the published tests, over lengths that count padding."""
    size = dist.get_world_size(world)
    pad = compute_pad_size(TOTAL, size, CHUNK)
    padded = magi.apply_padding(
        AttnRanges.from_ranges(Q_RANGES), AttnRanges.from_ranges(K_RANGES), [AttnMaskType(t) for t in TYPES], TOTAL, pad
    )
    heads = {"num_heads_q": HEADS, "num_heads_kv": HEADS_KV, "head_dim": DIM}
    whole_q, *kv = (x.detach() for x in whole(11))
    long = [magi.pad_at_dim(x, 0, pad) for x in (whole_q, *kv)]
    manager = magi.init_dist_attn_runtime_mgr(
        *padded, TOTAL + pad, TOTAL + pad, chunk_size=CHUNK, cp_group=world, **heads
    )
    local = [manager.dispatch_qo(long[0]), *map(manager.dispatch_kv, long[1:])]
    out, _ = manager.calc_attn(*local)
    want = attention(*(x.numpy() for x in (whole_q, *kv)), flex_cells()).out
    total = manager.undispatch_qo(out)
    assert total.shape[0] == TOTAL + pad and not total[TOTAL:].any()
    np.testing.assert_allclose(total[:TOTAL].numpy(), want, atol=ATOL)
    assert torch.equal(manager.undispatch_kv(local[1]), long[1])
    # A key that counts its padding gives equal rows, with those of the padding.
    key = magi_attn_flex_key(
        AttnRanges.from_ranges(Q_RANGES), AttnRanges.from_ranges(K_RANGES), TYPES, TOTAL, TOTAL, HEADS, HEADS_KV, DIM,
        pad, CHUNK, world,
    )  # fmt: skip
    found = magi.dist_attn_runtime_dict_mgr[key]
    assert found == magi.dist_attn_runtime_dict_mgr.get(key) and key in magi.dist_attn_runtime_dict_mgr
    assert magi.dist_attn_runtime_dict_mgr.get_most_recent_key(world) == key and found.ref_q_ranges == key.q_ranges
    local = [found.dispatch_qo(x) for x in (long[0], *kv)]
    assert torch.equal(local[0], dispatch(whole_q, key))
    total = found.undispatch_qo(found.calc_attn(*local)[0])
    assert total.shape[0] == TOTAL + pad
    np.testing.assert_allclose(total[:TOTAL].numpy(), want, atol=ATOL)
    for role in magi.AttnRole:
        assert torch.equal(found.get_position_ids(role), get_position_ids(key))
    labels = dispatch(torch.arange(TOTAL), key)
    assert torch.equal(found.roll(labels, -1, 0), roll(labels, -1, 0, key))
    magi.clear_cache(world)
    assert key not in magi.dist_attn_runtime_dict_mgr and magi.dist_attn_runtime_dict_mgr.get(key) is None


def check_float64(world):
    """The published SDPA backend takes float64, and rounds nothing to less."""
    of_reference = magi._key.env
    environment = type(of_reference)(kernel_backend="sdpa", backend="reference", dsink_reduce="sum")
    pad = compute_pad_size(TOTAL, dist.get_world_size(world), CHUNK)
    magi._api.env = environment
    try:
        key = magi_attn_flex_key(
            AttnRanges.from_ranges(Q_RANGES), AttnRanges.from_ranges(K_RANGES), TYPES, TOTAL, TOTAL, HEADS, HEADS_KV,
            DIM, pad, CHUNK, world,
        )  # fmt: skip
        q, k, v = (x.detach().double().requires_grad_() for x in whole(12))
        sink = torch.randn(2, HEADS, generator=torch.Generator().manual_seed(5)).double().requires_grad_()
        out, meta = calc_attn(*(dispatch(x, key) for x in (q, k, v)), key, sink, 0.3, 1.5, True)
        total = undispatch(out, key)
        dout = torch.randn(total.shape, generator=torch.Generator().manual_seed(2)).double()
        total.backward(dout)
    finally:
        magi._api.env = of_reference
    given = [x.detach().numpy() for x in (q, k, v)]
    want = attention(*given, flex_cells(), scale=0.3, softcap=1.5, sink=sink.detach().numpy(), dout=dout.numpy())
    got = (total, undispatch(meta.lse, key), meta.max_logits, q.grad, k.grad, v.grad, sink.grad)
    names = ("out", "lse", "max_logits", "dq", "dk", "dv", "dsink")
    for each, name in zip(got, names, strict=True):
        assert each.dtype == torch.float64, name
        np.testing.assert_allclose(each.detach().numpy(), getattr(want, name), atol=1e-11, err_msg=name)


def check_compiled(world):
    """A step is one graph, and keys are inputs of it."""

    def step(q, k, v, key):
        local = [dispatch(x, key) for x in (q, k, v)]
        return undispatch(calc_attn(local[0] * 2, *local[1:], key)[0], key)

    tensors = [x.detach() for x in whole(6)]
    pad = compute_pad_size(TOTAL, dist.get_world_size(world), CHUNK)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    for causal in (True, False):
        key = magi_attn_varlen_key([0, 60, TOTAL], [0, 60, TOTAL], HEADS, HEADS_KV, DIM, pad, CHUNK, world, causal)
        assert torch.equal(compiled(*tensors, key), step(*tensors, key))


def check_published(world):
    check_flex(world)
    check_compiled(world)
    check_orders(world)
    check_documents_and_new_masks(world)
    check_partial_gradients(world)
    check_managers(world)
    check_float64(world)
    check_clearing(world)
