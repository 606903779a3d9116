# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The way of tensors in GPU memory, over host memory (as_device.py)."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import patch

import torch
import torch.distributed as dist

import tangram
from ranks.as_device import FakeAttention, FakeBuffer, as_device
from ranks.compiled_checks import check_compiled, check_compiled_steps
from ranks.row_checks import check_rows, check_rows_of_any_kind
from ranks.step_checks import (
    DIM,
    HEADS,
    HEADS_KV,
    RANGES,
    check_cross,
    check_head_masks,
    check_hybrid,
    check_row_sinks,
    check_step,
    flex_key,
    whole,
)
from tangram import DistAttnConfig, InvalidArgument, OverlapConfig, _cuda
from tangram._runtime_key import GPU_KEY_BYTES


def check_executors(group):
    """Few keys hold GPU memory at a time; those of a captured graph as long as they live."""

    def executor(key):
        return weakref.ref(key.attention(torch.float32, DIM, None, 0))

    tangram.set_cache_bytes("gpu_keys", 8 * FakeAttention.largest_device_bytes)
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
    tangram.set_cache_bytes("gpu_keys", GPU_KEY_BYTES)


def check_kept_on_device(group):
    """Among passes with one key the latest keeps remote K/V in GPU memory; an earlier one fetches them again."""

    def run(keeps):
        key = flex_key(RANGES, 150, group, DistAttnConfig(overlap=OverlapConfig(1, 1, keep_remote_kv=keeps)))
        shards = [tangram.dispatch(x.detach(), key).requires_grad_() for x in whole(150, 1)]
        tangram.calc_attn(*shards, key)  # without a backward pass
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


def check_mask_buffer(group):
    """Keys that change under one buffer give what calls with the keys give, bit for bit."""

    def key_of(*ends, config=None):
        mask = tangram.Mask.varlen([0, *ends, 192], causal=True)
        return tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group, chunk_size=16, dist_attn_config=config)

    def step(key, calls):
        shards = [tangram.dispatch(x.detach(), key).requires_grad_() for x in whole(192, 3)]
        out, meta = tangram.calc_attn(*shards, calls, softcap=2.0, return_max_logits=True)
        return [out, meta.lse, meta.max_logits, *torch.autograd.grad(out, shards, torch.ones_like(out))]

    def refuses(text, call):
        try:
            call()
        except InvalidArgument as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")

    keys = [key_of(50, 100), key_of(20), key_of(64, 65, 150)]
    buffer = tangram.DistMaskBuffer(keys, dtype=torch.float32)
    assert f"cp_size={dist.get_world_size(group)}" in repr(buffer)
    refuses("DistMaskBuffer.set must come first", lambda: step(keys[0], buffer))
    for key in keys:
        buffer.set(key)
        for ours, wanted in zip(step(key, buffer), step(key, key), strict=True):
            assert torch.equal(ours, wanted)
    assert buffer.num_keys == 3 and buffer.key is keys[2]
    row = next(row for row in tangram.memory_use() if row.name == "dist_mask_buffers")
    assert row.num_bytes == buffer.device_bytes

    shards = [tangram.dispatch(x.detach(), keys[2]).requires_grad_() for x in whole(192, 3)]
    out, _ = tangram.calc_attn(*shards, buffer)
    buffer.set(keys[0])
    refuses("gradient of key 3, with key 4 set", lambda: out.sum().backward())
    refuses("deterministic calls need a DistMaskBuffer", lambda: tangram.calc_attn(*shards, buffer, deterministic=True))
    with patch.object(type(buffer.group), "refuse") as told:  # or the peers would wait
        refuses("dtype, dim of v and GPU must be", lambda: tangram.calc_attn(*(x.bfloat16() for x in shards), buffer))
    assert "dtype, dim of v and GPU must be" in told.call_args.args[1]
    refuses("backend must be None", lambda: tangram.calc_attn(*shards, buffer, backend="reference"))
    many = key_of(*range(10, 190, 10))
    refuses("must fit the buffer", lambda: buffer.set(many))
    unseen = tangram.mask_key(tangram.Mask(192, 192, []), HEADS, HEADS_KV, DIM, group, chunk_size=16)
    assert not buffer.allow_fully_masked_rows
    refuses("must fit the buffer", lambda: buffer.set(unseen))
    assert tangram.DistMaskBuffer([*keys, unseen], dtype=torch.float32).allow_fully_masked_rows
    assert tangram.DistMaskBuffer(keys, dtype=torch.float32, allow_fully_masked_rows=True).allow_fully_masked_rows
    refuses("must move K/V alone", lambda: buffer.set(key_of(50, config=DistAttnConfig(strategy="ulysses"))))
    refuses("must be a DistAttnRuntimeKey", lambda: buffer.set(tangram.Mask.causal(192)))
    refuses("keys must be one at least", lambda: tangram.DistMaskBuffer([]))
    refuses("spare must not be negative", lambda: tangram.DistMaskBuffer(keys, spare=-1))
    assert buffer.key is keys[0]

    with patch.object(_cuda, "is_capturing", lambda: True), patch.object(FakeBuffer, "set", None):
        refuses("must not be being captured", lambda: buffer.set(keys[1]))
    assert buffer.key is keys[0] and buffer.num_keys == 4

    dropped = weakref.ref(buffer)
    gc.disable()
    try:
        buffer = row = out = None
        assert dropped() is None, "memory of a dropped buffer waits for the garbage collector"
    finally:
        gc.enable()


def check_dtypes(group):
    """Passes are prepared for the dtypes of results that move with heads, as FakeAttention checks."""
    key = flex_key(RANGES, 150, group, DistAttnConfig(strategy="ulysses"))
    shards = [tangram.dispatch(x.detach(), key).requires_grad_() for x in whole(150, 1, torch.bfloat16)]
    plain, _ = tangram.calc_attn(*shards, key)
    for out_dtype, grad_dtype in ((torch.float32, None), (torch.float32, torch.float32), (None, torch.float32)):
        for compiled in (False, True) if grad_dtype is None else (False,):
            calc = torch.compile(tangram.calc_attn, backend="aot_eager") if compiled else tangram.calc_attn
            out, _ = calc(*shards, key, out_dtype=out_dtype, grad_dtype=grad_dtype)
            assert out.dtype is (out_dtype or torch.bfloat16) and torch.equal(out.to(torch.bfloat16), plain)
            torch.autograd.grad(out, shards, torch.ones_like(out))
    try:
        tangram.calc_attn(*shards, key, out_dtype=torch.float64)
    except InvalidArgument as error:
        assert "out_dtype must be that of q or torch.float32 (got torch.float64)" in str(error), error
    else:
        raise AssertionError("accepted results in float64")


def check_as_device(group):
    """The way of tensors in GPU memory, over host memory."""
    with as_device():
        check_rows(group)
        check_rows_of_any_kind(group)
        check_step(group, softcap=2.0, sink=True)
        check_step(group, head_dims=(192, 128))
        check_step(group, DistAttnConfig(overlap=OverlapConfig(2, 2, keep_remote_kv=True)))
        check_hybrid(group)
        check_head_masks(group)
        check_compiled(group)
        check_compiled_steps(group)
        check_cross(group)
        check_executors(group)
        check_kept_on_device(group)
        check_mask_buffer(group)
        for strategy in ("ulysses", "ring", "hybrid_cp", "auto"):
            config = DistAttnConfig(strategy=strategy, overlap=OverlapConfig(keep_remote_kv=True))
            check_step(group, config, sink=True)
            check_row_sinks(group, config)
        check_dtypes(group)
        check_row_sinks(
            group, DistAttnConfig(strategy="ulysses"), torch.compile(tangram.calc_attn, backend="aot_eager")
        )
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
