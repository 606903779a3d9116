# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What every rank of a group of GPUs checks; distributed_cuda_test.py starts the ranks with torchrun, one a GPU."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

if "FORGED_RANKS_PER_NODE" in os.environ:  # nodes_cuda_test.py
    node = str(int(os.environ["RANK"]) // int(os.environ["FORGED_RANKS_PER_NODE"]))
    os.environ.update(TANGRAM_NODE_ID=node, NCCL_HOSTID=node, NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from ranks.cuda_buffer_checks import (  # noqa: E402
    check_buffer_differences,
    check_collectives_beside_replays,
    check_forward_replays,
    check_graph_over_keys,
)
from ranks.cuda_step_checks import (  # noqa: E402
    BOUND,
    DIM,
    HEADS,
    HEADS_KV,
    TOTAL,
    as_double,
    assert_close,
    check_changing_blocks,
    check_dtypes,
    check_head_masks,
    check_hybrid,
    check_kept,
    check_movement,
    check_new_masks,
    check_published,
    check_reference,
    check_row_sinks,
    check_step,
    check_strategies,
    key_of,
    step,
    whole,
)
from ranks.value_checks import check_collectives  # noqa: E402
from reference import attention  # noqa: E402
from tangram import DispatchConfig, DistAttnConfig, InvalidArgument, MovementConfig, OverlapConfig  # noqa: E402


def check_rows():
    """Rows are copied bit by bit, whatever they hold and however long they are."""
    key = key_of()
    positions = tangram.get_position_ids(key, device="cuda")
    real = tangram.get_loss_mask(key, device="cuda")
    assert positions.is_cuda and (positions[~real] == TOTAL - 1).all()
    generator = torch.Generator().manual_seed(3)
    for shape, dtype in (
        ((TOTAL,), torch.int64),
        ((TOTAL,), torch.bool),
        ((TOTAL, 3), torch.uint8),
        ((TOTAL, 5), torch.bfloat16),
        ((TOTAL, 2, 64), torch.float32),
        ((TOTAL, 20000), torch.float32),  # 40 MB a rank: several large boxes
    ):
        x = (torch.rand(shape, generator=generator) * 256).to(dtype).to("cuda")
        shard = tangram.dispatch(x, key, pad_value=1)
        assert torch.equal(shard[real], x[positions[real]]) and (shard[~real] == 1).all()
        assert torch.equal(tangram.undispatch(shard, key), x), (shape, dtype)
        for shifts in (1, -77):
            rolled = tangram.undispatch(tangram.roll(shard, key, shifts), key)
            assert torch.equal(rolled, x.roll(shifts, 0)), (shape, dtype, shifts)
    x = torch.randn(TOTAL, 3, generator=generator).to("cuda").requires_grad_()
    weight = torch.randn(TOTAL, 3, generator=generator).to("cuda")
    tangram.undispatch(tangram.roll(tangram.dispatch(x, key), key, -1), key).backward(weight)
    assert torch.equal(x.grad, weight.roll(1, 0))
    tokens = torch.arange(TOTAL, device="cuda")
    labels = tangram.undispatch(tangram.dispatch_labels(tokens, key, 1, [0, 100, TOTAL]), key)
    expected = tokens + 1
    expected[[99, TOTAL - 1]] = -100
    assert torch.equal(labels, expected)
    tangram.check_errors()


def check_scattered_rows():
    """Rows of a dispatch of many runs go by tables, which a GPU writes; streams other than the first wait for that."""
    chunks = DispatchConfig("random", chunk_size=1)
    mask = tangram.Mask.causal(TOTAL)
    key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, dist_attn_config=DistAttnConfig(dispatch=chunks))
    x = torch.arange(TOTAL * 3, device="cuda").view(TOTAL, 3)
    shards = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            shard = tangram.dispatch(x, key, pad_value=-1)
            assert torch.equal(tangram.undispatch(shard, key), x)
            assert torch.equal(tangram.undispatch(tangram.roll(shard, key, 5), key), x.roll(5, 0))
            shards.append(shard)
        torch.cuda.synchronize()
    positions = tangram.get_position_ids(key, device="cuda")
    assert torch.equal(positions.cpu(), tangram.get_position_ids(key))
    for shard in shards:
        real = tangram.get_loss_mask(key, device="cuda")
        assert torch.equal(shard[real], x[positions[real]])
    tangram.check_errors()


def check_streams():
    """The pass runs on the current stream, which waits for awaited values; other streams do not wait."""
    key = key_of()
    tensors = whole(2)
    dout = torch.ones_like(tensors[0])
    expected = step(tensors, key, dout, deterministic=True)
    late = [torch.zeros_like(t) for t in tensors]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # half a second
        for to, value in zip(late, tensors, strict=True):
            to.copy_(value)
        got = step(late, key, dout, deterministic=True)
        returned_early = not stream.query()
    checks_sanity = os.environ.get("TANGRAM_SANITY_CHECK", "0") == "1"  # which looks at results
    assert returned_early or checks_sanity, "the host waited for the GPU"
    stream.synchronize()
    for ours, wanted in zip((got[0], *got[2]), (expected[0], *expected[2]), strict=True):
        assert torch.equal(ours, wanted)
    # Passes on two streams in turn share the receive buffers of the group.
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for i in range(20):
        with torch.cuda.stream(streams[i % 2]):
            results.append(step(tensors, key, dout, deterministic=True))
    torch.cuda.synchronize()
    for got in results:
        for ours, wanted in zip((got[0], *got[2]), (expected[0], *expected[2]), strict=True):
            assert torch.equal(ours, wanted)
    tangram.check_errors()


def check_graph(config=None):
    """A step in a CUDA graph, replayed with new values."""
    key = key_of(config=config)
    tensors = [t.detach().clone().requires_grad_() for t in whole(1)]
    shards = [tangram.dispatch(t.detach(), key).requires_grad_() for t in tensors]
    dout = torch.ones_like(shards[0])

    def run():
        out, _ = tangram.calc_attn(*shards, key, deterministic=True)
        return [out, *torch.autograd.grad(out, shards, dout)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = run()
    for seed in (11, 12):
        for shard, value in zip(shards, whole(seed), strict=True):
            shard.data.copy_(tangram.dispatch(value.detach(), key))
        graph.replay()
        torch.cuda.synchronize()
        for ours, wanted in zip(captured, run(), strict=True):
            assert torch.equal(ours, wanted)
    tangram.check_errors()


def check_captures_over_nodes():
    """Refused before anything is sent: the same key computes afterwards."""
    key = key_of()
    shards = [tangram.dispatch(t.detach(), key) for t in whole(1)]
    before = tangram.calc_attn(*shards, key)[0]
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tangram.calc_attn(*shards, key)
    except tangram.NotAvailable as error:
        assert "CUDA graphs cannot hold passes over several nodes" in str(error), error
    else:
        raise AssertionError("a capture over several nodes was taken")
    assert torch.equal(tangram.calc_attn(*shards, key)[0], before)
    tangram.check_errors()


def check_compiled():
    key = key_of()
    shards = [tangram.dispatch(t.detach(), key).requires_grad_() for t in whole(4)]

    def run(q, k, v, key):
        return tangram.calc_attn(q * 2, k, v, key, deterministic=True)[0] * 3

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    results = []
    for call in (run, compiled):
        out = call(*shards, key)
        results.append([out, *torch.autograd.grad(out, shards, torch.ones_like(out))])
    for ours, wanted in zip(*results, strict=True):
        assert torch.equal(ours, wanted)
    tangram.check_errors()


def check_disagreement():
    """Ranks with different masks: an error on all. Who comes first may have left, so the group is broken: one apart."""
    rank = dist.get_rank()
    if dist.get_world_size() == 1:
        return
    group = dist.new_group(backend="gloo")
    mask = tangram.Mask.from_ranges([(0, TOTAL - min(rank, 1))], [(0, TOTAL)], "full", TOTAL, TOTAL)
    other = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group)
    shards = [tangram.dispatch(t.detach(), other) for t in whole(4)]
    try:
        tangram.calc_attn(*shards, other)
        tangram.check_errors(group)
    except InvalidArgument as error:
        assert "masks differ (rank 0: " in str(error), error
    else:
        raise AssertionError("accepted ranks with different masks")
    tangram.calc_attn(*shards, key_of())
    tangram.check_errors()


def check_memory():
    """A mask keeps its lists alone: rows of all masks land in memory that they share."""
    shards, used = None, []
    for window in range(100, 112):
        key = tangram.mask_key(tangram.Mask.sliding_window(8 * TOTAL, (window, 0)), HEADS, HEADS_KV, DIM)
        if shards is None or len(shards[0]) != key.rows("q").per_rank:
            rows = key.rows("q").per_rank
            shards = [
                torch.randn(rows, h, DIM, device="cuda", dtype=torch.bfloat16) for h in (HEADS, HEADS_KV, HEADS_KV)
            ]
            shards = [x.requires_grad_() for x in shards]
        tangram.calc_attn(*shards, key)[0].sum().backward()
        tangram.check_errors()
        dist.barrier()
        free, total = torch.cuda.mem_get_info()
        used.append(total - free - torch.cuda.memory_reserved())
    assert max(used[4:]) - used[3] < 8 << 20, [u >> 20 for u in used]  # a receive buffer alone would be 8 MiB a mask


def check_nccl_group():
    """A group of the NCCL backend: its ranks meet through the store, and rows move by Tangram's own transport."""
    group = dist.new_group(backend="nccl")
    key = tangram.mask_key(tangram.Mask.causal(TOTAL), HEADS, HEADS_KV, DIM, group)
    q, k, v = whole(6)
    out = tangram.undispatch(tangram.calc_attn(*(tangram.dispatch(x.detach(), key) for x in (q, k, v)), key)[0], key)
    i, j = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
    assert_close(out, attention(*(as_double(x) for x in (q, k, v)), j <= i).out, BOUND, "out over an NCCL group")
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total, group=group)  # the caller's own messages beside
    assert total.item() == dist.get_world_size()
    tangram.check_errors(group)


def check_refusals():
    """What the front refuses by itself. Alone, because a rank that refuses ends its group."""
    if dist.get_world_size() > 1:
        return
    key = key_of()
    q, k, v = (tangram.dispatch(t.detach(), key) for t in whole(4))
    for tensors, text in (
        ((q, k.cpu(), v), "lie on one device"),
        ((q, k.float(), v), "of one dtype"),
    ):
        try:
            tangram.calc_attn(*tensors, key)
        except InvalidArgument as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")


def check_other_call(how):
    """Ranks that know both keys, and make calls that would move the same rows: InvalidArgument, naming what differs."""
    rank = dist.get_rank()
    keys = [
        tangram.mask_key(
            mask,
            *(HEADS, HEADS_KV, DIM),
            chunk_size=64,
            dist_attn_config=DistAttnConfig(dispatch=DispatchConfig(algorithm)),
        )
        for mask, algorithm in ((tangram.Mask.full(TOTAL), "sequential"), (tangram.Mask.causal(TOTAL), "zigzag"))
    ]
    shards = [tangram.dispatch(t.detach(), keys[0]) for t in whole(1)]
    for key in keys:
        tangram.calc_attn(*shards, key)
    tangram.check_errors()
    torch.cuda.synchronize()
    dist.barrier()
    try:
        if how == "masks":
            tangram.calc_attn(*shards, keys[rank])
        elif how == "softcaps":
            tangram.calc_attn(*shards, keys[0], softcap=5.0 * rank)
        elif how == "rows":
            tangram.undispatch(shards[0], keys[rank])
        tangram.check_errors()
    except InvalidArgument as error:
        what = "the keys' rows" if how == "rows" else how
        assert f"every rank must make the same call: {what} differ (rank 0: " in str(error), error
    else:
        raise AssertionError("a call that differs between ranks came to an end without an error")
    torch.ones(1, device="cuda").add_(1).cpu()  # the context is still good
    print(f"rank {rank} saw it", flush=True)


def check_failure(how):
    """What a rank does wrong, or its end, ends the waits of the others, whose next call or check says so."""
    key = key_of()
    shards = [tangram.dispatch(t.detach(), key) for t in whole(1)]
    tangram.calc_attn(*shards, key)
    tangram.check_errors()
    dist.barrier()
    if dist.get_rank() == 1:
        if how == "kill":
            os._exit(0)
        if how == "silence":
            time.sleep(12)
            os._exit(0)
        try:
            tangram.calc_attn(shards[0][1:], *shards[1:], key)
        except InvalidArgument as error:
            assert "q must be the shard" in str(error), error
        else:
            raise AssertionError("accepted a shard of wrong size")
        time.sleep(3)
        os._exit(0)
    started = time.monotonic()
    try:
        tangram.calc_attn(*shards, key)
        tangram.check_errors()
    except tangram.Timeout as error:
        assert how == "silence" and "1" in str(error), error
    except tangram.CommError as error:
        assert how in ("kill", "wrong") and "1" in str(error), error
    else:
        raise AssertionError("a pass of a single rank came to an end without an error")
    assert time.monotonic() - started < 10
    torch.ones(1, device="cuda").add_(1).cpu()  # the context is still good
    print(f"rank {dist.get_rank()} saw it", flush=True)


CHECKS = (
    ("rows", check_rows),
    ("scattered rows", check_scattered_rows),
    ("step", check_step),
    ("step with softcap and sink", lambda: check_step(softcap=5.0, sink=True)),
    ("step of other head dims", lambda: [check_step(head_dims=dims) for dims in ((192, 128), (96, 96))]),
    ("step in stages", lambda: check_step(DistAttnConfig(overlap=OverlapConfig(2, 2, keep_remote_kv=True)))),
    ("kept keys", check_kept),
    ("new masks", check_new_masks),
    ("hybrid", check_hybrid),
    ("streams", check_streams),
    ("compiled", check_compiled),
    ("disagreement", check_disagreement),
    ("memory", check_memory),
    ("NCCL group", check_nccl_group),
    ("graph", check_graph),
    ("graph over keys", check_graph_over_keys),
    ("forward replays of ranks that are late", check_forward_replays),
    ("collectives beside replays", check_collectives_beside_replays),
    ("ranks that differ over a buffer", check_buffer_differences),
    (
        "graph with kept keys",
        lambda: check_graph(DistAttnConfig(overlap=OverlapConfig(keep_remote_kv=True))),
    ),
    ("strategies", check_strategies),
    ("dtypes", check_dtypes),
    ("sinks of rows", check_row_sinks),
    ("movement", check_movement),
    ("graph of moved queries", lambda: check_graph(DistAttnConfig(movement=MovementConfig("qo", head_groups=1)))),
    ("head masks", check_head_masks),
    ("head masks where queries move", lambda: [check_head_masks(movement) for movement in ("qo", "auto")]),
    ("published names", check_published),
    ("reference", check_reference),
    ("refusals", check_refusals),
)


# What does not ask for copies by the driver: graphs cannot hold NCCL's epochs of changing slots.
NCCL_CHECKS = (
    "rows",
    "step",
    "step with softcap and sink",
    "step in stages",
    "kept keys",
    "new masks",
    "strategies",
    "dtypes",
    "movement",
    "head masks",
    "memory",
)


# Without "memory", which looks at the free memory of a GPU that ranks share.
NODE_CHECKS = tuple(name for name in NCCL_CHECKS if name != "memory") + ("hybrid", "published names")


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())  # ranks of forged nodes share one
    dist.init_process_group("gloo")
    checks = CHECKS
    if sys.argv[1] == "nccl":
        tangram.configure(transport="nccl")
        checks = [(name, check) for name, check in CHECKS if name in NCCL_CHECKS]
        assert len(checks) == len(NCCL_CHECKS)
    elif sys.argv[1] in ("nodes", "flat"):
        if sys.argv[1] == "flat":
            tangram.configure(transport=tangram.TransportConfig(inside="nccl"))
        checks = [(name, check) for name, check in CHECKS if name in NODE_CHECKS]
        assert len(checks) == len(NODE_CHECKS)
        if sys.argv[1] == "nodes":
            checks.append(("captures over nodes", check_captures_over_nodes))
    elif sys.argv[1] == "blocks":
        checks = [("blocks that change", check_changing_blocks)]
    elif sys.argv[1] == "values":
        refused = check_collectives("cuda", dist.new_group(backend="nccl"))
        print(f"rank {dist.get_rank()}: {refused} calls gave NaN and were refused", flush=True)
        checks = []
    elif sys.argv[1] in ("masks", "softcaps", "rows"):
        check_other_call(sys.argv[1])
        os._exit(0)
    elif sys.argv[1] != "all":
        check_failure(sys.argv[1])
        os._exit(0)
    for name, check in checks:
        started = time.monotonic()
        check()
        if dist.get_rank() == 0:
            print(f"{name}: {time.monotonic() - started:.2f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
