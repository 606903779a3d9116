# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks that a GPU has computed: lists that its kernels build, beside those of the host.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/device_masks.py [--packs 12] [--csv FILE]
Of packs of documents, random blocks and the same as ranges, 64/8 heads of 128: what the device takes to build (a graph of eight builds,
divided), the host to set a mask, and both passes with lists of either kind, in random turns behind other work. Medians
over masks; ratios are medians of the ratios of a mask.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
from mask_buffer import device_us, host_us
from new_masks import append_csv, packed

import tangram
from tangram import HeadConfig, Mask, MaskBuffer, flex_flash_attn_func

HEADS = HeadConfig(64, 8, 128, 128, "bfloat16")
BUILDS, REPEATS = 8, 5


def graph_of(call, times=1):
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def tensors_of(rows):
    shapes = [(rows, 64, 128), (rows, 8, 128), (rows, 8, 128), (rows, 64, 128)]
    *leaves, dout = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
    return [t.requires_grad_() for t in leaves], dout


def compare(rows, masks, set_host, set_device, buffers, order):
    """masks: what each is set by. Figures by name, a value a mask."""
    leaves, dout = tensors_of(rows)
    of_host, of_device = buffers
    figures = defaultdict(list)
    for number, mask in enumerate(masks):
        if number == 2:  # the first pay for what the process makes once
            figures.clear()
        set_host(of_host, mask)
        set_device(of_device, mask)
        torch.cuda.synchronize()
        of_device.check_errors()
        figures["host lists, host us"].append(host_us(lambda mask=mask: set_host(of_host, mask)))
        figures["device lists, host us"].append(host_us(lambda mask=mask: set_device(of_device, mask)))
        graph = graph_of(lambda mask=mask: set_device(of_device, mask), BUILDS)
        builds = [device_us(graph.replay) / BUILDS for _ in range(REPEATS)]
        figures["device lists, device us"].append(statistics.median(builds))
        results = {name: flex_flash_attn_func(*leaves, buffer) for name, buffer in zip("hd", buffers, strict=True)}
        times = defaultdict(list)
        for _ in range(REPEATS):
            for name in order.sample("hd", 2):
                buffer, out = buffers["hd".index(name)], results[name][0]
                times["forward", name].append(device_us(lambda b=buffer: flex_flash_attn_func(*leaves, b)))
                times["backward", name].append(
                    device_us(lambda out=out: torch.autograd.grad(out, leaves, dout, retain_graph=True))
                )
        for kind in ("forward", "backward"):
            host, device = (statistics.median(times[kind, name]) for name in "hd")
            figures[f"{kind}, host lists us"].append(host)
            figures[f"{kind}, device / host"].append(device / host)
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--packs", type=int, default=12)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    rng, order = np.random.default_rng(0), random.Random(0)
    lines = []

    def show(name, rows, figures):
        shape = f"{rows},{rows},1,0,64,8,128,128,bfloat16,sm90,,"
        for figure, values in figures.items():
            value = statistics.median(values)
            print(f"{name:28}{figure:26}{value:12.3f} (most {max(values):.3f})", flush=True)
            unit = "" if "/" in figure else "us"
            device = torch.cuda.get_device_name()
            lines.append(f'{tangram.__version__},"{device}",{name},{shape},"{figure}",{unit},{value:.4f}')

    def buffers_of(rows, **capacity):
        return [MaskBuffer(rows, rows, HEADS, deterministic=False, **capacity) for _ in range(2)]

    for rows, documents in ((32768, 1), (32768, 13), (32768, 64), (131072, 48)):
        packs = [
            (torch.tensor(ends, dtype=torch.int32, device="cuda"), Mask.varlen(ends, causal=True))
            for ends in ([0, rows] if documents == 1 else packed(rng, rows, documents) for _ in range(arguments.packs))
        ]
        figures = compare(
            rows,
            packs,
            lambda buffer, pack: buffer.set(pack[1]),
            lambda buffer, pack: buffer.set_cu_seqlens(pack[0], causal=True),
            buffers_of(rows, documents=documents),
            order,
        )
        show(f"packed:{documents}", rows, figures)
    for rows, block, share, causal in (
        (32768, 128, 0.12, False),
        (32768, 128, 0.25, True),
        (32768, 64, 0.12, False),
        (65536, 64, 0.06, False),
    ):
        count = rows // block
        width = int(share * count)
        chosen = []
        for _ in range(4):
            table = torch.rand(count, count, device="cuda")
            if causal:
                table = table.tril() + torch.eye(count, device="cuda")  # that of the query itself first
            indices = table.topk(width, dim=1).indices.to(torch.int32).contiguous()
            start = time.perf_counter()
            mask = Mask.from_block_indices(rows, rows, block, block, indices.cpu().numpy(), causal=causal)
            chosen.append((indices, mask, (time.perf_counter() - start) * 1e6))
        figures = compare(
            rows,
            chosen,
            lambda buffer, pack: buffer.set(pack[1]),
            lambda buffer, pack, block=block, causal=causal: buffer.set_blocks(pack[0], block, causal=causal),
            buffers_of(rows, documents=64, slices=count * width),
            order,
        )
        figures["mask of indices, host us"] = [pack[2] for pack in chosen]
        show(f"blocks:{block}:{share}{':causal' if causal else ''}", rows, figures)
        if causal or block != 128:
            continue
        # The same blocks as ranges, one each.
        queries = torch.arange(count, device="cuda", dtype=torch.int32)[:, None].expand(count, width)
        as_ranges = [
            [torch.stack([x * block, (x + 1) * block], -1).reshape(-1, 2).contiguous() for x in (queries, pack[0])]
            + [pack[1]]
            for pack in chosen
        ]
        figures = compare(
            rows,
            as_ranges,
            lambda buffer, pack: buffer.set(pack[2]),
            lambda buffer, pack: buffer.set_ranges(pack[0], pack[1]),
            buffers_of(rows, documents=64, slices=count * width),
            order,
        )
        show(f"ranges:{block}:{share}", rows, figures)
    if arguments.csv:
        append_csv(arguments.csv, lines)


if __name__ == "__main__":
    main()
