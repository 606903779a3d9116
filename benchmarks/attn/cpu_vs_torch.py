# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

"""Compares the CPU backend with PyTorch's scaled_dot_product_attention: same sizes, same threads, alternating.

Runs `bench_attn_cpu` for one size, then torch for the same, so that both meet the same state of the machine; prints
both times and PyTorch's over Tangram's (above 1: Tangram is faster), once for wall-clock time and once for processor
time over all threads, which other load on the machine disturbs less. Needs torch; the C++ program does not.

    python benchmarks/attn/cpu_vs_torch.py build/cpu/bin/bench_attn_cpu --threads 2
"""

import argparse
import statistics
import subprocess
import time

import torch


def median_times(function, runs):
    """Wall-clock and processor milliseconds."""
    function()
    wall, cpu = [], []
    for _ in range(runs):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        function()
        wall.append((time.perf_counter() - begin) * 1e3)
        cpu.append((time.process_time() - cpu_begin) * 1e3)
    return statistics.median(wall), statistics.median(cpu)


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
        forward_times = median_times(forward, runs)
    out = forward()
    backward_times = median_times(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), runs)
    return {"forward": forward_times, "backward": backward_times}


def time_tangram(program, threads, mask, seqlen, dim, dtype, runs):
    command = [program, str(threads), str(runs), mask, str(seqlen), str(dim), dtype]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    return {row["pass"]: (float(row["ms"]), float(row["cpu_ms"])) for row in rows}


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
    print("mask,dtype,seqlen,heads,head_dim,threads,pass,tangram_ms,torch_ms,wall_ratio,cpu_ratio")
    for dim in map(int, args.dims.split(",")):
        for seqlen in map(int, args.seqlens.split(",")):
            for mask in args.masks.split(","):
                ours = time_tangram(args.program, args.threads, mask, seqlen, dim, args.dtype, args.runs)
                theirs = time_torch(mask, seqlen, heads, dim, args.dtype, args.runs)
                for name, passes in (("forward", ["forward"]), ("backward", ["backward"]), ("both", list(ours))):
                    wall, cpu = (sum(ours[p][i] for p in passes) for i in (0, 1))
                    torch_wall, torch_cpu = (sum(theirs[p][i] for p in passes) for i in (0, 1))
                    size = f"{mask},{args.dtype},{seqlen},{heads},{dim},{args.threads}"
                    ratios = f"{torch_wall / wall:.2f},{torch_cpu / cpu:.2f}"
                    print(f"{size},{name},{wall:.2f},{torch_wall:.2f},{ratios}", flush=True)


if __name__ == "__main__":
    main()
