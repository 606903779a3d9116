# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a new mask costs ranks on GPUs: host time of its first passes, and GPU time of first and second ones.

[FORGED_RANKS_PER_NODE=1] PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --nproc-per-node=2 \
    benchmarks/python/new_masks_ranks.py [--tokens 32768] [--documents 64] [--packs 20] [--soak 0] [--csv FILE]
    [--blocks 128 [--share 0.12] [--near]] [--heads 64,8] [--movement kv]
Every mask is a pack of causal documents of log-normal lengths, or one of blocks, a share of them visible: at random, or
--near, those nearer to the diagonal the more often. Its key is made and planned before what is measured; heads of
128, shards of one size. For each mask, all ranks at once, medians of the slowest rank:
- "mask", "key", host: `Mask` of the documents or indices, and `mask_key`, planning included.
- "first", "second", host: `calc_attn` with a key whose passes have not been prepared, and with one whose have, until it
  returns; both begin with idle GPUs. "new key": their difference. Likewise both passes, which autograd calls.
- "first", "second", "third", device: GPU time between events behind 20 ms of other work, so that no host time shows
  unless the host waits for the GPU, or GPUs for each other's hosts, and behind a pass with a known key: GPUs are slower
  after a pause.
- "step", of blocks: both passes, 8 steps in a row without a wait, by wall clock: with masks that are made, planned and
  computed one after the other, and again with their keys.
FORGED_RANKS_PER_NODE: ranks claim to be on nodes of so many, which NCCL reaches through sockets; they may share a GPU.
--soak: then so many packs without a wait, eight keys at a time, some used again; results of the first and of the last
pass with a key must be equal bit for bit.
"""

import argparse
import os
import random
import statistics
import time
from collections import defaultdict

FORGED = int(os.environ.get("FORGED_RANKS_PER_NODE", "0"))
if FORGED:
    node = str(int(os.environ["RANK"]) // FORGED)
    os.environ.update(TANGRAM_NODE_ID=node, NCCL_HOSTID=node, NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from new_masks import append_csv, packed  # noqa: E402

import tangram  # noqa: E402

DIM = 128
SKIPPED = 3
BUSY = 40_000_000  # cycles


class Packs:
    def __init__(self, arguments):
        tokens = self.tokens = arguments.tokens
        self.documents = arguments.documents
        self.block, self.share, self.near = arguments.blocks, arguments.share, arguments.near
        self.config = tangram.DistAttnConfig(movement=tangram.MovementConfig(arguments.movement))
        self.heads, self.heads_kv = (int(x) for x in arguments.heads.split(","))
        self.rng = np.random.default_rng(0)
        rows = tokens // dist.get_world_size()
        shapes = [(rows, heads, DIM) for heads in (self.heads, self.heads_kv, self.heads_kv)]
        generator = torch.Generator("cuda").manual_seed(dist.get_rank())
        self.leaves = [
            torch.randn(s, device="cuda", dtype=torch.bfloat16, generator=generator).requires_grad_() for s in shapes
        ]
        self.dout = torch.randn(shapes[0], device="cuda", dtype=torch.bfloat16, generator=generator)
        self.figures = defaultdict(list)

    def indices(self):
        """[query blocks, n] of the same number each, that of the query's own block among them."""
        count = self.tokens // self.block
        scores = self.rng.random((count, count))
        if self.near:
            apart = np.abs(np.arange(count)[:, None] - np.arange(count))
            scores *= np.maximum(apart, 1)
        np.fill_diagonal(scores, -1)
        width = max(1, int(self.share * count))
        return np.argpartition(scores, width - 1, axis=1)[:, :width].astype(np.int32)

    def mask(self):
        """What makes a mask, not yet called."""
        if self.block == 0:
            ends = packed(self.rng, self.tokens, self.documents)
            return lambda: tangram.Mask.varlen(ends, causal=True)
        indices = self.indices()
        return lambda: tangram.Mask.from_block_indices(self.tokens, self.tokens, self.block, self.block, indices)

    def plan(self, mask):
        return tangram.mask_key(mask, self.heads, self.heads_kv, DIM, dist_attn_config=self.config)

    def key(self):
        while True:
            make = self.mask()
            begin = time.perf_counter()
            mask = make()
            made = time.perf_counter()
            key = self.plan(mask)
            planned = time.perf_counter()
            if key.shapes[0][0] == len(self.leaves[0]):
                self.figures["mask, host"].append((made - begin) * 1e6)
                self.figures["key, host"].append((planned - made) * 1e6)
                return key

    def forward(self, key):
        return tangram.calc_attn(*self.leaves, key)[0]

    def both(self, key):
        out = self.forward(key)
        return out, *torch.autograd.grad(out, self.leaves, self.dout)

    def slowest(self, value):
        value = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)

    def host_us(self, call):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    def device_us(self, before, call):
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(BUSY)
        before()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    def measure(self):
        for name, call in (("forward", self.forward), ("both passes", self.both)):
            key = self.key()
            times = [self.slowest(self.host_us(lambda key=key, call=call: call(key))) for _ in range(3)]
            self.figures[f"{name} first, host"].append(times[0])
            self.figures[f"{name} second, host"].append(times[1])
            self.figures[f"new key, {name}, host"].append(times[0] - times[1])
            known, key = key, self.key()
            before, of_key = (lambda k=k, call=call: call(k) for k in (known, key))
            times = [self.slowest(self.device_us(before, of_key)) for _ in range(3)]
            self.figures[f"{name} first, device"].append(times[0])
            self.figures[f"{name} second, device"].append(times[1])
            self.figures[f"{name} first / second"].append(times[0] / times[1])
            self.figures[f"{name} third / second"].append(times[2] / times[1])

    def steps(self, count):
        """Both passes of `count` steps without a wait between, each with blocks of its own: first these are new, made
        into masks and planned while GPUs compute the steps before, then their keys are known."""
        makes, keys = [self.mask() for _ in range(count)], []

        def step_us(key_of):
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for number in range(count):
                self.both(key_of(number))
            torch.cuda.synchronize()
            return self.slowest((time.perf_counter() - begin) * 1e6 / count)

        def new_key(number):
            keys.append(self.plan(makes[number]()))
            return keys[-1]

        new, known = step_us(new_key), step_us(keys.__getitem__)
        self.figures["step, new masks"].append(new)
        self.figures["step, known masks"].append(known)
        self.figures["step, new / known"].append(new / known)

    def soak(self, packs):
        order = random.Random(0)
        kept, wrong, used = [], torch.zeros((), device="cuda"), []
        for number in range(packs):
            key = self.key()
            kept.append((key, [t.detach() for t in tangram.calc_attn(*self.leaves, key, deterministic=True)[:1]]))
            self.both(key)
            again, known = order.choice(kept)
            (out,) = (t.detach() for t in tangram.calc_attn(*self.leaves, again, deterministic=True)[:1])
            wrong += (out != known[0]).any()
            if len(kept) == 8:
                kept.pop(order.randrange(8))
            if number >= packs // 2:
                free, total = torch.cuda.mem_get_info()
                used.append(total - free - torch.cuda.memory_reserved())
        tangram.check_errors()
        assert wrong.item() == 0, f"{wrong.item()} masks differ between their passes"
        return max(used) - used[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--packs", type=int, default=20)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=0, help="rows of a block; 0: documents")
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--heads", default="64,8")
    parser.add_argument("--movement", default="kv")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    packs = Packs(arguments)
    for number in range(arguments.packs + SKIPPED):
        if number == SKIPPED:
            packs.figures.clear()
        packs.measure()
        if arguments.blocks:
            packs.steps(8)
    tangram.check_errors()
    if arguments.soak > 0:
        start = time.perf_counter()
        grown = packs.soak(arguments.soak)
        took = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(f"soak of {arguments.soak} packs: {took:.1f} s, memory + {grown >> 10} KiB in its second half")
    if dist.get_rank() == 0:
        size = dist.get_world_size()
        mask = f"packed:{arguments.documents}"
        if arguments.blocks:
            mask = f"blocks:{arguments.blocks}:{arguments.share}{':near' if arguments.near else ''}"
        before = f'{tangram.__version__},"{torch.cuda.get_device_name()}",{mask}'
        transport = f"nodes_of_{FORGED}" if FORGED else "copy_engine"
        rows = f"{arguments.tokens},{arguments.tokens},{size},"
        shape = f"{rows},{arguments.heads},{DIM},{DIM},bfloat16,sm90,{transport}"
        strategy = "tangram" if arguments.movement == "kv" else f"movement_{arguments.movement}"
        lines = []
        for figure, values in sorted(packs.figures.items()):
            value, unit = statistics.median(values), "" if "/" in figure else "us"
            print(f"{figure:32}{value:12.3f} {unit:3} (most {max(values):.3f})", flush=True)
            lines.append(f'{before},{shape},{strategy},"{figure}",{unit},{value:.4f}')
        if arguments.csv:
            append_csv(arguments.csv, lines)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
