# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Video that is made frame by frame: tokens see their own frame, all frames before it, and the clip's text prompt.

Two clips of different resolution are packed into one sequence. Run it by `torchrun --nproc-per-node=2 video.py`, on
Hopper GPUs with `--device cuda`; it compares outputs and gradients with those of one process and of PyTorch's attention
with a dense mask in float32.
"""

import argparse
import os

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
import torch.distributed as dist
import torch.nn.functional as F

import tangram
from tangram import AttnSlice, Mask, Range

HEADS, HEADS_KV, DIM = 4, 2, 64
CLIPS = [(24, 5, 48), (16, 4, 80)]  # tokens of the prompt, frames, tokens of a frame


def mask_of_clips() -> Mask:
    """A row of slices for each frame; whatever a frame sees is one interval of keys, so one slice is enough."""
    slices, begin = [], 0
    for prompt, frames, tokens in CLIPS:
        text = Range(begin, begin + prompt)
        slices.append(AttnSlice(text, text))
        for frame in range(frames):
            rows = Range(text.end + frame * tokens, text.end + (frame + 1) * tokens)
            slices.append(AttnSlice(rows, Range(begin, rows.end)))
        begin = rows.end
    return Mask(begin, begin, slices)


def dense(mask: Mask) -> torch.Tensor:
    cells = torch.zeros(mask.seqlen_q, mask.seqlen_k, dtype=torch.bool)
    for s in mask.slices:
        i = torch.arange(s.q_range.begin, s.q_range.end)[:, None]
        j = torch.arange(s.k_range.begin, s.k_range.end)[None, :]
        inside = (j - i >= s.min_diag) & (j - i <= s.max_diag)
        cells[s.q_range.begin : s.q_range.end, s.k_range.begin : s.k_range.end] |= inside
    return cells


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    dist.init_process_group("gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Attention on GPUs is for 16 bits, whose rounding the bound allows.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 2e-2)
    torch.manual_seed(0)
    mask = mask_of_clips()
    key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM)  # pads by itself
    shapes = [(mask.seqlen_q, HEADS, DIM), (mask.seqlen_k, HEADS_KV, DIM), (mask.seqlen_k, HEADS_KV, DIM)]
    q, k, v = (torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes)
    dout = torch.randn(shapes[0]).to(device, dtype)

    shards = [tangram.dispatch(x, key) for x in (q, k, v)]
    out = tangram.undispatch(tangram.calc_attn(*shards, key)[0], key)
    grads = torch.autograd.grad(out, (q, k, v), dout)

    alone, _ = tangram.flex_flash_attn_func(q, k, v, mask)
    grads_alone = torch.autograd.grad(alone, (q, k, v), dout)
    heads_first = [x.float().transpose(0, 1)[None] for x in (q, k, v)]
    cells = dense(mask).to(device)
    sdpa = F.scaled_dot_product_attention(*heads_first, attn_mask=cells, enable_gqa=True)[0].transpose(0, 1)
    grads_sdpa = torch.autograd.grad(sdpa, (q, k, v), dout.float())
    for ours, one, torchs in zip((out, *grads), (alone, *grads_alone), (sdpa, *grads_sdpa), strict=True):
        assert (ours.float() - torchs.float()).norm() <= bound * torchs.float().norm()
        assert (one.float() - torchs.float()).norm() <= bound * torchs.float().norm()
    if dist.get_rank() == 0:
        share = mask.area / mask.seqlen_q**2
        print(f"{len(CLIPS)} clips, {mask.seqlen_q} tokens, {share:.0%} of the pairs visible: agrees with SDPA")
        print(f"balance {key.plan.balance:.3f} over {key.cp_size} ranks, {key.plan.rows_moved} K/V rows moved")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
