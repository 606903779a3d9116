# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A new pack at every step on one GPU: through a MaskBuffer, replayed and eager, beside masks of their own.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/mask_buffer.py [--tokens 32768] [--documents 64]
    [--packs 40] [--deterministic] [--all-see] [--csv FILE]
For each pack, in random turns: forward and backward of 64/8 heads of 128 with the mask as it is (known: lists are
there), through the buffer, and as a replay of one graph. Device times between events on a stream that is kept busy
before, so that no host time shows; host times with the stream empty. "own new": what the host takes for a pack seen for
the first time, both passes enqueued. Medians; ratios are medians of the ratios of a pack. --all-see: the buffer is for
masks in which each row sees a key, as in these packs.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
from new_masks import append_csv, packed

import tangram
from tangram import HeadConfig, Mask, MaskBuffer, flex_flash_attn_func
from tangram._prepared import clear_cache

HEADS, HEADS_KV, DIM = 64, 8, 128
REPEATS = 5


def device_us(call, cycles=4_000_000, before=lambda: None):
    """Device time of one call, behind other work: so many cycles, by default two milliseconds, and what `before`
    enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    before()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def host_us(call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--packs", type=int, default=40)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--all-see", action="store_true")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    rows, exact = arguments.tokens, arguments.deterministic
    rng, order = np.random.default_rng(0), random.Random(0)
    shapes = [(rows, HEADS, DIM), (rows, HEADS_KV, DIM), (rows, HEADS_KV, DIM)]
    leaves = [torch.randn(s, device="cuda", dtype=torch.bfloat16).requires_grad_() for s in shapes]
    dout = torch.randn(shapes[0], device="cuda", dtype=torch.bfloat16)

    def step(mask):
        out, _ = flex_flash_attn_func(*leaves, mask, deterministic=exact)
        torch.autograd.grad(out, leaves, dout)

    heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM, "bfloat16")
    buffer = MaskBuffer(
        rows,
        rows,
        heads,
        max_documents=arguments.documents,
        deterministic=exact,
        allow_fully_masked_rows=not arguments.all_see,
    )
    borders = [packed(rng, rows, arguments.documents) for _ in range(arguments.packs + 3)]
    buffer.set(Mask.varlen(borders[0], causal=True))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(buffer)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(buffer)
    figures = defaultdict(list)
    for number, pack in enumerate(borders):
        if number == 3:  # the first pay for what the process makes once
            figures.clear()
        clear_cache()
        figures["own new, host"].append(host_us(lambda pack=pack: step(Mask.varlen(pack, causal=True))))
        mask = Mask.varlen(pack, causal=True)
        figures["Mask.varlen, host"].append(host_us(lambda pack=pack: Mask.varlen(pack, causal=True)))
        figures["set, host"].append(host_us(lambda mask=mask: buffer.set(mask)))
        figures["set, device"].append(device_us(lambda mask=mask: buffer.set(mask)))
        figures["replay, host"].append(host_us(graph.replay))
        step(mask)
        kinds = {"own": lambda mask=mask: step(mask), "buffer": lambda: step(buffer), "replay": graph.replay}
        times = {name: [] for name in kinds}
        for _ in range(REPEATS):
            for name in order.sample(sorted(kinds), len(kinds)):
                times[name].append(device_us(kinds[name]))
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, value in medians.items():
            figures[f"{name}, device"].append(value)
        figures["buffer / own"].append(medians["buffer"] / medians["own"])
        figures["replay / buffer"].append(medians["replay"] / medians["buffer"])
    shape = f"{rows},{rows},1,0,{HEADS},{HEADS_KV},{DIM},{DIM},bfloat16,sm90,,{'deterministic' if exact else ''}"
    lines = []
    for figure, values in figures.items():
        unit, value = ("", statistics.median(values)) if "/" in figure else ("us", statistics.median(values))
        print(f"{figure:24}{value:12.3f} {unit:3} (most {max(values):.3f})")
        lines.append(
            f'{tangram.__version__},"{torch.cuda.get_device_name()}",packed:{arguments.documents},{shape},"{figure}",'
            f"{unit},{value:.4f}"
        )
    if arguments.csv:
        append_csv(arguments.csv, lines)


if __name__ == "__main__":
    main()
