# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction with context parallelism: every head predicts one token further, and roll brings the labels.

Run it by `torchrun --nproc-per-node=2 train.py`; it compares its loss with the one that a single process computes.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import tangram

TOKENS, VOCABULARY, HEADS, DIM, DEPTH = 240, 32, 4, 16, 3
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
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    tokens = torch.randint(0, VOCABULARY, (TOKENS,))
    # What head d predicts: the token d + 1 further on. The last rows have none.
    labels = [torch.cat([tokens[d + 1 :], torch.full((d + 1,), IGNORED)]) for d in range(DEPTH)]

    pad = tangram.compute_pad_size(TOKENS, dist.get_world_size(), 16)
    cu_seqlens = [0, 100, TOKENS]
    key = tangram.magi_attn_varlen_key(cu_seqlens, cu_seqlens, HEADS, HEADS, DIM, pad, None, causal=True, chunk_size=16)
    local_tokens = tangram.dispatch(tokens, key)
    predictions = model(local_tokens, lambda q, k, v: tangram.calc_attn(q, k, v, key)[0])

    positions = tangram.get_position_ids(key)
    total, count = torch.zeros(()), 0
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

    # The same step in one process.
    alone = Model()
    alone.load_state_dict(model.state_dict())
    mask = tangram.Mask.varlen(cu_seqlens)
    whole = alone(tokens, lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, mask)[0])
    losses = [
        F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
        for logits, wanted in zip(whole, labels, strict=True)
    ]
    expected = sum(losses) / count
    expected.backward()
    difference = abs(loss / count - expected.detach()) / expected.detach()
    assert difference <= 1e-4, difference
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    if dist.get_rank() == 0:
        print(f"loss {loss / count:.6f}, in one process {expected:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
