# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a new packed mask costs on one GPU: host and GPU time, beside `cudnn.flex_attention.create_mask_plan`.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/new_masks_gpu.py [--tokens 32768] [--documents 16]
    [--packs 20] [--csv FILE]
Every mask is a pack of causal documents of log-normal lengths; 64/8 heads of 128. For each pack, in random turns:
- "new", "seen": host time of a forward pass, or of both, with a mask made in the call (`Mask.varlen` included) and with
  one that an earlier call has seen; "new mask": their difference.
- "MaskBuffer.set" and the plan of cuDNN Flex (for both passes; its borders, made on the host and copied, apart): "host"
  until the call returns, "done" until the GPU is idle too; of `set` also what it takes on a busy GPU.
- "first", "second", "third": GPU time of the passes of one mask that was new at the first, between events behind 10 ms
  of other work, so that no host time shows unless the host waits for the GPU, and behind a pass of a known mask, since
  a GPU is slower after a pause. "first / second" is what the lists cost there, "third / second" how far times scatter.
Host times begin with an idle GPU. Medians over packs; ratios and differences are medians of those of a pass. Without
the peer (benchmarks/attn/README.md says how to install it) its figures are missing.
"""

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import defaultdict

import numpy as np
import torch
from mask_buffer import DIM, HEADS, HEADS_KV, device_us, host_us
from new_masks import append_csv, packed

import tangram
from tangram import HeadConfig, Mask, MaskBuffer, flex_flash_attn_func
from tangram._prepared import clear_cache

try:
    from cudnn.flex_attention import create_mask_plan
except Exception as error:  # a broken installation raises more than ImportError
    create_mask_plan = None
    print(f"no cuDNN frontend: {error!r}"[:300], file=sys.stderr)

REPEATS = 3
SKIPPED = 3  # the first packs pay for what the process makes once
BUSY = 20_000_000  # cycles: longer than the host prepares a mask


def done_us(call):
    """(until the call returns, until the GPU is idle too)."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - start) * 1e6, (time.perf_counter() - start) * 1e6


def flex_borders(borders):
    """The keys of every row as cuDNN Flex takes them: hidden up to the document's first row, visible up to the own."""
    rows = int(borders[-1])
    starts = np.repeat(borders[:-1], np.diff(borders))
    lines = np.stack([np.zeros(rows, np.int64), starts, np.arange(1, rows + 1)]).astype(np.int32)
    return torch.from_numpy(lines)[None].cuda()


class Packs:
    """All that is measured of one pack after the other."""

    def __init__(self, rows, documents):
        shapes = [(rows, HEADS, DIM), (rows, HEADS_KV, DIM), (rows, HEADS_KV, DIM)]
        self.leaves = [torch.randn(s, device="cuda", dtype=torch.bfloat16).requires_grad_() for s in shapes]
        self.dout = torch.randn(shapes[0], device="cuda", dtype=torch.bfloat16)
        heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM, "bfloat16")
        self.buffer = MaskBuffer(rows, rows, heads, max_documents=documents)
        self.figures = defaultdict(list)

    def forward(self, mask):
        return flex_flash_attn_func(*self.leaves, mask)[0]

    def backward(self, out):
        torch.autograd.grad(out, self.leaves, self.dout, retain_graph=True)

    def both(self, mask):
        self.backward(self.forward(mask))

    def new_and_seen(self, name, call, borders):
        clear_cache()
        made = []

        def new():
            made.append(Mask.varlen(borders, causal=True))
            call(made[0])

        first = host_us(new)
        seen = host_us(lambda: call(made[0]))
        self.figures[f"{name} new, host"].append(first)
        self.figures[f"{name} seen, host"].append(seen)
        self.figures[f"new mask, {name}, host"].append(first - seen)

    def host_forward(self, borders):
        self.new_and_seen("forward", self.forward, borders)

    def host_both(self, borders):
        self.new_and_seen("both passes", self.both, borders)

    def set_buffer(self, borders):
        mask = Mask.varlen(borders, causal=True)
        self.figures["Mask.varlen, host"].append(host_us(lambda: Mask.varlen(borders, causal=True)))
        host, done = done_us(lambda: self.buffer.set(mask))
        self.figures["MaskBuffer.set, host"].append(host)
        self.figures["MaskBuffer.set, done"].append(done)
        self.figures["MaskBuffer.set, device"].append(device_us(lambda: self.buffer.set(mask), BUSY))

    def plan_flex(self, borders):
        self.figures["flex borders, done"].append(done_us(lambda: flex_borders(borders))[1])
        lines = flex_borders(borders)
        q, k, v = (t.detach()[None] for t in self.leaves)
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it compiles
            host, done = done_us(lambda: create_mask_plan(lines, q, k, v, build_backward=True))
        self.figures["flex plan, host"].append(host)
        self.figures["flex plan, done"].append(done)

    def passes(self, borders):
        clear_cache()
        mask = Mask.varlen(borders, causal=True)
        known, outs = Mask.varlen(borders, causal=False), []
        known_out = self.forward(known)
        self.backward(known_out)
        forward = [
            device_us(lambda: outs.append(self.forward(mask)), BUSY, lambda: self.forward(known)) for _ in range(3)
        ]
        backward = [
            device_us(lambda: self.backward(outs[-1]), BUSY, lambda: self.backward(known_out)) for _ in range(3)
        ]
        for name, times in (("forward", forward), ("backward", backward)):
            self.figures[f"{name} first, device"].append(times[0])
            self.figures[f"{name} second, device"].append(times[1])
            self.figures[f"{name} first - second, device"].append(times[0] - times[1])
            self.figures[f"{name} first / second"].append(times[0] / times[1])
            self.figures[f"{name} third / second"].append(times[2] / times[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--packs", type=int, default=20)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    rows, documents = arguments.tokens, arguments.documents
    rng, order = np.random.default_rng(0), random.Random(0)
    packs = Packs(rows, documents)
    ways = [packs.host_forward, packs.host_both, packs.set_buffer, packs.passes]
    if create_mask_plan is not None:
        ways.append(packs.plan_flex)
    for number in range(arguments.packs + SKIPPED):
        if number == SKIPPED:
            packs.figures.clear()
        borders = packed(rng, rows, documents)
        for _ in range(REPEATS):
            for way in order.sample(ways, len(ways)):
                try:
                    way(borders)
                except Exception as error:
                    if way != packs.plan_flex:
                        raise
                    print(f"cuDNN Flex failed: {error!r}"[:300], file=sys.stderr, flush=True)
                    ways.remove(way)
    before = f'{tangram.__version__},"{torch.cuda.get_device_name()}",packed:{documents},{rows},{rows},1,0'
    shape = f"{HEADS},{HEADS_KV},{DIM},{DIM},bfloat16"
    lines = []
    for figure, values in sorted(packs.figures.items()):
        value, unit = statistics.median(values), "" if "/" in figure else "us"
        print(f"{figure:36}{value:12.3f} {unit:3} (most {max(values):.3f})", flush=True)
        system = ",,cudnn_flex" if figure.startswith("flex") else "sm90,,"
        lines.append(f'{before},{shape},{system},"{figure}",{unit},{value:.4f}')
    if arguments.csv:
        append_csv(arguments.csv, lines)


if __name__ == "__main__":
    main()
