# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpointed layers whose attention is recomputed, beside such that keep it: time and memory of a step.

PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --nproc-per-node=2 \
    benchmarks/python/kept_attention.py [--tokens 32768 65536 131072 262144] [--masks packs documents causal]
    [--layers 2] [--rounds 3] [--limit 220] [--device cpu] [--csv FILE]
Layers are those of an 8B model: hidden 4096, 32/8 heads of 128, MLP 14336, bfloat16, rotary positions, each in a
checkpoint of its own; a step is forward and backward of all layers, without loss and optimiser. Tokens are of all
ranks, packs documents of log-normal lengths with a mean of 2,048, "documents" have lengths of a real corpus
(src/cli/data/doc_lengths.json), cut at a quarter of the tokens. Variants, in random turns that all ranks share:
- "recomputed": `checkpoint(layer, x, use_reentrant=False)`.
- "policy": the same with `context_fn=tangram.checkpoint_policy()`.
- "reentrant": `checkpoint(layer, x, use_reentrant=True)`, which recomputes attention and the rest of the layer.
- "wrapper": `checkpoint(tangram.keep_attention(layer), x, use_reentrant=True)`.
Time: of the slowest rank between events round the step, medians of turns; sequences of 262,144 and more have two turns.
Memory: what the allocator held at most within a step, less what it held before, the most of any rank. "attention" is
what tangram.meter says of a step's passes. Of several ranks it holds what no computation hides of transfers, since
kernels wait for rows; "alone" is the same attention, as many passes of each kind, on rows that are all in the memory of
the rank: one minus the other is what stays exposed. Cells that would begin after --limit seconds are named and left
out.
`--device cpu`: small layers, to see that it runs.
"""

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from new_masks import append_csv, machine, packed
from torch.utils.checkpoint import checkpoint

import tangram

MEAN_DOCUMENT = 2048
LENGTHS = Path(__file__).resolve().parents[2] / "src" / "cli" / "data" / "doc_lengths.json"
LONG = 262_144
SIZES = {"cuda": (4096, 32, 8, 128, 14336), "cpu": (64, 4, 2, 16, 128)}
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        hidden, self.heads, self.heads_kv, self.dim, wide = size
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, (self.heads + 2 * self.heads_kv) * self.dim, bias=False)
        self.out = torch.nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.up = torch.nn.Linear(hidden, 2 * wide, bias=False)
        self.down = torch.nn.Linear(wide, hidden, bias=False)

    def forward(self, x, attend, cosine, sine):
        rows = self.qkv(self.norms[0](x)).view(len(x), -1, self.dim)
        q, k, v = rows.split([self.heads, self.heads_kv, self.heads_kv], 1)
        q, k = (y * cosine + y.roll(self.dim // 2, -1) * sine for y in (q, k))
        x = x + self.out(attend(q, k, v).flatten(1))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def borders_of(name, tokens):
    generator = np.random.default_rng(0)
    if name == "packs":
        return packed(generator, tokens, max(2, tokens // MEAN_DOCUMENT))
    borders = [0]
    if name == "documents":
        intervals = json.loads(LENGTHS.read_text())["intervals"]
        counts = np.array([each["count"] for each in intervals], float)
        while borders[-1] < tokens:
            drawn = intervals[generator.choice(len(intervals), p=counts / counts.sum())]
            length = min(int(generator.integers(drawn["lo"], drawn["hi"] + 1)), tokens // 4)
            borders += [min(borders[-1] + length, tokens)] if length else []
        return borders
    return [*borders, tokens]


def run(variant, layer, *inputs):
    if variant == "policy":
        return checkpoint(layer, *inputs, use_reentrant=False, context_fn=tangram.checkpoint_policy())
    if variant in ("reentrant", "wrapper"):
        function = tangram.keep_attention(layer) if variant == "wrapper" else layer
        return checkpoint(function, *inputs, use_reentrant=True)
    return checkpoint(layer, *inputs, use_reentrant=False)


class Cell:
    """Layers, one mask, and what a step computes."""

    def __init__(self, layers, mask, size, device):
        self.layers, self.on_gpu = layers, device == "cuda"
        _, heads, heads_kv, dim, _ = size
        if dist.get_world_size() > 1:
            key = tangram.mask_key(mask, heads, heads_kv, dim)
            self.attend = lambda q, k, v: tangram.calc_attn(q, k, v, key)[0]
            own = key.plan.ranks[dist.get_rank()]
            self.own_mask = tangram.Mask(key.rows("q").per_rank, own.kv_rows, own.slices)
            positions = tangram.get_position_ids(key, device=device)
        else:
            self.attend = lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, mask)[0]
            positions = torch.arange(mask.seqlen_q, device=device)
        dtype = DTYPES[device]
        angles = positions[:, None] * 10_000.0 ** -torch.arange(0, 1, 2 / dim, device=device)
        cosine, sine = (torch.cat([y, y], -1)[:, None] for y in (angles.cos(), angles.sin()))
        sine[..., : dim // 2] *= -1
        self.turns = (cosine.to(dtype), sine.to(dtype))
        self.x = torch.randn(len(positions), size[0], device=device, dtype=dtype).requires_grad_()
        self.dy = torch.randn_like(self.x)

    def alone(self, size, turns=3):
        """Medians of forward and backward passes of this rank on rows that are all there, ms. All ranks at once."""
        _, heads, heads_kv, dim, _ = size
        mask, options = self.own_mask, {"device": self.x.device, "dtype": self.x.dtype}
        leaves = [
            torch.randn(rows, n, dim, **options).requires_grad_()
            for rows, n in ((mask.seqlen_q, heads), (mask.seqlen_k, heads_kv), (mask.seqlen_k, heads_kv))
        ]
        dout = torch.randn_like(leaves[0])
        found = []
        for _ in range(turns + 1):
            dist.barrier()
            with tangram.meter() as measured:
                torch.autograd.grad(tangram.flex_flash_attn_func(*leaves, mask)[0], leaves, dout)
            report = measured.report()
            found.append((report.forward_s * 1e3, report.backward_s * 1e3))
        return [statistics.median(column) for column in zip(*found[1:], strict=True)]

    def step(self, variant):
        """(ms, bytes, ms of attention forward, backward, passes forward)."""
        held = 0
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        dist.barrier()
        with tangram.meter() as measured:
            y = self.x
            for layer in self.layers:
                y = run(variant, layer, y, self.attend, *self.turns)
            y.backward(self.dy)
        del y
        report = measured.report()
        peak = torch.cuda.max_memory_allocated() - held if self.on_gpu else 0
        for layer in self.layers:
            layer.zero_grad()
        self.x.grad = None
        return report.total_s * 1e3, peak, report.forward_s * 1e3, report.backward_s * 1e3, report.num_forward


def slowest(values):
    values = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values.tolist()


def measure(cell, variants, rounds, order):
    """By variant: medians of time, memory and attention, forward and backward."""
    found = {variant: [] for variant in variants}
    for turn in range(rounds + 1):  # the first prepares lists and memory
        for variant in order.sample(variants, len(variants)):
            *figures, passes = cell.step(variant)
            recomputes = variant in ("recomputed", "reentrant")
            assert passes == len(cell.layers) * (2 if recomputes else 1), (variant, passes)
            if turn > 0:
                found[variant].append(slowest(figures))
    return {variant: [statistics.median(f) for f in zip(*turns, strict=True)] for variant, turns in found.items()}


def show(name, tokens, size, found, alone, device, layers):
    """Prints a cell and returns its lines of CSV."""
    _, heads, heads_kv, dim, _ = size
    name_of_machine = torch.cuda.get_device_name() if device == "cuda" else machine()
    ranks = dist.get_world_size()
    backend, transport = ("sm90", "copy_engine" if ranks > 1 else "") if device == "cuda" else ("cpu", "host")
    dtype = str(DTYPES[device]).removeprefix("torch.")
    before = (
        f'{tangram.__version__},"{name_of_machine}",{name},{tokens},{tokens},{ranks},,{heads},{heads_kv},{dim},{dim}'
    )
    lines, base = [], found["recomputed"]
    for variant, (ms, peak, forward, backward) in found.items():
        attention = forward + backward
        print(
            f"{name:8}{tokens:>8} {variant:12}{ms / layers:10.2f} ms a layer ({base[0] / ms:.3f} x), attention "
            f"{attention / layers:8.2f} ({forward / layers:.2f} + {backward / layers:.2f}), peak {peak / 2**30:7.2f} "
            f"GiB ({(peak - base[1]) / 2**20:+.0f} MiB)",
            flush=True,
        )
        figures = [
            ("layer", "ms", ms / layers),
            ("attention", "ms", attention / layers),
            ("attention forward", "ms", forward / layers),
            ("attention backward", "ms", backward / layers),
            (f"peak of {layers} layers", "bytes", peak),
        ]
        if alone is not None:
            passes = 2 if variant in ("recomputed", "reentrant") else 1
            there = passes * alone[0] + alone[1]
            exposed = attention / layers - there
            print(f"{'':17}rows that are there: {there:.2f} ms, exposed {exposed:.2f} ({exposed / there:.1%})")
            figures.append(("attention alone", "ms", there))
        for figure, unit, value in figures:
            lines.append(f"{before},{dtype},{backend},{transport},{variant},{figure},{unit},{value:.4f}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32768, 65536, 131072, 262144])
    parser.add_argument("--masks", nargs="+", choices=["packs", "documents", "causal"], default=["packs", "causal"])
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=["recomputed", "policy", "reentrant", "wrapper"],
        default=["recomputed", "policy", "reentrant", "wrapper"],
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=220.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    begun = time.monotonic()
    device, size = arguments.device, SIZES[arguments.device]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(dist.get_rank())
    layers = [Layer(size).to(device, DTYPES[device]) for _ in range(arguments.layers)]
    order = random.Random(0)
    variants = list(dict.fromkeys(["recomputed", *arguments.variants]))
    left_out = []
    for tokens in arguments.tokens:
        for name in arguments.masks:
            (late,) = slowest([time.monotonic() - begun])
            if late > arguments.limit:
                left_out.append(f"{name} {tokens}")
                continue
            cell = Cell(layers, tangram.Mask.varlen(borders_of(name, tokens), causal=True), size, device)
            rounds = min(2, arguments.rounds) if tokens >= LONG else arguments.rounds
            try:
                found = measure(cell, variants, rounds, order)
                alone = slowest(cell.alone(size)) if dist.get_world_size() > 1 else None
            except torch.cuda.OutOfMemoryError:
                if dist.get_world_size() > 1:
                    raise  # the other ranks wait
                for layer in layers:
                    layer.zero_grad()
                left_out.append(f"{name} {tokens} (memory)")
                continue
            finally:
                del cell
            if dist.get_rank() == 0:
                lines = show(name, tokens, size, found, alone, device, arguments.layers)
                if arguments.csv:
                    append_csv(arguments.csv, lines)
    if dist.get_rank() == 0 and left_out:
        print(f"left out, after {arguments.limit:g} s or for memory: {', '.join(left_out)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
