# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What new masks of blocks take the hosts of ranks before their first pass, without a GPU.

PYTHONPATH=build/dev/python python -m torch.distributed.run --nproc-per-node=2 benchmarks/python/new_block_keys.py \
    [--tokens 16384] [--block 128] [--share 0.12] [--masks 50]
Of rank 0, medians and fastest tenths in microseconds: `Mask.from_block_indices`; `mask_key`, by the clock and by the
processor time of the process, threads included; `make_plan` alone, again, with its memory warm.
"""

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np
import torch.distributed as dist

import tangram
from tangram import _core

WARM = 10


def indices(rng, count, share):
    scores = rng.random((count, count))
    np.fill_diagonal(scores, -1)
    width = max(1, int(share * count))
    return np.argpartition(scores, width - 1, axis=1)[:, :width].astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--masks", type=int, default=50)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rng, tokens, block = np.random.default_rng(0), arguments.tokens, arguments.block
    figures = defaultdict(list)
    for number in range(arguments.masks + WARM):
        if number == WARM:
            figures.clear()
        chosen = indices(rng, tokens // block, arguments.share)
        dist.barrier()
        begin = time.perf_counter()
        mask = tangram.Mask.from_block_indices(tokens, tokens, block, block, chosen)
        made, used = time.perf_counter(), time.process_time()
        key = tangram.mask_key(mask, 64, 8, 128)
        used, planned = time.process_time() - used, time.perf_counter()
        _core.make_plan(mask, key.plan.config)
        figures["Mask"].append(made - begin)
        figures["mask_key"].append(planned - made)
        figures["mask_key, processor"].append(used)
        figures["make_plan"].append(time.perf_counter() - planned)
    if dist.get_rank() == 0:
        for name, values in figures.items():
            print(f"{name:20}{statistics.median(values) * 1e6:8.0f}{sorted(values)[len(values) // 10] * 1e6:8.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
