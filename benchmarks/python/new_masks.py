# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a new mask at every step costs the host of a rank: its key, its row tables, its first calls.

PYTHONPATH=build/dev/python .venv/bin/python -m torch.distributed.run --nproc-per-node=2 \
    benchmarks/python/new_masks.py [--tokens 32768] [--documents 16] [--masks 20] [--device cuda] [--csv FILE]
Every mask is a pack of causal documents of log-normal lengths. Each function is called twice with each key: "first"
makes what the key lacks, "again" finds it. Medians over masks, of rank 0. Rows are 8 bytes, as labels are, so that
little else than tables counts. In host memory times are of the calling thread's wall clock with all results there; with
`--device cuda` calls enqueue only, and streams are empty before each. `--passes`: calc_attn too, which computes.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
import torch.distributed as dist

import tangram

HEADS = {"cpu": (4, 1, 32), "cuda": (32, 8, 128)}  # of queries, of keys, their dim, where passes are measured
PLANNED = (32, 8, 128)
SKIPPED = 2  # the first masks pay for what the process makes once
HEADER = (
    "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,backend,"
    "transport,strategy,figure,unit,value"
)


def packed(rng, total, documents):
    """Borders of documents of log-normal lengths that fill `total` rows."""
    cuts = np.cumsum(rng.lognormal(sigma=1, size=documents))
    borders = np.round(cuts / cuts[-1] * total).astype(np.int64)
    return np.unique(np.concatenate([[0], borders]))


def append_csv(path, lines):
    """Writes lines of HEADER's columns, behind what is there."""
    new = not os.path.exists(path)
    with open(path, "a") as file:
        file.writelines(line + "\n" for line in [HEADER] * new + lines)


def machine():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")


class Clock:
    """Collects microseconds by name."""

    def __init__(self, device):
        self.device = device
        self.times = defaultdict(list)

    def time(self, name, call):
        if self.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        result = call()
        self.times[name].append((time.perf_counter() - start) * 1e6)
        return result


def step(clock, borders, x, heads, passes):
    """All that a training step asks of one new mask."""
    mask = clock.time("Mask.varlen", lambda: tangram.Mask.varlen(borders, causal=True))
    key = clock.time("mask_key", lambda: tangram.mask_key(mask, *heads))
    device = x.device
    for when in ("first", "again"):
        clock.time(f"get_position_ids {when}", lambda: tangram.get_position_ids(key, device=device))
        clock.time(f"get_loss_mask {when}", lambda: tangram.get_loss_mask(key, device=device))
        shard = clock.time(f"dispatch {when}", lambda: tangram.dispatch(x, key))
        clock.time(f"undispatch {when}", lambda shard=shard: tangram.undispatch(shard, key))
        clock.time(f"roll {when}", lambda shard=shard: tangram.roll(shard, key, -1))
        clock.time(f"dispatch_labels {when}", lambda: tangram.dispatch_labels(x, key, 1, borders))
        if passes:
            dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
            q = torch.ones(shard.shape[0], heads[0], heads[2], device=device, dtype=dtype)
            k = q[:, : heads[1]].contiguous()
            clock.time(f"calc_attn {when}", lambda q=q, k=k: tangram.calc_attn(q, k, k, key))
    return key


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--masks", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    heads = HEADS[arguments.device] if arguments.passes else PLANNED
    rng = np.random.default_rng(0)
    x = torch.arange(arguments.tokens, device=arguments.device)
    clock, chunks = Clock(arguments.device), []
    for mask in range(arguments.masks + SKIPPED):
        if mask == SKIPPED:
            clock.times.clear()
        key = step(clock, packed(rng, arguments.tokens, arguments.documents), x, heads, arguments.passes)
        chunks.append(key.plan.q_dispatch.chunk_size)
    if dist.get_rank() == 0:
        medians = {name: statistics.median(times) for name, times in clock.times.items()}
        tables = [n for n in medians if n.endswith("first") and not n.startswith("calc_attn")]
        medians["rows, all first"] = sum(medians[name] for name in tables)
        name = f"packed:{arguments.documents}"
        rows = f"{arguments.tokens},{arguments.tokens},{dist.get_world_size()},{int(statistics.median(chunks))}"
        transport = "copy_engine" if arguments.device == "cuda" else "socket"
        shape = f"{heads[0]},{heads[1]},{heads[2]},{heads[2]},int64,,{transport}"
        lines = [
            f'{tangram.__version__},"{machine()}",{name},{rows},{shape},tangram,"{figure}",us,{value:.1f}'
            for figure, value in medians.items()
        ]
        for figure, value in medians.items():
            print(f"{figure:28}{value:12.1f} us")
        if arguments.csv:
            append_csv(arguments.csv, lines)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
