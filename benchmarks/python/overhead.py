# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a call costs on the CPU side: medians with a mask that is known, on tensors of one row, beside an empty op.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/overhead.py
"""

import statistics
import time

import numpy as np
import torch

import tangram
from tangram import Mask

CALLS = 3000


def median_us(call, calls=CALLS):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


@torch.library.custom_op("benchmark::empty", mutates_args=())
def empty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q)


def main():
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, 1, 8, requires_grad=True) for _ in range(3))
    ranges = [torch.tensor(r, dtype=torch.int32) for r in ([[0, 1]], [[0, 1]], [1])]

    def forward():
        return tangram.flex_flash_attn_func(q, k, v, *ranges)[0]

    out, dout = forward(), torch.ones(1, 1, 8)
    scaled = q * 2
    print(f"empty custom op            {median_us(lambda: empty(q, k, v)):8.1f} us")
    print(f"flex forward               {median_us(forward):8.1f} us")
    product = median_us(lambda: torch.autograd.grad(scaled, q, dout, retain_graph=True))
    print(f"backward of a product      {product:8.1f} us")
    backward = median_us(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    print(f"flex backward              {backward:8.1f} us")

    total = 1 << 20
    borders = np.sort(np.random.default_rng(0).choice(total - 1, 2000, replace=False) + 1)
    mask = Mask.varlen([0, *borders.tolist(), total])
    config = tangram.DistAttnConfig(cp_size=64)
    print(f"plan, 1 M tokens, cp 64    {median_us(lambda: tangram.PlanCache(1).get(mask, config), 5) / 1000:8.1f} ms")


if __name__ == "__main__":
    main()
