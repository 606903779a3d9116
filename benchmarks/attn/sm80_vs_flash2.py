# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures backend sm80 beside the FlashAttention-2 that PyTorch contains, in turns of random order.

Prints CSV: TFLOP/s by visible area (backward counts 2.5 times the forward pass) of both and their ratio, and how far
results differ. Needs a GPU of compute capability 8.0 or later with 163 KB of shared memory a block, and torch.

    cmake --preset cuda -DTANGRAM_BUILD_BENCHMARKS=ON && cmake --build --preset cuda --target tangram_sm80_bench
    python benchmarks/attn/sm80_vs_flash2.py build/cuda/lib/libtangram_sm80_bench.so [--rounds 7] [--only NAME]
"""

import argparse
import ctypes
import random
import sys

import torch
from torch_peers import flash2_call, varlen_attn
from turns import take_turns

OPEN = 1 << 60  # a diagonal that does not bind
I64, INT, PTR = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p


def random_documents(rows, mean, seed=3):
    """Borders of documents of random lengths, multiples of 8."""
    generator, borders = random.Random(seed), [0]
    while borders[-1] < rows:
        length = max(64, int(generator.expovariate(1 / mean)) // 8 * 8)
        borders.append(min(rows, borders[-1] + length))
    return borders


def cases():
    """(name, kind, rows, documents, window, query heads, key heads, head dim)."""
    list_of = []
    for head_dim, heads, kv_heads in ((128, 64, 8), (64, 64, 8), (256, 16, 4)):
        for rows in (16384, 4096):
            for kind in ("causal", "full"):
                list_of.append((f"{kind} d{head_dim} {rows}", kind, rows, None, None, heads, kv_heads, head_dim))
    for head_dim in (128, 64):
        packs = random_documents(16384, 2000)
        list_of.append((f"packed causal d{head_dim}", "causal", 16384, packs, None, 64, 8, head_dim))
        list_of.append((f"packed full d{head_dim}", "full", 16384, packs, None, 64, 8, head_dim))
        list_of.append((f"window 1024 d{head_dim}", "window", 16384, None, 1024, 64, 8, head_dim))
    return list_of


def slices_of(kind, rows, documents, window):
    """Six values a slice, and the visible area."""
    values, area = [], 0
    borders = documents or [0, rows]
    for a, b in zip(borders, borders[1:], strict=False):
        length = b - a
        if kind == "full":
            values += [a, b, a, b, -OPEN, OPEN]
            area += length * length
        elif kind == "causal":
            values += [a, b, a, b, -OPEN, 0]
            area += length * (length + 1) // 2
        else:
            values += [a, b, a, b, -window, 0]
            area += sum(min(i, window) + 1 for i in range(length))
    return values, area


def load(path):
    library = ctypes.CDLL(path)
    library.tangram_bench_create.argtypes = [ctypes.POINTER(I64), INT, I64, I64, INT, INT, INT]
    library.tangram_bench_create.restype = PTR
    library.tangram_bench_destroy.argtypes = [PTR]
    library.tangram_bench_forward.argtypes = [PTR] * 7
    library.tangram_bench_backward.argtypes = [PTR] * 10 + [INT, PTR]
    return library


def relative(one, other):
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


def measure(library, case, rounds):
    name, kind, rows, documents, window, heads, kv_heads, dim = case
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(rows, h, dim, requires_grad=True, **options) for h in (heads, kv_heads, kv_heads))
    dout = torch.randn(rows, heads, dim, **options)
    out, lse = torch.empty_like(dout), torch.empty(rows, heads, device="cuda")
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    values, area = slices_of(kind, rows, documents, window)
    slices = (I64 * len(values))(*values)
    prepared = library.tangram_bench_create(slices, len(values) // 6, rows, rows, heads, kv_heads, dim)
    assert prepared, name

    def pointers(*tensors):
        return [t.data_ptr() for t in tensors]

    def check(status):
        assert status == 0, name

    def forward():
        stream = torch.cuda.current_stream().cuda_stream
        check(library.tangram_bench_forward(prepared, *pointers(q, k, v, out, lse), stream))

    def backward(deterministic=0):
        stream = torch.cuda.current_stream().cuda_stream
        given = pointers(q, k, v, out, lse, dout, dq, dk, dv)
        check(library.tangram_bench_backward(prepared, *given, deterministic, stream))

    calls = {"ours": forward}, {"ours": backward, "ours, deterministic": lambda: backward(1)}
    forward()
    backward()
    torch.cuda.synchronize()
    differences = []
    if varlen_attn is not None:
        call = flash2_call("causal" if kind == "window" else kind, rows, documents, window)
        try:
            peer_out = call(q, k, v)
            gradients = torch.autograd.grad(peer_out, (q, k, v), dout, retain_graph=True)
            differences = [relative(out, peer_out), *map(relative, (dq, dk, dv), gradients)]
            calls[0]["fa2"] = lambda: call(q.detach(), k.detach(), v.detach())
            calls[1]["fa2"] = lambda: torch.autograd.grad(peer_out, (q, k, v), dout, retain_graph=True)
        except Exception as error:
            print(f"{name}: {error!r}"[:300], file=sys.stderr)
    for which, (functions, products) in enumerate(zip(calls, (4, 10), strict=True)):
        times = take_turns(functions, rounds)
        rates = {n: products * area * heads * dim / ms / 1e9 for n, ms in times.items()}
        ratio = rates["ours"] / rates["fa2"] if "fa2" in rates else float("nan")
        text = " ".join(f"{d:.1e}" for d in differences)
        ordered = f"{rates['ours, deterministic']:.0f}" if which else ""
        print(
            f"{name},{'backward' if which else 'forward'},{rates['ours']:.0f},{ordered},"
            f"{rates.get('fa2', float('nan')):.0f},{ratio:.3f},{text}",
            flush=True,
        )
    library.tangram_bench_destroy(prepared)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    library = load(args.library)
    print("case,pass,sm80 TFLOP/s,deterministic,fa2 TFLOP/s,ratio,relative differences of out dq dk dv")
    for case in cases():
        if args.only in case[0]:
            measure(library, case, args.rounds)


if __name__ == "__main__":
    main()
