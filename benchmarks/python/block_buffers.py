# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Small blocks through a MaskBuffer that is made for them, beside masks of their own.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/block_buffers.py [--rows 16384] [--head-dim 128]
    [--blocks 16 32 64 128] [--csv FILE]
Random blocks, 64/8 heads, one choice for all heads or one for each K/V head: what the device takes to build the
lists (a graph of eight builds, divided) and the host to set them, and the rates of both passes by visible area, in
random turns behind other work; medians. Ratios are rates through the buffer by those of a mask of its own.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict

import torch
from device_masks import BUILDS, graph_of, tensors_of
from mask_buffer import device_us, host_us
from new_masks import append_csv

import tangram
from tangram import HeadConfig, Mask, MaskBuffer, flex_flash_attn_func

REPEATS = 7


def case(rows, head_dim, block, share, head_groups, causal, order):
    """Figures by name."""
    count = rows // block
    width = max(1, int(share * count))
    table = torch.rand(head_groups, count, count, device="cuda")
    if causal:
        table = table.tril() + torch.eye(count, device="cuda")
    indices = table.topk(width, dim=2).indices.to(torch.int32).contiguous()
    figures = {}
    start = time.perf_counter()
    masks = [Mask.from_block_indices(rows, rows, block, block, t.cpu().numpy(), causal=causal) for t in indices]
    figures["masks of indices, host us"] = (time.perf_counter() - start) * 1e6
    slices = head_groups * count * width
    heads = HeadConfig(64, 8, head_dim, head_dim, "bfloat16")
    buffer = MaskBuffer(
        rows, rows, heads, block_size=block, head_groups=head_groups, max_slices=slices, deterministic=False
    )

    def build():
        buffer.set_blocks(indices, block, causal=causal)

    build()
    torch.cuda.synchronize()
    buffer.check_errors()
    figures["set_blocks, host us"] = host_us(build)
    graph = graph_of(build, BUILDS)
    figures["set_blocks, device us"] = statistics.median(device_us(graph.replay) / BUILDS for _ in range(REPEATS))
    leaves, dout = tensors_of(rows, head_dim)
    kinds = {"own": masks[0] if head_groups == 1 else masks, "buffer": buffer}
    results = {name: flex_flash_attn_func(*leaves, mask)[0] for name, mask in kinds.items()}
    figures["forward, same bits"] = float(torch.equal(results["own"], results["buffer"]))
    times = defaultdict(list)
    for turn in range(REPEATS + 1):
        for name in order.sample(list(kinds), 2):
            mask, out = kinds[name], results[name]
            forward = device_us(lambda mask=mask: flex_flash_attn_func(*leaves, mask))
            backward = device_us(lambda out=out: torch.autograd.grad(out, leaves, dout, retain_graph=True))
            if turn > 0:  # the first pays for what is made once
                times["forward", name].append(forward)
                times["backward", name].append(backward)
    area = sum(mask.area for mask in masks) / head_groups
    for kind, flops in (("forward", 4), ("backward", 10)):
        us = {name: statistics.median(times[kind, name]) for name in kinds}
        for name in kinds:
            figures[f"{kind}, {name}, TFLOP/s"] = flops * head_dim * 64 * area / us[name] * 1e-6
        figures[f"{kind}, buffer / own"] = us["own"] / us["buffer"]
    if head_groups == 1:
        figures["set, host us"] = host_us(lambda: buffer.set(masks[0]))
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    order, rows, head_dim = random.Random(0), arguments.rows, arguments.head_dim
    torch.manual_seed(0)
    device = torch.cuda.get_device_name()
    for block, head_groups, causal in [
        (16, 1, False),
        (32, 1, False),
        (64, 1, False),
        (128, 1, False),
        (64, 1, True),
        (128, 1, True),
        (64, 8, False),
        (32, 8, False),
        (128, 8, False),
        (128, 8, True),
    ]:
        if block not in arguments.blocks:
            continue
        name = f"blocks:{block}:{arguments.share}:{head_groups}{':causal' if causal else ''}"
        lines = []
        for figure, value in case(rows, head_dim, block, arguments.share, head_groups, causal, order).items():
            print(f"{name:28}{figure:28}{value:12.3f}", flush=True)
            unit = figure.split()[-1] if figure.endswith((" us", " TFLOP/s")) else ""
            lines.append(
                f'{tangram.__version__},"{device}",{name},{rows},{rows},1,0,64,8,{head_dim},{head_dim},bfloat16,sm90,,,"{figure}",{unit},'
                f"{value:.4f}"
            )
        if arguments.csv:
            append_csv(arguments.csv, lines)


if __name__ == "__main__":
    main()
