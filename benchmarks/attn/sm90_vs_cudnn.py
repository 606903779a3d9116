# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the Hopper backend on the masks of tests/data/masks.json, forward and backward, beside cuDNN.

Tangram and cuDNN (PyTorch's scaled_dot_product_attention) run in one process and take turns, so that both meet the same
clocks; figures are medians over rounds, TFLOP/s by visible area (backward counts 2.5 times forward). cuDNN knows full
and causal masks only. Prints CSV; needs a Hopper GPU and torch.

    python benchmarks/attn/sm90_vs_cudnn.py build/dev/lib/libtangram_sm90_bench.so --sizes 1024,8192
"""

import argparse
import ctypes
import json
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from turns import take_turns

ROOT = Path(__file__).resolve().parents[2]
OPEN = 1 << 60


def band_slices(case):
    values = []
    for (q0, q1), (k0, k1), mask_type in zip(case["q_ranges"], case["k_ranges"], case["attn_types"], strict=True):
        low = k0 - q0 if mask_type in (2, 3) else -OPEN
        high = k1 - q1 if mask_type in (1, 3) else OPEN
        values += [q0, q1, k0, k1, low, high]
    return (ctypes.c_int64 * len(values))(*values), len(values) // 6


def pointer(value):
    return ctypes.c_void_p(value.data_ptr() if isinstance(value, torch.Tensor) else value)


class Tangram:
    def __init__(self, library, case, heads_q, heads_kv, dim):
        self.library = library
        slices, count = band_slices(case)
        rows = [ctypes.c_int64(n) for n in (case["seqlen"], case.get("seqlen_k", case["seqlen"]))]
        self.handle = library.tangram_bench_create(slices, count, *rows, heads_q, heads_kv, dim)
        if not self.handle:
            raise SystemExit("tangram_bench_create failed")

    def call(self, function, *args):
        stream = torch.cuda.current_stream().cuda_stream
        if function(pointer(self.handle), *args, pointer(stream)) != 0:
            raise SystemExit("a launch failed")

    def forward(self, q, k, v, out, lse):
        self.call(self.library.tangram_bench_forward, *map(pointer, (q, k, v, out, lse)))

    def backward(self, tensors, deterministic):
        self.call(self.library.tangram_bench_backward, *map(pointer, tensors), int(deterministic))

    def close(self):
        self.library.tangram_bench_destroy(pointer(self.handle))


def measure(library, case, heads_q, heads_kv, dim, rounds, passes):
    seqlen, mask = case["seqlen"], case["mask"]
    q, dout = (torch.randn(seqlen, heads_q, dim, device="cuda").bfloat16() for _ in range(2))
    k, v = (torch.randn(seqlen, heads_kv, dim, device="cuda").bfloat16() for _ in range(2))
    out, lse = torch.empty_like(q), torch.empty(seqlen, heads_q, device="cuda")
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    ours = Tangram(library, case, heads_q, heads_kv, dim)
    gradients = (q, k, v, out, lse, dout, dq, dk, dv)
    forward = {"tangram": lambda: ours.forward(q, k, v, out, lse)}
    backward = {
        "tangram": lambda: ours.backward(gradients, False),
        "deterministic": lambda: ours.backward(gradients, True),
    }
    if mask in ("full", "causal"):
        leaves = [t.transpose(0, 1)[None].detach().requires_grad_() for t in (q, k, v)]

        def peer():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(
                    *leaves, is_causal=mask == "causal", enable_gqa=True
                )

        result, dresult = peer(), dout.transpose(0, 1)[None]
        forward["cudnn"] = lambda: peer().detach()
        backward["cudnn"] = lambda: torch.autograd.grad(result, leaves, dresult, retain_graph=True)
    flops = 4 * case["area"] * heads_q * dim
    if "forward" in passes:
        rates = {name: flops / t / 1e9 for name, t in take_turns(forward, rounds).items()}
        yield "forward", rates["tangram"], None, rates.get("cudnn")
    else:
        ours.forward(q, k, v, out, lse)
    if "backward" in passes:
        rates = {name: 2.5 * flops / t / 1e9 for name, t in take_turns(backward, rounds).items()}
        yield "backward", rates["tangram"], rates["deterministic"], rates.get("cudnn")
    ours.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes", default="1024,2048,4096,8192,16384,32768,65536")
    parser.add_argument("--masks", default="", help="names, default all")
    parser.add_argument("--heads-q", type=int, default=64)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", default="forward,backward")
    args = parser.parse_args()

    library = ctypes.CDLL(str(Path(args.library).resolve()))
    library.tangram_bench_create.restype = ctypes.c_void_p
    sizes = [int(size) for size in args.sizes.split(",")]
    version = (ROOT / "VERSION").read_text().strip()
    machine = torch.cuda.get_device_name().replace(" ", "_")
    cases = json.loads((ROOT / "tests/data/masks.json").read_text())["cases"]
    print("version,machine,mask,seqlen,heads_q,heads_kv,head_dim,pass,tflops,deterministic_tflops,cudnn_tflops,ratio")
    for case in cases:
        if case["seqlen"] not in sizes or (args.masks and case["mask"] not in args.masks.split(",")):
            continue
        for name, rate, deterministic, peer in measure(
            library, case, args.heads_q, args.heads_kv, args.head_dim, args.rounds, args.passes.split(",")
        ):
            head = f"{version},{machine},{case['mask']},{case['seqlen']},{args.heads_q},{args.heads_kv},{args.head_dim}"
            fixed = f"{deterministic:.0f}" if deterministic else ""
            other = f"{peer:.0f},{rate / peer:.3f}" if peer else ","
            print(f"{head},{name},{rate:.0f},{fixed},{other}", flush=True)


if __name__ == "__main__":
    main()
