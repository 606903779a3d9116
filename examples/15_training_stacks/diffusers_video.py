# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A video transformer of diffusers with attention backend "tangram", beside PyTorch's own attention, in one process.

Run it by `python diffusers_video.py` with diffusers installed.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from diffusers import WanTransformer3DModel

from tangram.integrations.diffusers import register


def main():
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
    )
    video, text = torch.randn(1, 4, 3, 16, 16), torch.randn(1, 7, 16)
    results = []
    register()
    for backend in ("native", "tangram"):
        model.set_attention_backend(backend)
        out = model(video, torch.tensor([10]), text, return_dict=False)[0]
        model.zero_grad()
        out.square().mean().backward()
        results.append(torch.cat([out.detach().flatten(), *(p.grad.flatten() for p in model.parameters())]))
    away = (results[0] - results[1]).abs().max().item()
    print(f"results and gradients differ by {away:.1e}")
    assert away < 1e-4


if __name__ == "__main__":
    main()
