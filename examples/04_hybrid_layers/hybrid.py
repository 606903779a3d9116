# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Layers that alternate between a sliding window and full attention, over one dispatch of the tokens.

Run it by `torchrun --nproc-per-node=2 hybrid.py`, on Hopper GPUs with `--device cuda`; it compares its output with the
one that a single process computes.
"""

import argparse
import os

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
import torch.distributed as dist

import tangram

TOKENS, HEADS, DIM, LAYERS = 400, 4, 64, 4
WINDOW = (63, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    dist.init_process_group("gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Attention on GPUs is for 16 bits, whose rounding the bound allows.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 1e-2)
    torch.manual_seed(0)
    weights = [torch.randn(HEADS * DIM, 3 * HEADS * DIM).to(device) / (HEADS * DIM) ** 0.5 for _ in range(LAYERS)]
    x = torch.randn(TOKENS, HEADS * DIM).to(device)

    def run(x, attend):
        for layer, weight in enumerate(weights):
            q, k, v = (x @ weight).to(dtype).view(-1, 3, HEADS, DIM).unbind(1)
            x = x + attend(layer, q, k, v).to(x.dtype).reshape(-1, HEADS * DIM)
        return x

    cu = [0, 150, TOKENS]
    pad = tangram.compute_pad_size(TOKENS, dist.get_world_size(), 16)
    full = tangram.magi_attn_varlen_key(cu, cu, HEADS, HEADS, DIM, pad, None, causal=True, chunk_size=16)
    window = tangram.make_varlen_key_for_new_mask_after_dispatch(cu, cu, full, window_size=WINDOW)
    keys = [window if layer % 2 else full for layer in range(LAYERS)]
    shard = run(tangram.dispatch(x, full), lambda layer, q, k, v: tangram.calc_attn(q, k, v, keys[layer])[0])
    out = tangram.undispatch(shard, full)

    masks = [tangram.Mask.varlen(cu), tangram.Mask.sliding_window(cu, WINDOW)]
    alone = run(x, lambda layer, q, k, v: tangram.flex_flash_attn_func(q, k, v, masks[layer % 2])[0])
    assert (out - alone).norm() <= bound * alone.norm(), (out - alone).norm() / alone.norm()
    if dist.get_rank() == 0:
        print(f"{LAYERS} layers over {dist.get_world_size()} ranks agree with one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
