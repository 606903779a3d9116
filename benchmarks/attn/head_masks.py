# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Times masks of head groups, in one launch a pass, beside a launch for each group and beside one mask for all heads.

Each group of K/V heads chooses blocks of keys for its query blocks at random, its own block and first block among them.
`one` takes all groups at once; `loop` calls for one group after the other, with tensors that lie apart for each group
already, so that nothing is copied; `shared` lets all heads see what the first group chose. All as CUDA graphs, in turns
of random order. Prints CSV: microseconds of a pass, TFLOP/s of `one` by visible area (backward counts 2 * area *
heads_q * (3 head_dim + 2 head_dim_v)), and loop / one. Needs a Hopper GPU and torch.

    python benchmarks/attn/head_masks.py [--rows 8192 32768] [--blocks 64 128] [--share 0.12] [--head-dim 128]
        [--heads 64,8 32,32] [--queries 0] [--rounds 7]

`--queries N`: that many query rows at the end of the keys, as when chunks are prefilled or tokens decoded; then forward
alone.
"""

import argparse

import torch
from turns import take_turns

import tangram
from tangram import AttnOptions, Backend, FlexAttention, HeadConfig


def chosen_masks(groups, queries, rows, block, share, seed=0):
    """Blocks that each group chose, as masks [queries, rows]."""
    generator = torch.Generator().manual_seed(seed)
    blocks_q, blocks_k = -(-queries // block), rows // block
    width = max(2, round(share * blocks_k))
    scores = torch.rand(groups, blocks_q, blocks_k, generator=generator)
    own = torch.arange(blocks_q) + blocks_k - blocks_q
    scores[:, torch.arange(blocks_q), own] = 2.0
    scores[:, :, 0] = 2.0
    indices = scores.topk(width).indices
    return tangram.masks_from_block_indices(queries, rows, block, block, indices)


class Calls:
    """Both passes of one FlexAttention over tensors of its own, in memory that does not move."""

    def __init__(self, mask, heads, queries, rows, backend):
        self.attention = FlexAttention(mask, heads, backend)
        shape_q = (queries, heads.num_heads_q, heads.head_dim)
        shape_k = (rows, heads.num_heads_kv, heads.head_dim)
        self.q, self.dout = (torch.randn(shape_q, device="cuda").bfloat16() for _ in range(2))
        self.k, self.v = (torch.randn(shape_k, device="cuda").bfloat16() for _ in range(2))
        self.out, self.dq = torch.empty_like(self.q), torch.empty_like(self.q)
        self.dk, self.dv = torch.empty_like(self.k), torch.empty_like(self.v)
        self.lse = torch.empty(shape_q[:2], device="cuda")
        self.spaces = {}

    def place(self, name, num_bytes):
        if name not in self.spaces:
            self.spaces[name] = torch.empty(max(num_bytes, 1), dtype=torch.uint8, device="cuda")
        return self.spaces[name].data_ptr(), num_bytes

    def forward(self):
        space = self.place("forward", self.attention.forward_workspace_bytes)
        stream = torch.cuda.current_stream().cuda_stream
        options = AttnOptions()
        self.attention.forward(
            self.q, self.k, self.v, self.out, self.lse, options=options, stream=stream, workspace=space
        )

    def backward(self, deterministic):
        needed = self.attention.backward_workspace_bytes(deterministic)
        space = self.place(f"backward {deterministic}", needed)
        options = AttnOptions(deterministic=deterministic)
        tensors = (self.q, self.k, self.v, self.out, self.lse, self.dout, self.dq, self.dk, self.dv)
        stream = torch.cuda.current_stream().cuda_stream
        self.attention.backward(*tensors, options=options, stream=stream, workspace=space)


def graph_of(calls, run):
    """`run` of all calls, captured."""
    for call in calls:
        run(call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            run(call)
    return graph


def measure(heads, queries, rows, block, share, rounds):
    """[(pass, microseconds by way, TFLOP/s)]."""
    backend = Backend("sm90")
    groups = heads.num_heads_kv
    masks = chosen_masks(groups, queries, rows, block, share)
    one_head = HeadConfig(heads.num_heads_q // groups, 1, heads.head_dim, heads.head_dim_v, heads.dtype)
    ways = {
        "one": [Calls(masks, heads, queries, rows, backend)],
        "loop": [Calls(mask, one_head, queries, rows, backend) for mask in masks],
        "shared": [Calls(masks[0], heads, queries, rows, backend)],
    }
    area = sum(mask.area for mask in masks) * (heads.num_heads_q // groups)
    passes = {"forward": (Calls.forward, 2 * (heads.head_dim + heads.head_dim_v))}
    if queries == rows:
        flops = 2 * (3 * heads.head_dim + 2 * heads.head_dim_v)
        passes["backward"] = (lambda call: call.backward(False), flops)
        passes["deterministic"] = (lambda call: call.backward(True), flops)
    results = []
    for name, (run, flops) in passes.items():
        graphs = {way: graph_of(calls, run) for way, calls in ways.items()}
        times = take_turns({way: graph.replay for way, graph in graphs.items()}, rounds)
        micros = {way: 1e3 * time for way, time in times.items()}
        results.append((name, micros, area * flops / micros["one"] / 1e6))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--blocks", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--heads", nargs="+", default=["64,8", "32,32"])
    parser.add_argument("--queries", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    torch.manual_seed(1)
    print("queries,rows,heads_q,heads_kv,head_dim,block,share,pass,one_us,loop_us,shared_us,one_tflops,loop/one")
    for rows in args.rows:
        for given in args.heads:
            heads_q, heads_kv = (int(x) for x in given.split(","))
            heads = HeadConfig(heads_q, heads_kv, args.head_dim, args.head_dim, "bfloat16")
            for block in args.blocks:
                queries = args.queries or rows
                head = f"{queries},{rows},{given},{args.head_dim},{block},{args.share}"
                for name, micros, tflops in measure(heads, queries, rows, block, args.share, args.rounds):
                    times = ",".join(f"{micros[way]:.1f}" for way in ("one", "loop", "shared"))
                    print(f"{head},{name},{times},{tflops:.0f},{micros['loop'] / micros['one']:.2f}", flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
