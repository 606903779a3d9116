#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Joules, watts and clocks of attention on one GPU: Tangram beside FlashAttention-4 and cuDNN, and beside products.

python benchmarks/attn/energy.py [--systems tangram fa4 cudnn] [--heads 32 8] [--rounds 2] [--turn 1.0] [--csv FILE]
                                 [--limit 420] [--beside]
A GPU that computes attention runs at its power limit, so that a call costs energy and not only cycles. Each pass of
each system is a CUDA graph that is replayed for --turn seconds, in random turns; energy is NVML's counter around a
turn, after a tenth of a second of the same calls. Masks: causal, packs of documents (log-normal, 2,048 rows in the
mean), and windows of 1,024 keys, of 16K and 64K rows, head dims 64 and 128; a matrix product of 8192 in bfloat16.

--beside instead asks what else a step feels: products between calls of each system, at the same share of the time.
"idle" stands for a system that takes the time and hardly any power, "alone" for products without pauses.

CSV on standard output, in the columns of `tangram bench`: strategy is the system. Figures: "forward" and "backward",
"product": joules a call, and with " time" ms, " power" watts, " clock" MHz of the SMs, " efficiency" TFLOP a joule by
visible area. Needs a Hopper GPU, torch and the package tangram; the peers: benchmarks/attn/README.md.
"""

import argparse
import ctypes
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from side_by_side import Contest, read_case
from turns import elapsed_ms

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (
    "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,backend,"
    "transport,strategy,figure,unit,value"
)
MEAN_DOCUMENT = 2048
PRODUCT = 8192
SETTLE_S = 0.1  # before a turn is counted: the counter and the clock follow a change of work within that
SM_CLOCK = 1  # NVML_CLOCK_SM


class Meter:
    """Energy and clock of the current GPU, by NVML."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.call("nvmlInit_v2")
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise SystemExit(f"energy.py: {name} must succeed (got status {status}); the driver may keep no counter")

    def joules(self):
        """Since the driver was loaded."""
        value = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.device, ctypes.byref(value))
        return value.value / 1e3

    def clock(self):
        value = ctypes.c_uint()
        self.call("nvmlDeviceGetClockInfo", self.device, SM_CLOCK, ctypes.byref(value))
        return value.value


def note(text):
    print(text, file=sys.stderr, flush=True)


def documents(rows, seed):
    """Borders of a pack, log-normal lengths that fill it."""
    generator = torch.Generator().manual_seed(seed)
    borders = [0]
    while borders[-1] < rows:
        length = int(torch.empty(1).log_normal_(mean=0.0, std=1.0, generator=generator).item() * MEAN_DOCUMENT / 1.65)
        borders.append(min(rows, borders[-1] + max(16, length)))
    return borders


def specs(heads):
    for head_dim in (128, 64):
        shape = {"d": head_dim, "hq": heads[0], "hk": heads[1]}
        for rows in (16384, 65536):
            yield {"kind": "causal", "S": rows, **shape}
            yield {"kind": "causal", "S": rows, "cu": documents(rows, 7), **shape}
            yield {"kind": "window", "S": rows, "w": 1024, **shape}


def turn(meter, call, seconds):
    """(joules, ms, MHz) of a call, from calls over so many seconds."""
    ms = max(1e-3, elapsed_ms(call, 1))
    elapsed_ms(call, max(1, int(1e3 * SETTLE_S / ms)))
    count = max(1, int(1e3 * seconds / ms))
    clocks = []
    before, begin = meter.joules(), time.perf_counter()
    for done in range(count):
        call()
        if done in (count // 4, count // 2, 3 * count // 4):
            clocks.append(meter.clock())
    torch.cuda.synchronize()
    elapsed, energy = time.perf_counter() - begin, meter.joules() - before
    return energy / count, 1e3 * elapsed / count, statistics.median(clocks)


def take_turns(meter, calls, rounds, seconds):
    """Medians of `turn` for each of the named calls, in random order."""
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            found[name].append(turn(meter, calls[name], seconds))
    return {name: [statistics.median(t[i] for t in turns) for i in range(3)] for name, turns in found.items()}


def product():
    """A matrix product, its operands held."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


class Rows:
    """Prints CSV, and keeps it in a file."""

    def __init__(self, file):
        self.version = (ROOT / "VERSION").read_text().strip()
        self.machine = torch.cuda.get_device_name().replace(" ", "_")
        self.file = open(file, "w") if file else None
        self.write(COLUMNS)

    def write(self, line):
        for stream in (sys.stdout, self.file):
            if stream:
                print(line, file=stream, flush=True)

    def add(self, shape, system, figures):
        for figure, (unit, value) in figures.items():
            self.write(f"{self.version},{self.machine},{shape},bf16,,,{system},{figure},{unit},{value:.5g}")


def figures_of(name, measured, flops):
    joules, ms, clock = measured
    return {
        name: ("J", joules),
        f"{name} time": ("ms", ms),
        f"{name} power": ("W", 1e3 * joules / ms),
        f"{name} clock": ("MHz", clock),
        f"{name} efficiency": ("TFLOP/J", flops / joules / 1e12),
    }


def shape_of(case):
    return f"{case.name},{case.rows},{case.rows},1,,{case.heads_q},{case.heads_kv},{case.head_dim},{case.head_dim_v}"


def measure(args, meter, rows):
    begin = time.monotonic()
    measured = take_turns(meter, {"product": product()}, args.rounds, args.turn)["product"]
    rows.add(f"none,{PRODUCT},{PRODUCT},1,,,,,", "torch", figures_of("product", measured, 2 * PRODUCT**3))
    for spec in specs(args.heads):
        if time.monotonic() - begin > args.limit:
            raise SystemExit(f"out of time before {spec['kind']} {spec['S']} {spec['d']}")
        case = read_case(spec)
        for _ in range(2):  # the first backward pass that a process captures may fail
            contest = Contest(case)
            contest.gather(args.systems)
            if all(system in contest.backward for system in args.systems[:2]):
                break
        dims = case.head_dim, case.head_dim_v
        work = 2 * case.mask.area * case.heads_q
        passes = (
            ("forward", contest.forward, work * (dims[0] + dims[1])),
            ("backward", contest.backward, work * (3 * dims[0] + 2 * dims[1])),
        )
        for name, calls, flops in passes:
            for system, measured in take_turns(meter, calls, args.rounds, args.turn).items():
                rows.add(shape_of(case), system, figures_of(name, measured, flops))
        for difference in contest.differences():
            contest.note(difference)


def idle_call(milliseconds):
    """Takes a GPU's time with one thread that waits."""
    cycles = int(1e6 * milliseconds)
    factor = milliseconds / elapsed_ms(lambda: torch.cuda._sleep(cycles), 1)
    return lambda: torch.cuda._sleep(int(cycles * factor))


def measure_beside(args, meter, rows):
    """Products between passes: their time, and the power of all of it."""
    multiply = product()
    for head_dim in (128, 64):
        heads = {"hq": args.heads[0], "hk": args.heads[1]}
        case = read_case({"kind": "causal", "S": 65536, "cu": documents(65536, 7), "d": head_dim, **heads})
        for _ in range(2):
            contest = Contest(case)
            contest.gather(args.systems)
            if all(system in contest.backward for system in args.systems[:2]):
                break
        calls = {s: (contest.forward[s], contest.backward[s]) for s in contest.backward}
        pause = elapsed_ms(lambda pair=calls["tangram"]: [c() for c in pair], 4)
        calls |= {"idle": (idle_call(pause),), "alone": ()}
        count = max(1, round(pause / elapsed_ms(multiply, 4)))  # half of the time each
        found = {name: [] for name in calls}
        for _ in range(args.rounds + 1):
            for name in random.sample(list(calls), len(calls)):
                found[name].append(step_turn(meter, calls[name], multiply, count, args.turn))
        for name, turns in found.items():
            ms, watts, clock = (statistics.median(t[i] for t in turns) for i in range(3))
            rows.add(
                shape_of(case),
                name,
                {
                    "product beside time": ("ms", ms),
                    "product beside power": ("W", watts),
                    "product beside clock": ("MHz", clock),
                },
            )


def step_turn(meter, calls, multiply, count, seconds):
    """(ms a product by events, watts, MHz) of steps of `calls` and `count` products."""
    events = []

    def step(record):
        for call in calls:
            call()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        for _ in range(count):
            multiply()
        marks[1].record()
        if record:
            events.append(marks)

    ms = elapsed_ms(lambda: step(False), 2)
    elapsed_ms(lambda: step(False), max(1, int(1e3 * SETTLE_S / ms)))
    steps = max(4, int(1e3 * seconds / ms))
    before, begin = meter.joules(), time.perf_counter()
    for done in range(steps):
        step(True)
        if done == steps // 2:
            clock = meter.clock()
    torch.cuda.synchronize()
    watts = (meter.joules() - before) / (time.perf_counter() - begin)
    return statistics.median(a.elapsed_time(b) for a, b in events) / count, watts, clock


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=("tangram", "fa4", "cudnn", "fa2"), default=["tangram", "fa4"])
    parser.add_argument("--heads", nargs=2, type=int, default=(32, 8))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of calls that a figure is of")
    parser.add_argument("--limit", type=float, default=420, help="seconds after which no case begins")
    parser.add_argument("--csv")
    parser.add_argument("--beside", action="store_true")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    meter, rows = Meter(), Rows(args.csv)
    (measure_beside if args.beside else measure)(args, meter, rows)


if __name__ == "__main__":
    main()
