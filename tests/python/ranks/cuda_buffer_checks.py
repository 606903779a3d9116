# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Keys that change under one captured step over GPUs; cuda_checks.py runs these checks on every rank."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

import tangram
from ranks.cuda_step_checks import DIM, HEADS, HEADS_KV, whole
from tangram import InvalidArgument

TOTAL = 1024
ENDS = ([300, 700], [64, 128, 900], [1000], [10, 20, 30, 512])


def keys_of(group=None):
    masks = [tangram.Mask.varlen([0, *ends, TOTAL], causal=True) for ends in ENDS]
    return [tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group, chunk_size=64) for mask in masks]


def shards_of(key, seed):
    return [tangram.dispatch(t.detach(), key).requires_grad_() for t in whole(seed, TOTAL)]


def capture(run, prepare):
    """A graph of what `run` does, and what it gives; `prepare` comes before, on the same stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        prepare()
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = run()
    return graph, captured


def capture_step(keys):
    """A buffer over the keys, shards, a step with them, its graph and the graph's results."""
    buffer = tangram.DistMaskBuffer(keys, deterministic=True)
    shards = shards_of(keys[0], 1)
    dout = torch.ones_like(shards[0])

    def run():
        out, _ = tangram.calc_attn(*shards, buffer)
        return [out, *torch.autograd.grad(out, shards, dout)]

    return buffer, shards, run, *capture(run, lambda: buffer.set(keys[0]))


def check_graph_over_keys():
    """A step in one CUDA graph, replayed with other keys."""
    if dist.get_world_size() == 1:
        return
    keys = keys_of()
    buffer, shards, run, graph, captured = capture_step(keys)
    for seed, key in enumerate(keys * 2):
        for shard, value in zip(shards, whole(seed, TOTAL), strict=True):
            shard.data.copy_(tangram.dispatch(value.detach(), key))
        buffer.set(key)
        graph.replay()
        torch.cuda.synchronize()
        for ours, wanted in zip(captured, run(), strict=True):
            assert torch.equal(ours, wanted)
    tangram.check_errors()


def check_forward_replays():
    """Forward passes in a row, with nothing of a backward pass between them, while one rank's GPU is held up: rows must
    not land before those of the pass before have been read."""
    if dist.get_world_size() == 1:
        return
    keys = keys_of()
    buffer = tangram.DistMaskBuffer(keys, with_gradients=False)
    values = [[t.detach() for t in shards_of(key, seed)] for seed, key in enumerate(keys)]
    shards = [t.clone() for t in values[0]]

    def load(which):
        buffer.set(keys[which])
        for shard, value in zip(shards, values[which], strict=True):
            shard.copy_(value)

    def run():
        return tangram.calc_attn(*shards, buffer)[0]

    graph, out = capture(run, lambda: buffer.set(keys[0]))
    expected = []
    for which in range(len(keys)):
        load(which)
        expected.append(run().clone())
        torch.cuda.synchronize()
        dist.barrier()
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    for number in range(60):
        load(number % len(keys))
        if number // 10 % dist.get_world_size() == dist.get_rank():
            torch.cuda._sleep(300_000)
        graph.replay()
        differ += (out != expected[number % len(keys)]).any()
    tangram.check_errors()
    assert differ.item() == 0, f"{differ.item()} of 60 passes differ"


def check_collectives_beside_replays():
    """All-reduces on another stream, before or after each replay by rank, while hosts and GPUs are late in turns:
    kernels that wait for peers leave room for what the peer may be waiting for."""
    if dist.get_world_size() == 1:
        return
    rank = dist.get_rank()
    keys = keys_of()
    buffer, _, run, graph, captured = capture_step(keys)
    group, side = dist.new_group(backend="nccl"), torch.cuda.Stream()
    numbers = torch.ones(8 << 20, device="cuda")

    def reduce():
        with torch.cuda.stream(side):
            dist.all_reduce(numbers.fill_(1.0), group=group)

    reduce()
    torch.cuda.synchronize()
    for number in range(100):
        if number % 20 == 10 * rank:
            time.sleep(0.02)
        if number % 20 == 5 + 10 * rank:
            torch.cuda._sleep(20_000_000)  # 11 ms
        buffer.set(keys[number % len(keys)])
        if number % 2 == rank:
            graph.replay()
        reduce()
        if number % 2 != rank:
            graph.replay()
    torch.cuda.synchronize()
    tangram.check_errors()
    assert (numbers == dist.get_world_size()).all()
    for ours, wanted in zip(captured, run(), strict=True):
        assert torch.equal(ours, wanted)
    dist.destroy_process_group(group)


def check_buffer_differences():
    """What differs between ranks ends in an error on each; the group is broken then, so each has one of its own."""
    rank = dist.get_rank()
    if dist.get_world_size() == 1:
        return

    def told(how, wanted):
        """What `how` raises on this rank, of a new group and a buffer in which the first key is set."""
        group = dist.new_group(backend="gloo")
        keys = keys_of(group)
        buffer = tangram.DistMaskBuffer(keys, with_gradients=False)
        shards = [t.detach() for t in shards_of(keys[0], 4)]
        graph, _ = capture(lambda: tangram.calc_attn(*shards, buffer), lambda: buffer.set(keys[0]))
        dist.barrier()
        try:
            how(keys, buffer, graph, shards)
            tangram.check_errors(group)
        except (InvalidArgument, tangram.CommError) as error:
            assert any(text in str(error) for text in wanted), error
        else:
            raise AssertionError(f"no error where {wanted} should be")
        torch.ones(1, device="cuda").add_(1).cpu()  # the context is still good

    def other_keys(keys, buffer, graph, _):
        buffer.set(keys[1 + min(rank, 1)])
        graph.replay()

    def an_old_key(keys, buffer, graph, _):
        if rank == 0:
            buffer.set(keys[1])
        graph.replay()

    def another_dtype(keys, buffer, _, shards):
        tangram.calc_attn(*(t.half() if rank == 1 else t for t in shards), buffer)

    told(other_keys, ["masks differ (rank 0: "])
    if os.environ.get("TANGRAM_SANITY_CHECK", "0") != "1":  # with it ranks meet in `set`, which one of them leaves out
        told(an_old_key, ["every rank must make the same call"])
    told(another_dtype, ["dtype, dim of v and GPU must be those that the DistMaskBuffer is made for"])
    tangram.calc_attn(*shards_of(keys_of()[0], 1), keys_of()[0])
    tangram.check_errors()
