# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Keys, and what is refused on every rank."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import torch
import torch.distributed as dist

import tangram
from ranks.step_checks import DIM, HEADS, HEADS_KV, NUMBERS, RANGES, flex_key, whole
from tangram import DistAttnConfig, InvalidArgument, OverlapConfig, _cache
from tangram._runtime_key import KEY_BYTES, KEYS_PER_GROUP


def check_keys(group):
    a = flex_key(RANGES, 150, group)
    assert flex_key(RANGES, 150, group) is a and tangram.get_most_recent_key(group) is a
    tensors = [torch.tensor(r, dtype=torch.int32) for r in (*RANGES[:2], NUMBERS)]
    assert flex_key((tensors[0], tensors[1], tensors[2].tolist()), 150, group) is a
    b = flex_key(RANGES, 150, group, DistAttnConfig(overlap=OverlapConfig(num_stages_fwd=2)))
    assert b is not a and tangram.get_most_recent_key(group) is b
    next_mask = tangram.Mask.varlen([0, 20, 150])
    ahead = tangram.mask_key_async(next_mask, HEADS, HEADS_KV, DIM, group).result(timeout=60)
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


def step_with_row_sinks(q, k, v, key, bad):
    sink = torch.zeros(2, HEADS) if bad else torch.zeros(q.shape[0], 2, HEADS)
    tangram.calc_attn(q, k, v, key, sink=sink, sink_layout="ssh")


def step_with_sink(key):
    q, k, v = (torch.zeros(shape) for shape in (*key.shapes, key.shapes[1]))
    tangram.calc_attn(q, k, v, key, sink=torch.zeros(1, HEADS), dsink_reduce="mean")


def check_bytes_of_keys(group):
    """Keys go by the bytes of the largest rank, so that all ranks forget the same ones."""
    tangram.distributed.clear_keys()
    masks = [tangram.Mask.varlen([0, 3 * i + 1, 149], causal=True) for i in range(6)]  # 149: one rank has padded rows

    def used(mask):
        key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group)
        with torch.no_grad():
            shard = tangram.dispatch(torch.ones(149, HEADS, DIM), key)
            out, _ = tangram.calc_attn(shard, shard[:, :HEADS_KV], shard[:, :HEADS_KV], key)
            tangram.roll(tangram.dispatch(torch.ones(149), key), key, 1)
            assert tangram.undispatch(out, key).shape[0] == 149
        return key

    if dist.get_rank(group) == 0:  # what a rank makes alone does not count
        tangram.get_position_ids(tangram.mask_key(masks[0], HEADS, HEADS_KV, DIM, group))
    else:
        tangram.mask_key(masks[0], HEADS, HEADS_KV, DIM, group)
    keys = [used(mask) for mask in masks]
    sizes = [key.num_bytes for key in keys]
    everybodys = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybodys, sizes, group=group)
    assert all(of_rank == sizes for of_rank in everybodys), everybodys
    assert all(size > key.plan.memory_bytes + 9 * key.sizes["q"][1] for size, key in zip(sizes, keys, strict=True))
    kept = {row.name: row for row in tangram.memory_use()}["keys"]
    assert kept.num_bytes == sum(sizes) and kept.entries == len(keys), (kept, sizes)
    bound = kept.max_bytes
    caches = [cache for cache in _cache.caches() if cache.name == "keys"]
    assert bound == sum(cache.max_bytes for cache in caches)
    try:
        tangram.set_cache_bytes("keys", sum(sizes[3:]))
        assert tangram.mask_key(masks[5], HEADS, HEADS_KV, DIM, group) is keys[5]
        # Keys made ahead do not count as used before they are asked for, at whatever time that is on each rank.
        ahead = tangram.mask_key_async(masks[1], HEADS, HEADS_KV, DIM, group).result(timeout=60)
        assert ahead is not keys[1]
        assert tangram.mask_key(masks[3], HEADS, HEADS_KV, DIM, group) is keys[3]
        assert tangram.mask_key(masks[1], HEADS, HEADS_KV, DIM, group) is ahead
        used(masks[4])
        used(masks[1])
        tangram.set_cache_bytes("keys", 1)
        assert tangram.mask_key(masks[1], HEADS, HEADS_KV, DIM, group) is ahead
        assert tangram.mask_key(masks[3], HEADS, HEADS_KV, DIM, group) is not keys[3]
    finally:
        tangram.set_cache_bytes("keys", KEY_BYTES)


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
        (lambda: make(q=(0, total)), "magi_attn_flex_key: q_ranges must be pairs"),
        (lambda: make(kind=[1.5]), "attn_mask_type must be names or integers (got 1.5)"),
        (lambda: make(config={"overlap": 1}), "must be a DistAttnConfig (got dict)"),
        (lambda: tangram.dispatch(np.zeros(total), key), "dispatch: x must be a torch tensor, before the key"),
        (lambda: tangram.dispatch_labels([0] * total, key), "dispatch_labels: tokens must be a torch tensor"),
        (
            lambda: tangram.calc_attn(*(np.zeros(s) for s in (*key.shapes, key.shapes[1])), key),
            "calc_attn: needs torch tensors (got ndarray, ndarray, ndarray)",
        ),
        (lambda: step_with_sink(key), "dsink_reduce must be 'none', 'sum' or 'avg' (got 'mean')"),
        (lambda: tangram.mask_key("causal", HEADS, HEADS_KV, DIM, group), "mask must be a Mask, such as Mask.from"),
        (lambda: tangram.roll(x, key, 1.5), "roll: shifts must be an integer (got 1.5)"),
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


def check_refusals(group):
    """What the front finds wrong on one rank is an error on all, and the group works on."""
    rank = dist.get_rank(group)
    key = flex_key(RANGES, 150, group)
    q, k, v = (tangram.dispatch(x.detach(), key) for x in whole(150, 1))
    tangram.calc_attn(q, k, v, key)
    wrong = {
        "x must have the": lambda bad: tangram.undispatch(q[1:] if bad else q, key),
        "roll: x must have": lambda bad: tangram.roll(q[1:] if bad else q, key, 1),
        "sink[2, 4] of layout 'ssh'": lambda bad: step_with_row_sinks(q, k, v, key, bad),
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
            assert "key must be a DistAttnRuntimeKey, which mask_key" in str(error), error
        else:
            raise AssertionError("accepted a name as a key")


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
        for refused in (
            lambda dq=dq: (dq.sum() + inputs[0].sum()).backward(),
            lambda dq=dq: torch.autograd.grad(dq.sum(), inputs[1], allow_unused=True),
        ):
            try:
                refused()
            except InvalidArgument as error:
                assert "calc_attn: second derivatives are not supported" in str(error), error
                continue
            raise AssertionError("made second derivatives")
    out, _ = tangram.calc_attn(*inputs, key)
    try:
        torch.autograd.grad(out, inputs[0], torch.ones(2, *out.shape), is_grads_batched=True)
    except InvalidArgument as error:
        assert "calc_attn: batched gradients are not supported: call torch.autograd.grad once" in str(error), error
    else:
        raise AssertionError("took a batch of gradients")
    with torch.no_grad():
        other = flex_key(([(0, 100 + min(rank, 1))], [(0, 150)], "full"), 150, group)
        try:
            tangram.calc_attn(q, k, v, other)
        except InvalidArgument as error:
            assert "masks differ (rank 0: " in str(error), error
            # Rank 0 has another mask than all others; it tells so beside rank 1, the others beside rank 0.
            rows = ("100", "101") if rank == 0 else ("101", "100")
            here, there = (f"queries [0, {end}) x keys [0, 150) with " for end in rows)
            assert f"; beside rank {int(rank == 0)}: slice 0 is {here}" in str(error), error
            assert f" here and {there}" in str(error), error
        else:
            raise AssertionError("accepted ranks with different masks")
        tangram.calc_attn(q, k, v, key)
