# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank that computes attention under a new mask at each step, forward and backward.

PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --nproc-per-node=2 \
    benchmarks/python/memory_of_masks.py [--masks 1500] [--csv FILE]
Prints, of rank 0, resident memory, how much freed heap the allocator keeps (not all of it resident), and what is
allocated. With `--device cuda`: what is used of its GPU, by the driver's word, how much of that torch's allocator
keeps, and what it has given out. `--uses`: what Tangram keeps.
"""

import argparse
import ctypes
import os
import time

import numpy as np
import torch
import torch.distributed as dist

import tangram

HEADS = {"cpu": (8, 2, 64), "cuda": (64, 8, 128)}  # of queries, of keys, their dim
MARKS = (1, 10, 50, 100, 150, 300, 500, 750, 1000, 1250, 1500)


class MallInfo2(ctypes.Structure):
    """What mallinfo2 of glibc 2.33 and later returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def heap_mib():
    """(freed blocks that the allocator of C keeps in its heaps, what it has given out), all of its heaps together."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return float("nan"), float("nan")
    libc.mallinfo2.restype = MallInfo2
    heap = libc.mallinfo2()
    return heap.fordblks / 2**20, (heap.uordblks + heap.hblkhd) / 2**20


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def packed(rng, total, longest):
    """Borders of documents of random lengths that fill `total` rows."""
    borders = [0]
    while borders[-1] < total:
        borders.append(min(borders[-1] + int(rng.integers(longest // 8, longest + 1)), total))
    return torch.tensor(borders, dtype=torch.int32)


def used_mib(device):
    """(of the process or its GPU, of that what an allocator keeps, what it has given out)."""
    if device == "cpu":
        return resident_mib(), *heap_mib()
    free, total = torch.cuda.mem_get_info()
    return tuple(n / 2**20 for n in (total - free, torch.cuda.memory_reserved(), torch.cuda.memory_allocated()))


def step(cu_seqlens, x):
    """What a layer of a training step does with its mask: rows to the ranks, attention, rows back."""
    heads, heads_kv, dim = HEADS[x.device.type]
    key = tangram.varlen_key(cu_seqlens, cu_seqlens, heads, heads_kv, dim, None, None, causal=True)
    shard = tangram.dispatch(x, key)
    q = shard.view(-1, heads, dim)
    k, v = (q[:, :heads_kv] + i for i in range(2))
    out, _ = tangram.calc_attn(q, k, v, key)
    out.sum().backward()
    x.grad = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--longest", type=int, default=1024, help="rows of the longest document")
    parser.add_argument("--marks", type=int, nargs="+", default=MARKS, help="after so many masks a line is printed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--uses", action="store_true", help="with each line, the rows of tangram.memory_use()")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rng = np.random.default_rng(0)
    heads, _, dim = HEADS[arguments.device]
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    x = torch.randn(arguments.tokens, heads * dim, device=arguments.device, dtype=dtype, requires_grad=True)
    lines, start = [], time.perf_counter()
    for mask in range(1, arguments.masks + 1):
        step(packed(rng, arguments.tokens, arguments.longest), x)
        if mask in arguments.marks or mask == arguments.masks:
            numbers = ",".join(f"{n:.1f}" for n in used_mib(arguments.device))
            line = f"{arguments.device},{dist.get_world_size()},{arguments.tokens},{mask},{numbers}"
            lines.append(line)
            if dist.get_rank() == 0:
                print(line, f"({time.perf_counter() - start:.0f} s)", flush=True)
                for row in tangram.memory_use() if arguments.uses else ():
                    print(f"    {row}", flush=True)
    if arguments.csv and dist.get_rank() == 0:
        with open(arguments.csv, "w") as file:
            file.write("device,ranks,tokens,masks,used_mib,of_that_kept_by_allocator_mib,allocated_mib\n")
            file.writelines(line + "\n" for line in lines)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
