# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures forward attention of few query rows on long keys, whose tiles the Hopper backend cuts along their keys.

Every row sees all keys. Each library (one or more builds of tangram_sm90_bench) and PyTorch's
scaled_dot_product_attention, with the backend that it picks itself, take turns in one process; the largest difference
between their out and PyTorch's is printed beside the medians. Prints CSV, microseconds of a call; needs a Hopper GPU
and torch.

    python benchmarks/attn/sm90_few_rows.py build/dev/lib/libtangram_sm90_bench.so
"""

import argparse
import ctypes
from pathlib import Path

import torch
from sm90_vs_cudnn import Tangram
from turns import take_turns

SHAPES = [(1, 8192), (1, 131072), (16, 32768), (64, 8192), (128, 8192), (128, 65536), (512, 16384)]


def measure(libraries, rows, keys, heads_q, heads_kv, dim, rounds):
    torch.manual_seed(1)
    q = torch.randn(rows, heads_q, dim, device="cuda").bfloat16()
    k, v = (torch.randn(keys, heads_kv, dim, device="cuda").bfloat16() for _ in range(2))
    lse = torch.empty(rows, heads_q, device="cuda")
    case = {"seqlen": rows, "seqlen_k": keys, "q_ranges": [[0, rows]], "k_ranges": [[0, keys]], "attn_types": [0]}
    ours = [Tangram(library, case, heads_q, heads_kv, dim) for library in libraries]
    outs = [torch.full_like(q, float("nan")) for _ in ours]
    leaves = [t.transpose(0, 1)[None] for t in (q, k, v)]
    calls = [lambda one=one, out=out: one.forward(q, k, v, out, lse) for one, out in zip(ours, outs, strict=True)]
    calls.append(lambda: torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True))
    times = take_turns(dict(enumerate(calls)), rounds)
    wanted = calls[-1]()[0].transpose(0, 1).float()
    errors = [(out.float() - wanted).abs().max().item() for out in outs]
    for one in ours:
        one.close()
    return [1e3 * times[i] for i in range(len(calls))], errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--heads-q", type=int, default=64)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    libraries = [ctypes.CDLL(str(Path(path).resolve())) for path in args.libraries]
    for library in libraries:
        library.tangram_bench_create.restype = ctypes.c_void_p
    names = [Path(path).stem for path in args.libraries]
    print(
        "rows,keys,heads_q,heads_kv,head_dim,", ",".join(names), ",sdpa,", ",".join(f"error_{n}" for n in names), sep=""
    )
    for rows, keys in SHAPES:
        times, errors = measure(libraries, rows, keys, args.heads_q, args.heads_kv, args.head_dim, args.rounds)
        head = f"{rows},{keys},{args.heads_q},{args.heads_kv},{args.head_dim}"
        print(head, *(f"{t:.1f}" for t in times), *(f"{e:.1e}" for e in errors), sep=",", flush=True)


if __name__ == "__main__":
    main()
