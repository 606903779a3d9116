# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks that a GPU has computed: lists that its kernels build, beside those of the host.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/device_masks.py [--packs 12] [--csv FILE]
    [--deterministic] [--short]
Of packs of documents, random blocks and the same as ranges, 64/8 heads of 128: what the device takes to build (a graph
of eight builds, divided), the host to set a mask, and both passes with lists of either kind, in random turns behind
other work. Medians over masks; ratios are medians of the ratios of a mask.
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


def tensors_of(rows, head_dim=128):
    shapes = [(rows, 64, head_dim), (rows, 8, head_dim), (rows, 8, head_dim), (rows, 64, head_dim)]
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


def packs_of(rng, rows, documents, count):
    """cu_seqlens on the GPU, and the mask."""
    for _ in range(count):
        ends = [0, rows] if documents == 1 else packed(rng, rows, documents)
        yield torch.tensor(ends, dtype=torch.int32, device="cuda"), Mask.varlen(ends, causal=True)


def blocks_of(rows, block, width, causal, count):
    """Indices on the GPU, the mask, and how long the host took for it."""
    for _ in range(count):
        table = torch.rand(rows // block, rows // block, device="cuda")
        if causal:
            table = table.tril() + torch.eye(rows // block, device="cuda")  # that of the query itself first
        indices = table.topk(width, dim=1).indices.to(torch.int32).contiguous()
        start = time.perf_counter()
        mask = Mask.from_block_indices(rows, rows, block, block, indices.cpu().numpy(), causal=causal)
        yield indices, mask, (time.perf_counter() - start) * 1e6


def ranges_of(indices, block):
    """A range of queries and one of keys for each block."""
    queries = torch.arange(len(indices), device="cuda", dtype=torch.int32)[:, None].expand_as(indices)
    return [torch.stack([x * block, (x + 1) * block], -1).reshape(-1, 2).contiguous() for x in (queries, indices)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--packs", type=int, default=12)
    parser.add_argument("--csv")
    parser.add_argument("--deterministic", action="store_true", help="buffers of such calls, whose lists have turns")
    parser.add_argument("--short", action="store_true", help="packs of 32K rows alone")
    arguments = parser.parse_args()
    rng, order = np.random.default_rng(0), random.Random(0)

    def buffers_of(rows, **capacity):
        return [MaskBuffer(rows, rows, HEADS, deterministic=arguments.deterministic, **capacity) for _ in range(2)]

    def show(name, rows, figures):
        shape = f"{rows},{rows},1,0,64,8,128,128,bfloat16,sm90,,"
        device = torch.cuda.get_device_name()
        lines = []
        for figure, values in figures.items():
            value, unit = statistics.median(values), "" if "/" in figure else "us"
            print(f"{name:28}{figure:26}{value:12.3f} (most {max(values):.3f})", flush=True)
            lines.append(f'{tangram.__version__},"{device}",{name},{shape},"{figure}",{unit},{value:.4f}')
        if arguments.csv:
            append_csv(arguments.csv, lines)

    def packs(rows, documents):
        masks = list(packs_of(rng, rows, documents, arguments.packs))
        buffers = buffers_of(rows, max_documents=documents)

        def set_device(buffer, pack):
            buffer.set_cu_seqlens(pack[0], causal=True)

        figures = compare(rows, masks, lambda b, pack: b.set(pack[1]), set_device, buffers, order)
        show(f"packed:{documents}", rows, figures)

    def blocks(rows, block, share, causal=False, as_ranges=False):
        width = int(share * (rows // block))
        masks = list(blocks_of(rows, block, width, causal, 4))
        buffers = buffers_of(rows, max_documents=64, max_slices=rows // block * width)
        pairs = {id(mask): ranges_of(mask[0], block) for mask in masks}

        def set_device(buffer, mask):
            if as_ranges:
                buffer.set_ranges(*pairs[id(mask)])
            else:
                buffer.set_blocks(mask[0], block, causal=causal)

        figures = compare(rows, masks, lambda b, mask: b.set(mask[1]), set_device, buffers, order)
        figures["mask of indices, host us"] = [mask[2] for mask in masks]
        show(f"{'ranges' if as_ranges else 'blocks'}:{block}:{share}{':causal' if causal else ''}", rows, figures)

    for documents in (1, 13, 64):
        packs(32768, documents)
    if arguments.short:
        return
    blocks(32768, 128, 0.12)
    blocks(32768, 128, 0.12, as_ranges=True)
    blocks(32768, 128, 0.25, causal=True)
    blocks(32768, 64, 0.12)
    packs(131072, 48)
    blocks(65536, 64, 0.06)


if __name__ == "__main__":
    main()
