# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a call on a GPU costs on the CPU side, by two installations of Tangram in turns.

python benchmarks/python/overhead_in_turns.py FOLDER_A FOLDER_B [--rounds 20] [--csv FILE]
Each folder holds a package `tangram`, used by a process of its own. In each round both do every line, in random order;
printed are medians over rounds and the median of the rounds' ratios B / A with their middle half. The first line is a
call of torch, which shows how alike the two processes are.
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import time

BURSTS, BURST = 20, 50  # between bursts the GPU is waited for: its queue must not fill
LAYERS = 10  # autograd wakes its thread once for all of them


def lines(torch, tangram):
    """(name, function, calls that it makes) on tensors whose kernels are too short to be waited for."""
    q, k, v = (torch.randn(16, 1, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    mask = tangram.Mask.causal(16)
    ranges = [torch.tensor(r, dtype=torch.int32, device="cuda") for r in ([[0, 16]], [[0, 16]], [1])]
    plain = [t.detach() for t in (q, k, v)]
    out = tangram.flex_flash_attn_func(q, k, v, mask)[0]
    dout = torch.ones_like(out)
    chain, leaves = q, [q]
    for _ in range(LAYERS):
        pair = [t.detach().clone().requires_grad_() for t in (k, v)]
        chain = tangram.flex_flash_attn_func(chain, *pair, mask)[0]
        leaves += pair
    yield "torch.empty_like", lambda: torch.empty_like(q), 1
    yield "forward", lambda: tangram.flex_flash_attn_func(*plain, mask), 1
    yield "forward, ranges on the GPU", lambda: tangram.flex_flash_attn_func(*plain, *ranges), 1
    yield "forward, with gradients", lambda: tangram.flex_flash_attn_func(q, k, v, mask), 1
    yield "backward", lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), 1
    yield (
        f"backward, one of {LAYERS} layers",
        lambda: torch.autograd.grad(chain, leaves, dout, retain_graph=True),
        LAYERS,
    )


def worker():
    import torch

    import tangram

    def time_us(call, made):
        """Time of a call in the fastest burst, which other programs of the machine disturb least."""
        fastest, calls = float("inf"), max(BURST // made, 5)
        for _ in range(BURSTS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            fastest = min(fastest, time.perf_counter() - start)
        torch.cuda.synchronize()
        return fastest * 1e6 / (calls * made)

    table = {name: (call, made) for name, call, made in lines(torch, tangram)}
    print(json.dumps(list(table)), flush=True)
    for line in sys.stdin:
        print(json.dumps(time_us(*table[json.loads(line)])), flush=True)


def start_worker(folder):
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, os.path.abspath(__file__), "--worker"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process, name):
    process.stdin.write(json.dumps(name) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main():
    if sys.argv[1:] == ["--worker"]:
        worker()
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    workers = [start_worker(folder) for folder in arguments.folders]
    names = [json.loads(process.stdout.readline()) for process in workers][0]
    rounds = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in random.sample(names, len(names)):
            took = {i: ask(workers[i], name) for i in random.sample(range(2), 2)}
            rounds[name].append((took[0], took[1]))
    table = []
    for name, pairs in rounds.items():
        ratios = sorted(b / a for a, b in pairs)
        middle = statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        a, b = (statistics.median(x) for x in zip(*pairs, strict=True))
        table.append([name, f"{a:.2f}", f"{b:.2f}", *(f"{r:.3f}" for r in middle)])
        print(f"{name:30}{a:9.2f}{b:9.2f} us, B / A {middle[0]:.3f} ({middle[1]:.3f} to {middle[2]:.3f})")
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            csv.writer(file).writerows(
                [["what", "a_us", "b_us", "b_over_a", "lower_quartile", "upper_quartile"], *table]
            )
    for process in workers:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
