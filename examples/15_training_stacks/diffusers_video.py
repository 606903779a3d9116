# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A video transformer of diffusers with attention backend "tangram", beside PyTorch's own attention in one process.

Run it by `python diffusers_video.py`, or over the ranks of diffusers' context parallelism by
`torchrun --nproc-per-node=2 diffusers_video.py`, with diffusers installed. `--device cuda` on GPUs.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, WanTransformer3DModel

from tangram.integrations.diffusers import register

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
DEVICE = parser.parse_args().device
RANKS = int(os.environ.get("WORLD_SIZE", 1))
if DEVICE == "cpu":  # where diffusers asks for an accelerator
    torch._C._get_accelerator = lambda: torch.device("cpu")
    torch.accelerator.device_count = lambda: 1


def main():
    if RANKS > 1:
        dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=32,
    ).to(DEVICE)
    video, text = torch.randn(1, 4, 3, 16, 16).to(DEVICE), torch.randn(1, 7, 16).to(DEVICE)
    results = []
    register()
    for backend in ("native", "tangram"):
        model.set_attention_backend(backend)
        if RANKS > 1 and backend == "tangram":  # from here on each rank computes its rows
            model.enable_parallelism(config=ContextParallelConfig(ring_degree=RANKS))
        out = model(video, torch.tensor([10], device=DEVICE), text, return_dict=False)[0]
        model.zero_grad()
        out.square().mean().backward()
        if RANKS > 1 and backend == "tangram":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        results.append(torch.cat([out.detach().flatten(), *(p.grad.flatten() for p in model.parameters())]))
    away = (results[0] - results[1]).abs().max().item()
    print(f"results and gradients differ by {away:.1e}")
    assert away < 1e-4
    if RANKS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
