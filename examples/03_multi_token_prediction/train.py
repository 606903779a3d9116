# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction with context parallelism: every head predicts one token further, and roll brings the labels.

Run it by `torchrun --nproc-per-node=2 train.py`, on Hopper GPUs with `--device cuda`; it compares its loss with the one
that a single process computes.
"""

import argparse
import os

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import tangram

TOKENS, VOCABULARY, HEADS, DIM, DEPTH = 240, 32, 4, 64, 3
IGNORED = -100


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HEADS * DIM)
        self.qkv = nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.heads = nn.ModuleList(nn.Linear(HEADS * DIM, VOCABULARY) for _ in range(DEPTH))

    def forward(self, tokens, attend):
        q, k, v = self.qkv(self.embedding(tokens)).view(-1, 3, HEADS, DIM).unbind(1)
        hidden = attend(q, k, v).reshape(-1, HEADS * DIM)
        return [head(hidden) for head in self.heads]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    dist.init_process_group("gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Attention on GPUs is for 16 bits, whose rounding the bound allows.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 1e-2)

    def attend_by(function, mask_or_key):
        def attend(*qkv):
            return function(*(x.to(dtype) for x in qkv), mask_or_key)[0].to(qkv[0].dtype)

        return attend

    torch.manual_seed(0)
    model = Model().to(device)
    tokens = torch.randint(0, VOCABULARY, (TOKENS,)).to(device)
    # What head d predicts: the token d + 1 further on. The last rows have none.
    labels = [torch.cat([tokens[d + 1 :], tokens.new_full((d + 1,), IGNORED)]) for d in range(DEPTH)]

    pad = tangram.compute_pad_size(TOKENS, dist.get_world_size(), 16)
    cu_seqlens = [0, 100, TOKENS]
    key = tangram.magi_attn_varlen_key(cu_seqlens, cu_seqlens, HEADS, HEADS, DIM, pad, None, causal=True, chunk_size=16)
    local_tokens = tangram.dispatch(tokens, key)
    predictions = model(local_tokens, attend_by(tangram.calc_attn, key))

    positions = tangram.get_position_ids(key, device=device)
    total, count = torch.zeros((), device=device), 0
    for d, logits in enumerate(predictions):
        local_labels = tangram.roll(local_tokens, key, -(d + 1))
        local_labels = local_labels.masked_fill(positions >= TOKENS - (d + 1), IGNORED)
        total = total + F.cross_entropy(logits, local_labels, ignore_index=IGNORED, reduction="sum")
        count += TOKENS - (d + 1)
    (total / count).backward()
    loss = total.detach()
    dist.all_reduce(loss)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)

    # This step in one process.
    alone = Model().to(device)
    alone.load_state_dict(model.state_dict())
    mask = tangram.Mask.varlen(cu_seqlens)
    whole = alone(tokens, attend_by(tangram.flex_flash_attn_func, mask))
    losses = [
        F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
        for logits, wanted in zip(whole, labels, strict=True)
    ]
    expected = sum(losses) / count
    expected.backward()
    difference = abs(loss / count - expected.detach()) / expected.detach()
    assert difference <= bound, difference
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= bound * theirs.grad.norm()
    if dist.get_rank() == 0:
        print(f"loss {loss / count:.6f}, in one process {expected:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
