# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Times attention over keys that are named one by one, beside PyTorch's scaled_dot_product_attention on gathered keys.

Each query and K/V head names topk keys at random. `tangram` is one call with the lists, as a CUDA graph, the check of
lists included; `gathered` copies the keys of some queries to a tensor and attends to that, slice by slice. In turns of
random order. Prints CSV: microseconds of a pass, TFLOP/s (forward counts 4 * heads_q * rows * topk * head_dim, backward
10), terabytes a second of keys and values that kernels must read, and gathered / tangram. Needs a Hopper GPU and torch.

    python benchmarks/attn/token_indices.py [--rows 8192 32768] [--topk 512 2048] [--heads 128,1 64,1 64,4 64,8]
        [--dtype bfloat16] [--rounds 7] [--forward] [--deterministic]
"""

import argparse

import torch
from turns import take_turns

from tangram import AttnOptions, Backend, HeadConfig
from tangram._core import TokenAttention

HEAD_DIM = 128
GATHERED_BYTES = 4 << 30  # of keys and values that lie copied at a time


class Calls:
    """Both passes over tensors in memory that does not move."""

    def __init__(self, heads_q, heads_kv, rows, topk, dtype, deterministic):
        self.options = AttnOptions(deterministic=deterministic)
        self.q, self.dout = (torch.randn(rows, heads_q, HEAD_DIM, device="cuda").to(dtype) for _ in range(2))
        self.k, self.v = (torch.randn(rows, heads_kv, HEAD_DIM, device="cuda").to(dtype) for _ in range(2))
        self.out, self.dq = torch.empty_like(self.q), torch.empty_like(self.q)
        self.dk, self.dv = torch.empty_like(self.k), torch.empty_like(self.v)
        self.lse = torch.empty(rows, heads_q, device="cuda")
        self.indices = torch.empty(rows, heads_kv, topk, dtype=torch.int32, device="cuda")
        for part in self.indices.split(256):
            scores = torch.rand(*part.shape[:2], rows, device="cuda")
            part.copy_(scores.topk(topk, sorted=False).indices)
        name = {torch.bfloat16: "bfloat16", torch.float16: "float16"}[dtype]
        heads = HeadConfig(heads_q, heads_kv, HEAD_DIM, HEAD_DIM, name)
        self.calls = TokenAttention(Backend("sm90"), (rows, rows), heads, topk)
        most = max(self.calls.forward_workspace_bytes, self.calls.backward_workspace_bytes(deterministic))
        self.space = torch.empty(most, dtype=torch.uint8, device="cuda")

    def _of_call(self):
        place = (self.space.data_ptr(), self.space.numel())
        return self.options, torch.cuda.current_stream().cuda_stream, place

    def forward(self):
        self.calls.forward(self.q, self.k, self.v, self.indices.data_ptr(), self.out, self.lse, *self._of_call())

    def backward(self):
        results = (self.out, self.lse, self.dout, self.dq, self.dk, self.dv)
        self.calls.backward(self.q, self.k, self.v, self.indices.data_ptr(), *results, *self._of_call())

    def forward_gathered(self):
        """One K/V head after the other: its query heads are the rows of a sequence, and queries a batch."""
        heads_q, heads_kv, topk = self.q.shape[1], self.k.shape[1], self.indices.shape[2]
        group = heads_q // heads_kv
        step = max(GATHERED_BYTES // (topk * HEAD_DIM * 4), 1)
        for head in range(heads_kv):
            of_q = slice(head * group, (head + 1) * group)
            for begin in range(0, self.q.shape[0], step):
                rows = slice(begin, begin + step)
                keys = self.indices[rows, head].long()
                k, v = self.k[:, head][keys], self.v[:, head][keys]
                q = self.q[rows, of_q]
                torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])


def graph_of(run):
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--topk", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", nargs="+", default=["128,1", "64,1", "64,4", "64,8"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--forward", action="store_true", help="that pass alone")
    parser.add_argument("--deterministic", action="store_true", help="backward calls")
    args = parser.parse_args()

    torch.manual_seed(1)
    print("rows,heads_q,heads_kv,head_dim,topk,dtype,pass,us,tflops,terabytes_s,gathered_us,gathered/tangram")
    for rows in args.rows:
        for given in args.heads:
            heads_q, heads_kv = (int(x) for x in given.split(","))
            for topk in args.topk:
                calls = Calls(heads_q, heads_kv, rows, topk, getattr(torch, args.dtype), args.deterministic)
                head = f"{rows},{given},{HEAD_DIM},{topk},{args.dtype}"
                forward = graph_of(calls.forward)
                ways = {"tangram": forward.replay, "gathered": calls.forward_gathered}
                times = take_turns(ways, args.rounds)
                entries = rows * heads_kv * topk
                flops, num_bytes = 4 * heads_q * rows * topk * HEAD_DIM, 4 * HEAD_DIM * entries
                us, other = 1e3 * times["tangram"], 1e3 * times["gathered"]
                rates = f"{us:.1f},{flops / us / 1e6:.0f},{num_bytes / us / 1e6:.2f}"
                print(f"{head},forward,{rates},{other:.1f},{other / us:.2f}", flush=True)
                if not args.forward:
                    us = 1e3 * take_turns({"tangram": graph_of(calls.backward).replay}, args.rounds)["tangram"]
                    rates = f"{us:.1f},{2.5 * flops / us / 1e6:.0f},{num_bytes / us / 1e6:.2f}"
                    name = "deterministic backward" if args.deterministic else "backward"
                    print(f"{head},{name},{rates},,", flush=True)
                del calls, forward, ways
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
