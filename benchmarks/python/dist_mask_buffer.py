# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A new pack at every step over the GPUs of a host: one captured step of a DistMaskBuffer beside calls with keys.

PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --nproc-per-node=2 \
    benchmarks/python/dist_mask_buffer.py [--tokens 32768] [--documents 64] [--packs 12] [--repeats 5]
    [--deterministic] [--forward] [--table] [--soak 0] [--trace 0] [--csv FILE]
A step is forward and backward of 64/8 heads of 128 (`--forward`: the forward pass alone). For each pack, whose key has
been used before, in random turns that all ranks share:
- "key", "buffer", "replay", device: GPU time of a step by calls with the key, by calls with the buffer and by a replay,
  mean of four in a row behind one that is not counted and 10 ms of other work, so that neither host times nor how far
  apart ranks begin show. "key new" and "set, replay": four packs in a row, each with its lists and copies, of which
  keys have been prepared and not.
- host: what `set`, a replay and a call with a known key take the calling thread, streams empty before; "in a row": the
  mean of the four steps.
Medians of the slowest rank; ratios are medians of those of a pack. `--table`: besides, "replay, table" by a buffer that
looks for queries without keys, of which there are none here.
--soak: before all this, so many packs through one deterministic graph; results must be those of calls with the buffer
bit for bit, and near those of calls with the key, which attend to keys in the order in which they come. One rank's GPU
is held up now and then.
--trace: before all this, of so many packs what each kernel of a step takes by calls with the key and by replays, us on
each rank, medians of turns, and how many rows a rank gets: where a difference comes from.
"""

import argparse
import os
import random
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
import torch.distributed as dist
from new_masks import append_csv, packed
from torch.profiler import ProfilerActivity, profile

import tangram

HEADS, HEADS_KV, DIM = 64, 8, 128
STEPS = 4
SKIPPED = 2
TURNS = 6  # of a trace
BUSY = 20_000_000  # cycles
BOUND = 0.03  # of the largest value: a few roundings to bfloat16


class Packs:
    def __init__(self, tokens, documents, forward):
        self.tokens, self.documents, self.only_forward = tokens, documents, forward
        self.rng = np.random.default_rng(0)
        rows = tokens // dist.get_world_size()
        shapes = [(rows, HEADS, DIM), (rows, HEADS_KV, DIM), (rows, HEADS_KV, DIM)]
        generator = torch.Generator("cuda").manual_seed(dist.get_rank())
        self.leaves = [self.random(s, generator).requires_grad_(not forward) for s in shapes]
        self.others = [self.random(s, generator) for s in shapes]
        self.dout = self.random(shapes[0], generator)

    @staticmethod
    def random(shape, generator):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    def key(self):
        while True:
            mask = tangram.Mask.varlen(packed(self.rng, self.tokens, self.documents), causal=True)
            key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM)
            if key.shapes[0][0] == len(self.leaves[0]):
                return key

    def step(self, key):
        """A step with a key or a buffer."""
        out = tangram.calc_attn(*self.leaves, key)[0]
        return [out] if self.only_forward else [out.detach(), *torch.autograd.grad(out, self.leaves, self.dout)]

    def captured(self, buffer, key):
        """A graph of a step, and its results."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffer.set(key)
            for _ in range(2):
                self.step(buffer)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            results = self.step(buffer)
        torch.cuda.synchronize()
        dist.barrier()
        return graph, results

    def change_values(self):
        for leaf, other in zip(self.leaves, self.others, strict=True):
            kept = leaf.data.clone()
            leaf.data.copy_(other)
            other.copy_(kept)


def slowest(values):
    values = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values.tolist()


def host_us(call):
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def mean_us(first, calls):
    """(GPU, host): means of the calls, behind other work and one that brings the ranks' GPUs together."""
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY)
    first()
    begin.record()
    start = time.perf_counter()
    for call in calls:
        call()
    host = (time.perf_counter() - start) * 1e6
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / len(calls), host / len(calls)


def measure(packs, count, repeats, order, deterministic, with_table):
    keys = [packs.key() for _ in range(count + SKIPPED)]
    news = [[packs.key() for _ in range(STEPS)] for _ in range(count + SKIPPED)]
    fitted = keys + [key for some in news for key in some]
    buffer = tangram.DistMaskBuffer(
        fitted, spare=0.0, deterministic=deterministic, with_gradients=not packs.only_forward
    )
    graph, _ = packs.captured(buffer, keys[0])
    if with_table:
        tabled = tangram.DistMaskBuffer(
            fitted,
            spare=0.0,
            deterministic=deterministic,
            with_gradients=not packs.only_forward,
            allow_fully_masked_rows=True,
        )
        tabled_graph, _ = packs.captured(tabled, keys[0])
    figures = defaultdict(list)
    if dist.get_rank() == 0:
        print(f"{buffer.capacity}, {buffer.device_bytes >> 20} MiB", flush=True)
    for number, (key, new) in enumerate(zip(keys, news, strict=True)):
        if number == SKIPPED:
            figures.clear()
        packs.step(key)
        hosts = {
            "set, host": host_us(lambda key=key: buffer.set(key)),
            "replay, host": host_us(graph.replay),
            "key, host": host_us(lambda key=key: packs.step(key)),
        }

        def set_and_replay(key):
            buffer.set(key)
            graph.replay()

        ways = {
            "key": ([key] * STEPS, packs.step),
            "buffer": ([buffer] * STEPS, packs.step),
            "replay": ([None] * STEPS, lambda _: graph.replay()),
            "set, replay": (new, set_and_replay),
            "key prepared": (new, packs.step),
        }
        ratios = [
            ("buffer", "key"),
            ("replay", "key"),
            ("replay", "buffer"),
            ("set, replay", "key prepared"),
            ("set, replay", "key new"),
        ]
        if with_table:
            ways["replay, table"] = ([None] * STEPS, lambda _: tabled_graph.replay())
            ratios.append(("replay, table", "key"))
        # Keys that no call has used yet: once.
        first, first_host = mean_us(lambda key=key: packs.step(key), [lambda k=k: packs.step(k) for k in new])
        times, host_times = defaultdict(list), defaultdict(list)
        for _ in range(repeats):
            for name in order.sample(list(ways), len(ways)):
                if name in ("buffer", "replay"):
                    buffer.set(key)
                if name == "replay, table":
                    tabled.set(key)
                arguments, call = ways[name]
                behind = buffer if "replay" in name or name == "buffer" else key
                device, host = mean_us(
                    lambda behind=behind: packs.step(behind), [lambda a=a, c=call: c(a) for a in arguments]
                )
                times[name].append(device)
                host_times[name].append(host)
        names = list(times)
        medians = dict(zip(names, slowest([statistics.median(times[name]) for name in names]), strict=True))
        medians["key new"] = slowest([first])[0]
        hosts["key new, host in a row"] = first_host
        for name in names:
            hosts[f"{name}, host in a row"] = statistics.median(host_times[name])
        for name, value in zip(hosts, slowest(list(hosts.values())), strict=True):
            figures[name].append(value)
        for name, value in medians.items():
            figures[f"{name}, device"].append(value)
        for above, below in ratios:
            figures[f"{above} / {below}"].append(medians[above] / medians[below])
    tangram.check_errors()
    return figures


def soak(packs, count):
    """Replays beside calls, without a wait."""
    start = time.perf_counter()
    keys = [packs.key() for _ in range(count)]
    planned = time.perf_counter()
    buffer = tangram.DistMaskBuffer(keys, spare=0.0, deterministic=True)
    graph, results = packs.captured(buffer, keys[0])
    order, used = random.Random(1), []
    differ = torch.zeros(2, 4, device="cuda")  # from calls with the buffer: how many; with the key: by what at most
    for number in range(count):
        key, keys[number] = keys[number], None
        packs.change_values()
        for rank in range(dist.get_world_size()):
            late = order.random() < 0.1
            if late and rank == dist.get_rank():
                torch.cuda._sleep(order.randrange(1, 5) * 500_000)
        buffer.set(key)
        graph.replay()
        for way in (buffer, key):
            out = tangram.calc_attn(*packs.leaves, way, deterministic=True)[0]
            called = [out.detach(), *torch.autograd.grad(out, packs.leaves, packs.dout)]
            if way is buffer:
                differ[0] += torch.stack([(a != b).any() for a, b in zip(results, called, strict=True)])
                continue
            largest = [(a - b).abs().max() / b.abs().max() for a, b in zip(results, called, strict=True)]
            differ[1] = differ[1].maximum(torch.stack(largest))
        if number >= count // 2:
            free, total = torch.cuda.mem_get_info()
            used.append(total - free - torch.cuda.memory_reserved())
    tangram.check_errors()
    differ = differ.cpu()
    dist.all_reduce(differ, op=dist.ReduceOp.MAX)
    took, differ = time.perf_counter() - planned, differ.tolist()
    if dist.get_rank() == 0:
        print(
            f"soak of {count} packs: {took:.1f} s (planned in {planned - start:.1f} s), memory + "
            f"{(max(used) - used[0]) >> 10} KiB in its second half; out, dq, dk, dv: {differ[0]} differ from calls "
            f"with the buffer, all from calls with the key by {[f'{x:.4f}' for x in differ[1]]} of the largest at most",
            flush=True,
        )
    assert not any(differ[0]) and max(differ[1]) < BOUND, differ


def kernel_times(call):
    """Times of a step in us: by kernel, and from the begin of the first to the end of the last: us."""
    torch.cuda.synchronize()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        for _ in range(STEPS):
            call()
        torch.cuda.synchronize()
    times, begin, end = defaultdict(float), float("inf"), 0.0
    for event in traced.events():
        if event.device_type.name != "CUDA":
            continue
        span, name = event.time_range, event.name.replace("(anonymous namespace)::", "")
        begin, end = min(begin, span.start), max(end, span.end)
        times[name.split("(")[0].split("<")[0].split("::")[-1]] += (span.end - span.start) / STEPS
    times["from first to last"] = (end - begin) / STEPS
    return times


def trace(packs, count):
    keys = [packs.key() for _ in range(count)]
    buffer = tangram.DistMaskBuffer(keys, spare=0.0, with_gradients=not packs.only_forward)
    graph, _ = packs.captured(buffer, keys[0])
    for number, key in enumerate(keys):
        buffer.set(key)
        calls = (lambda key=key: packs.step(key), graph.replay)
        traced = ([], [])
        for turn in range(TURNS):  # GPUs that get warm get slower: each is the first as often
            for way in (0, 1) if turn % 2 == 0 else (1, 0):
                calls[way]()
                traced[way].append(kernel_times(calls[way]))
        names = {name for tables in traced for table in tables for name in table}
        tables = [{n: statistics.median(table.get(n, 0.0) for table in of_way) for n in names} for of_way in traced]
        landed = key.plan.ranks[dist.get_rank()].remote_kv_rows
        lines = [f"pack {number}, rank {dist.get_rank()} gets {landed} rows: us a step with the key, by a replay"]
        for name in sorted(names, key=lambda name: -tables[1][name]):
            with_key, replayed = (table[name] for table in tables)
            lines.append(f"  {name:40}{with_key:12.1f}{replayed:12.1f}{replayed - with_key:+10.1f}")
        print("\n".join(lines), flush=True)
    tangram.check_errors()


def show(figures, packs, how, csv):
    before = f'{tangram.__version__},"{torch.cuda.get_device_name()}",packed:{packs.documents}'
    rows = f"{packs.tokens},{packs.tokens},{dist.get_world_size()},"
    shape = f"{rows},{HEADS},{HEADS_KV},{DIM},{DIM},bfloat16,sm90,copy_engine,{how}"
    lines = []
    for figure, values in sorted(figures.items()):
        value, unit = statistics.median(values), "" if "/" in figure else "us"
        print(f"{figure:28}{value:12.3f} {unit:3} ({min(values):.3f} to {max(values):.3f})", flush=True)
        lines.append(f'{before},{shape},"{figure}",{unit},{value:.4f}')
    if csv:
        append_csv(csv, lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--packs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--trace", type=int, default=0)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    tangram.configure(deterministic=arguments.deterministic)
    packs = Packs(arguments.tokens, arguments.documents, arguments.forward)
    if arguments.trace > 0:
        trace(packs, arguments.trace)
    if arguments.soak > 0:
        soak(packs, arguments.soak)
    figures = {}
    if arguments.packs > 0:
        order = random.Random(0)
        figures = measure(packs, arguments.packs, arguments.repeats, order, arguments.deterministic, arguments.table)
    how = "_".join(["deterministic"] * arguments.deterministic + ["forward"] * arguments.forward)
    if dist.get_rank() == 0:
        show(figures, packs, how, arguments.csv)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
