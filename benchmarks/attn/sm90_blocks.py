# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures backward passes of masks that keep small blocks, by one or more builds of the Hopper backend.

Blocks of rows and keys are visible at random, a share of them, and those on the diagonal; with --causal the latter are
causal and none is above. Builds of tangram_sm90_bench take turns in one process; figures are medians, TFLOP/s by
visible area, and how far dq, dk and dv are from those of the first build. Prints CSV; needs a Hopper GPU and torch.

    python benchmarks/attn/sm90_blocks.py before/libtangram_sm90_bench.so build/dev/lib/libtangram_sm90_bench.so
"""

import argparse
import ctypes
import gc
from pathlib import Path

import torch
from sm90_vs_cudnn import Tangram
from turns import take_turns

FULL, CAUSAL = 0, 1


def block_case(rows, block, share, causal):
    """A mask as Tangram() takes it, and its visible cells."""
    number = rows // block
    visible = torch.rand(number, number, generator=torch.Generator().manual_seed(0)) < share
    visible |= torch.eye(number, dtype=torch.bool)
    if causal:
        visible &= torch.ones(number, number, dtype=torch.bool).tril(-1)
    case = {"seqlen": rows, "q_ranges": [], "k_ranges": [], "attn_types": []}

    def add(row, begin, end, kind):
        case["q_ranges"].append([row * block, (row + 1) * block])
        case["k_ranges"].append([begin * block, end * block])
        case["attn_types"].append(kind)

    for row in range(number):
        steps = torch.diff(visible[row].int(), prepend=torch.zeros(1), append=torch.zeros(1))
        begins, ends = ((steps == step).nonzero().flatten().tolist() for step in (1, -1))
        for begin, end in zip(begins, ends, strict=True):
            add(row, begin, end, FULL)
        if causal:
            add(row, row, row + 1, CAUSAL)
    diagonal = number * block * (block + 1) // 2 if causal else 0
    return case, int(visible.sum()) * block * block + diagonal


def measure(libraries, case, area, heads_q, heads_kv, dim, rounds):
    torch.manual_seed(1)
    rows = case["seqlen"]
    q, dout = (torch.randn(rows, heads_q, dim, device="cuda").bfloat16() for _ in range(2))
    k, v = (torch.randn(rows, heads_kv, dim, device="cuda").bfloat16() for _ in range(2))
    out, lse = torch.empty_like(q), torch.empty(rows, heads_q, device="cuda")
    ours = [Tangram(library, case, heads_q, heads_kv, dim) for library in libraries]
    ours[0].forward(q, k, v, out, lse)
    gradients = [[torch.full_like(t, float("nan")) for t in (q, k, v)] for _ in ours]
    calls = {
        i: lambda one=one, g=g: one.backward((q, k, v, out, lse, dout, *g), False)
        for i, (one, g) in enumerate(zip(ours, gradients, strict=True))
    }
    times = take_turns(calls, rounds)
    first = gradients[0]
    errors = [
        max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(g, first, strict=True))
        for g in gradients[1:]
    ]
    for one in ours:
        one.close()
    return [10 * area * heads_q * dim / times[i] / 1e9 for i in range(len(ours))], errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.12, 0.3])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--heads-q", type=int, default=64)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    libraries = [ctypes.CDLL(str(Path(path).resolve())) for path in args.libraries]
    for library in libraries:
        library.tangram_bench_create.restype = ctypes.c_void_p
    numbers = range(len(libraries))
    print("machine,head_dim,block,rows,visible,causal", *(f"tflops_{i}" for i in numbers), sep=",", end=",")
    print(*(f"difference_{i}" for i in numbers[1:]), sep=",")
    machine = torch.cuda.get_device_name().replace(" ", "_")
    for block in args.blocks:
        for rows in args.rows:
            for share in args.shares:
                case, area = block_case(rows, block, share, args.causal)
                rates, errors = measure(libraries, case, area, args.heads_q, args.heads_kv, args.head_dim, args.rounds)
                head = f"{machine},{args.head_dim},{block},{rows},{share:g},{args.causal}"
                print(head, *(f"{r:.0f}" for r in rates), *(f"{e:.1e}" for e in errors), sep=",", flush=True)
                gc.collect()


if __name__ == "__main__":
    main()
