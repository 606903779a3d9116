# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training with blocks of keys that the model itself chooses: for each K/V head its own, at every step others.

`python top_k.py [--device cuda]` trains two layers on sequences in which pieces come back. For every block of queries
each K/V head takes the TOP blocks whose mean key fits the mean query best, its own block among them (as MoBA does);
attention computes these and no others. On a GPU kernels make lists of the choice, which no host sees: each layer has a
MaskBuffer. Every step is computed a second time with dense scores of the same choice.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from tangram import HeadConfig, MaskBuffer, flex_flash_attn_func

ROWS, BLOCK, TOP, STEPS = 512, 32, 4, 12
VOCABULARY, WIDTH, HEADS, HEADS_KV, DIM = 48, 128, 8, 2, 64
BLOCKS, GROUP = ROWS // BLOCK, HEADS // HEADS_KV


def choose_blocks(q: Tensor, k: Tensor) -> Tensor:
    """[K/V heads, query blocks, TOP]: blocks of keys up to the own one, -1 behind where there are fewer."""
    queries = q.view(BLOCKS, BLOCK, HEADS_KV, GROUP, DIM).mean((1, 3))
    scores = torch.einsum("qhd,khd->hqk", queries, k.view(BLOCKS, BLOCK, HEADS_KV, DIM).mean(1))
    own = torch.eye(BLOCKS, dtype=torch.bool, device=q.device)
    later = torch.ones_like(own).triu(1)
    values, blocks = scores.masked_fill(own, torch.inf).masked_fill(later, -torch.inf).topk(TOP)
    return blocks.masked_fill(values == -torch.inf, -1)


def buffer_of(device: str) -> MaskBuffer:
    """For the blocks that each K/V head chooses: on a GPU four query heads share tiles of 32 queries, a block high."""
    heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM, "bfloat16" if device == "cuda" else "float32")
    room = HEADS_KV * BLOCKS * TOP
    return MaskBuffer(ROWS, ROWS, heads, block_size=BLOCK, head_groups=HEADS_KV, max_slices=room, device=device)


def sparse(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, buffer: MaskBuffer) -> Tensor:
    buffer.set_blocks(blocks, BLOCK, causal=True)
    return flex_flash_attn_func(q, k, v, buffer)[0]


def dense(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor) -> Tensor:
    chosen = F.one_hot(blocks + 1, BLOCKS + 1).sum(2)[..., 1:].bool()  # [K/V heads, blocks, blocks]
    visible = chosen.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2).tril().repeat_interleave(GROUP, 0)
    q, k, v = (x.transpose(0, 1) for x in (q, k.repeat_interleave(GROUP, 1), v.repeat_interleave(GROUP, 1)))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(0, 1)


class Model(torch.nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.buffers = [buffer_of(device) for _ in range(2)]  # a mask stays until its backward pass
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.place = torch.nn.Embedding(ROWS, WIDTH)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(WIDTH, (HEADS + 2 * HEADS_KV) * DIM) for _ in range(2))
        self.out = torch.nn.ModuleList(torch.nn.Linear(HEADS * DIM, WIDTH) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def loss(self, tokens: Tensor, choices: list[Tensor]) -> Tensor:
        """Loss of the next token. Without `choices` each layer adds what it chooses; with them these are taken,
        densely."""
        is_dense = bool(choices)
        x = self.embed(tokens) + self.place.weight
        for layer, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            q, k, v = qkv(x).view(ROWS, -1, DIM).split([HEADS, HEADS_KV, HEADS_KV], dim=1)
            if not is_dense:
                choices.append(choose_blocks(q.detach(), k.detach()))
            blocks = choices[layer]
            attended = dense(q, k, v, blocks) if is_dense else sparse(q, k, v, blocks, self.buffers[layer])
            x = x + out(attended.flatten(1))
        return F.cross_entropy(self.head(x)[:-1].float(), tokens[1:])


def draw_tokens(seed: int, device: str) -> Tensor:
    """The blocks of the first half come back in the second in another order."""
    rng = torch.Generator().manual_seed(seed)
    half = torch.randint(VOCABULARY, (BLOCKS // 2, BLOCK), generator=rng)
    return torch.cat([half, half[torch.randperm(BLOCKS // 2, generator=rng)]]).flatten().to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    model = Model(device).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, seen = [], set()
    for step in range(STEPS):
        tokens = draw_tokens(step % 2, device)
        choices: list[Tensor] = []
        loss = model.loss(tokens, choices)
        dense_loss = model.loss(tokens, choices)
        torch.testing.assert_close(loss, dense_loss, rtol=2e-2 if device == "cuda" else 1e-4, atol=0)
        dense_gradients = torch.autograd.grad(dense_loss, list(model.qkv.parameters()))
        optimizer.zero_grad()
        loss.backward()
        for weight, gradient in zip(model.qkv.parameters(), dense_gradients, strict=True):
            assert weight.grad is not None
            error = (weight.grad - gradient).float().norm() / gradient.float().norm()
            assert error < (5e-2 if device == "cuda" else 1e-3), error
        optimizer.step()
        for buffer in model.buffers:
            buffer.check_errors()
        losses.append(loss.detach().item())
        seen |= {tuple(rows.flatten().tolist()) for blocks in choices for rows in blocks}
    assert losses[-1] < 0.75 * losses[0], losses
    kept = (choices[0] >= 0).sum().item() / (HEADS_KV * BLOCKS * (BLOCKS + 1) / 2)
    print(f"{len(seen)} masks, {100 * kept:.0f} % of the blocks: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    print("losses and gradients agree with dense scores of the same choice")


if __name__ == "__main__":
    main()
