# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Times attention over keys that are named one by one, beside PyTorch's scaled_dot_product_attention on gathered keys.

Each query and K/V head names topk keys at random. `tangram` is one call with the lists, as a CUDA graph, the check of
lists included. `gathered` copies the keys of GATHERED_QUERIES queries to a tensor and attends to that, head by head;
its backward pass adds what the copies get to the keys, in float32 (`index_add_`), and its time is that of both passes
less that of the forward one; times are taken to all queries. In turns of random order. Prints CSV: microseconds of a
pass, TFLOP/s (forward counts 4 * heads_q * rows * topk * head_dim, backward 10), terabytes a second of keys and values
that kernels must read, what gathering takes, and gathered / tangram. Needs a Hopper GPU and torch.

    python benchmarks/attn/token_indices.py [--rows 8192 32768] [--topk 512 2048] [--heads 128,1 64,1 64,4 64,8]
        [--dtype bfloat16] [--rounds 7] [--forward] [--deterministic]
"""

import argparse

import torch
from turns import take_turns

from tangram import AttnOptions, Backend, HeadConfig
from tangram._core import TokenAttention

HEAD_DIM = 128
GATHERED_QUERIES = 2048  # whose keys and values lie copied at a time: up to 2 GB


class Calls:
    """Both passes over tensors in memory that does not move."""

    def __init__(self, heads_q, heads_kv, rows, topk, dtype):
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
        sizes = [self.calls.backward_workspace_bytes(deterministic) for deterministic in (False, True)]
        most = max(self.calls.forward_workspace_bytes, *sizes)
        self.space = torch.empty(most, dtype=torch.uint8, device="cuda")

    def _of_call(self, deterministic=False):
        place = (self.space.data_ptr(), self.space.numel())
        return AttnOptions(deterministic=deterministic), torch.cuda.current_stream().cuda_stream, place

    def forward(self):
        self.calls.forward(self.q, self.k, self.v, self.indices.data_ptr(), self.out, self.lse, *self._of_call())

    def backward(self, deterministic=False):
        results = (self.out, self.lse, self.dout, self.dq, self.dk, self.dv)
        call = self._of_call(deterministic)
        self.calls.backward(self.q, self.k, self.v, self.indices.data_ptr(), *results, *call)

    def gathered(self, backward):
        """One K/V head after the other: its query heads are the rows of a sequence, and queries a batch."""
        group = self.q.shape[1] // self.k.shape[1]
        rows = slice(0, GATHERED_QUERIES)
        for head in range(self.k.shape[1]):
            of_q = slice(head * group, (head + 1) * group)
            keys = self.indices[rows, head].long()
            q, k, v = self.q[rows, None, of_q], self.k[:, head][keys][:, None], self.v[:, head][keys][:, None]
            leaves = [x.requires_grad_(backward) for x in (q.detach(), k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(*leaves)
            if not backward:
                continue
            _, *gradients = torch.autograd.grad(out, leaves, self.dout[rows, None, of_q])
            for gradient in gradients:
                sums = torch.zeros(len(self.k), HEAD_DIM, device="cuda")
                sums.index_add_(0, keys.flatten(), gradient.flatten(0, 2).float())
                sums.to(self.k.dtype)


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
    parser.add_argument("--deterministic", action="store_true", help="such backward calls, too")
    args = parser.parse_args()

    torch.manual_seed(1)
    print("rows,heads_q,heads_kv,head_dim,topk,dtype,pass,us,tflops,terabytes_s,gathered_us,gathered/tangram")
    for rows in args.rows:
        for given in args.heads:
            heads_q, heads_kv = (int(x) for x in given.split(","))
            for topk in args.topk:
                calls = Calls(heads_q, heads_kv, rows, topk, getattr(torch, args.dtype))
                ways = {"forward": graph_of(calls.forward).replay}
                ways["gathered forward"] = lambda calls=calls: calls.gathered(backward=False)
                if not args.forward:
                    ways["backward"] = graph_of(calls.backward).replay
                    ways["gathered both"] = lambda calls=calls: calls.gathered(backward=True)
                if args.deterministic:
                    ways["deterministic backward"] = graph_of(lambda calls=calls: calls.backward(True)).replay
                us = {name: 1e3 * ms for name, ms in take_turns(ways, args.rounds).items()}
                peer = {"forward": us["gathered forward"] * rows / GATHERED_QUERIES}
                if not args.forward:
                    both = us["gathered both"] * rows / GATHERED_QUERIES
                    peer["backward"] = peer["deterministic backward"] = both - peer["forward"]
                entries = rows * heads_kv * topk
                flops, num_bytes = 4 * heads_q * rows * topk * HEAD_DIM, 4 * HEAD_DIM * entries
                for name in [name for name in peer if name in us]:
                    scale = 1 if name == "forward" else 2.5
                    rates = f"{us[name]:.1f},{scale * flops / us[name] / 1e6:.0f},{num_bytes / us[name] / 1e6:.2f}"
                    head = f"{rows},{given},{HEAD_DIM},{topk},{args.dtype},{name}"
                    print(f"{head},{rates},{peer[name]:.1f},{peer[name] / us[name]:.2f}", flush=True)
                del calls, ways
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
