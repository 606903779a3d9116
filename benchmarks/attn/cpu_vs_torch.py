# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

"""Compares the CPU backend with PyTorch's scaled_dot_product_attention: same sizes, same threads, alternating.

Runs `bench_attn_cpu` for one size, then torch for the same, so that both meet the same state of the machine; prints
both CSV lines and the ratio of times (above 1: Tangram is faster). Needs torch; the C++ program does not.

    python benchmarks/attn/cpu_vs_torch.py build/cpu/bin/bench_attn_cpu --threads 2
"""

import argparse
import statistics
import subprocess
import time

import torch


def median_ms(function, runs):
    function()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def time_torch(mask, seqlen, heads, dim, dtype, runs):
    generator = torch.Generator().manual_seed(1)
    q, k, v, dout = (
        torch.randn(1, heads, seqlen, dim, generator=generator).to(getattr(torch, dtype)) for _ in range(4)
    )
    for tensor in (q, k, v):
        tensor.requires_grad_()

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

    with torch.no_grad():
        forward_ms = median_ms(forward, runs)
    out = forward()
    backward_ms = median_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), runs)
    return {"forward": forward_ms, "backward": backward_ms}


def time_tangram(program, threads, mask, seqlen, dim, dtype, runs):
    command = [program, str(threads), str(runs), mask, str(seqlen), str(dim), dtype]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    return {row["pass"]: float(row["ms"]) for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="bench_attn_cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--seqlens", default="2048,4096,8192")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    heads = 8  # what the C++ program uses
    print("mask,dtype,seqlen,heads,head_dim,threads,pass,tangram_ms,torch_ms,torch_over_tangram")
    for dim in map(int, args.dims.split(",")):
        for seqlen in map(int, args.seqlens.split(",")):
            for mask in args.masks.split(","):
                ours = time_tangram(args.program, args.threads, mask, seqlen, dim, args.dtype, args.runs)
                theirs = time_torch(mask, seqlen, heads, dim, args.dtype, args.runs)
                both = {name: sum(times.values()) for name, times in (("ours", ours), ("theirs", theirs))}
                rows = [(name, ours[name], theirs[name]) for name in ("forward", "backward")]
                for name, a, b in [*rows, ("both", both["ours"], both["theirs"])]:
                    size = f"{mask},{args.dtype},{seqlen},{heads},{dim},{args.threads}"
                    print(f"{size},{name},{a:.2f},{b:.2f},{b / a:.3f}", flush=True)


if __name__ == "__main__":
    main()
