#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training steps of examples/13_train_long_context by every system of attention, in turns: time, memory, losses.

PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node=2 \
    benchmarks/python/long_context_steps.py [OPTION ...]

options: [--tokens 32768 131072] [--masks packs causal] [--keep attention none] [--attention SYSTEM ...] [--size 8B]
    [--layers 2] [--rounds 3] [--offload none] [--limit 200] [--device cpu] [--csv FILE]

A step is the example's, whole: planning of a new pack, forward, backward, the optimiser. All systems run in one
process, on one model with a learning rate of 0, so that losses of a pack must agree. In each turn they take the same
pack in random order. The first turn compiles and is not counted. Without --attention all systems that know the mask
run. Those whose package is not installed are named and left out, but one that is asked for alone is an error.
Time: of the slowest rank, medians of turns; attention, FSDP's waits and planning as rank 0 sees them. Peak: the
allocator's, the most of any rank, beside the example's estimate. Cells that would begin after --limit seconds, and
those that do not fit on one GPU, are named and left out. The exit status is 1 if losses differ by more than 1 %.
`--device cpu`: a toy, to see that it runs.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "13_train_long_context"))

import attention
import keep
import memory
import torch
import torch.distributed as dist
import train
from new_masks import append_csv, machine

import tangram

LOSS_BOUND = {"cuda": 1e-2, "cpu": 1e-5}
SYSTEMS = [name for name in attention.SYSTEMS if name != "dense"]
ONE_RANK = ["tangram", "ulysses_fa4", "ulysses_flex"]  # on one rank the others are the second one


def agreed(value):
    """The largest of any rank."""
    value = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def note(text):
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def chosen(arguments, mask, device):
    """Systems of a cell that are installed."""
    names = arguments.attention or (ONE_RANK if dist.get_world_size() == 1 else SYSTEMS)
    if len(names) == 1:
        attention.make_system(names[0], memory.shape_of(arguments.size, arguments.layers), device)  # or why not
    found = []
    for name in names:
        package = attention.missing(name, device)
        if package is not None:
            note(f"{name}: not installed ({package})")
        elif name != "torch_ring" or mask == "causal":
            found.append(name)
    return found


def cell(run, arguments, names, tokens, mask, kept, order):
    """By system: reports of the turns that count."""
    a = run.arguments
    a.tokens, a.mask, a.keep = tokens, mask, kept
    run.keeper = keep.Keeper(kept, arguments.offload, run.device)
    systems = {}
    for name in list(names):
        try:
            systems[name] = attention.make_system(name, run.shape, run.device)
        except ValueError as refused:
            note(f"{name}, {mask} {tokens}: left out: {refused}")
    found = {name: [] for name in systems}
    rounds = arguments.rounds if tokens < 100_000 else min(2, arguments.rounds)
    for turn in range(rounds + 1):
        for name in order.sample(list(systems), len(systems)):
            run.system, run.next_step = systems[name], turn
            report = run.step()
            if turn > 0:
                found[name].append(report)
    return found


def show(arguments, found, tokens, mask, kept):
    """Prints a cell; returns its lines of CSV and whether losses agree."""
    lines, agree = [], True
    first = next(iter(found.values()))
    base = statistics.median(report.seconds for report in first)
    name_of_machine = torch.cuda.get_device_name() if arguments.device == "cuda" else machine()
    shape = memory.shape_of(arguments.size, arguments.layers)
    for name, reports in found.items():
        seconds = statistics.median(report.seconds for report in reports)
        part = {p: statistics.median(r.parts[p] for r in reports) for p in ("attention", "fsdp", "offload", "planning")}
        apart = max(abs(r.loss - f.loss) / f.loss for r, f in zip(reports, first, strict=True))
        agree = agree and apart <= LOSS_BOUND[arguments.device]
        last = reports[-1]
        off = f" ({last.peak_gib / last.estimated_gib - 1:+.1%} of {last.estimated_gib:.2f})" if last.peak_gib else ""
        print(
            f"{mask:7}{tokens:>8} keep {kept:10}{name:18}{seconds * 1e3:9.1f} ms ({seconds / base:.3f} x)  "
            f"{tokens / seconds / last.ranks:9.0f} tokens/s a rank  MFU {last.mfu:.1%} ({last.mfu_backward_2_5:.1%})  "
            + ", ".join(f"{p} {x * 1e3:.1f}" for p, x in part.items())
            + f" ms  peak {last.peak_gib:.2f} GiB{off}  loss {reports[0].loss:.5f}"
            f" ({apart:.1e})",
            flush=True,
        )
        dtype, backend = ("bfloat16", "sm90") if arguments.device == "cuda" else ("float32", "cpu")
        cells = [tangram.__version__, f'"{name_of_machine}"', mask, tokens, tokens, last.ranks, "", shape.heads]
        cells += [
            shape.heads_kv,
            shape.head_dim,
            shape.head_dim,
            dtype,
            backend,
            "copy_engine" if last.ranks > 1 else "",
        ]
        figures = [("step", "ms", seconds * 1e3), *((p, "ms", x * 1e3) for p, x in part.items())]
        figures += [
            ("peak", "GiB", last.peak_gib),
            ("estimated", "GiB", last.estimated_gib),
            ("loss", "", reports[0].loss),
        ]
        figures += [("tokens", "1/s", tokens / seconds), ("mfu", "", last.mfu)]
        strategy = f"{name} keep {kept} layers {shape.layers} offload {arguments.offload}"
        lines += [",".join(map(str, [*cells, strategy, figure, unit, f"{x:.5f}"])) for figure, unit, x in figures]
    return lines, agree


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--masks", nargs="+", choices=["packs", "causal"], default=["packs", "causal"])
    parser.add_argument("--keep", nargs="+", choices=keep.KEEPS, default=["attention", "none"])
    parser.add_argument("--attention", nargs="+")
    parser.add_argument("--size")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--offload", choices=keep.OFFLOADS, default="none")
    parser.add_argument("--moments", default="bf16")
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    begun = time.monotonic()
    on_gpu = arguments.device == "cuda"
    arguments.size = arguments.size or ("8B" if on_gpu else "toy")
    arguments.tokens = arguments.tokens or ([32768, 131072] if on_gpu else [256])
    train.start(arguments.device)
    words = f"--device {arguments.device} --size {arguments.size} --layers {arguments.layers} --lr 0 --steps 1000000000"
    words += f" --moments {arguments.moments} --offload {arguments.offload}"
    run = train.Run(train.parser().parse_args(words.split()))
    order, agree, left_out = random.Random(0), True, []
    for tokens in arguments.tokens:
        for mask in arguments.masks:
            names = chosen(arguments, mask, run.device)
            for kept in arguments.keep if arguments.offload != "all" else ["attention"]:
                if agreed(time.monotonic() - begun) > arguments.limit:
                    left_out.append(f"{mask} {tokens} keep {kept}")
                    continue
                try:
                    found = cell(run, arguments, names, tokens, mask, kept, order)
                except torch.cuda.OutOfMemoryError as error:
                    if dist.get_world_size() > 1:
                        raise  # the other ranks wait
                    left_out.append(f"{mask} {tokens} keep {kept} (memory: {str(error)[:120]})")
                    run.optimiser.zero_grad()
                    continue
                if dist.get_rank() == 0 and found:
                    lines, same = show(arguments, found, tokens, mask, kept)
                    agree = agree and same
                    if arguments.csv:
                        append_csv(arguments.csv, lines)
    if left_out:
        note(f"left out, after {arguments.limit:g} s or for memory: {', '.join(left_out)}")
    note(f"{time.monotonic() - begun:.0f} s in all" + ("" if agree else "; losses differ"))
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(not agree)


if __name__ == "__main__":
    main()
