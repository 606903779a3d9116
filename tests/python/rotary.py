# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A small transformer with rotary embeddings, of any dtype, whose attention is an argument."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LAYERS, HEADS, HEADS_KV, DIM = 23, 2, 4, 2, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = HEADS * DIM
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * HEADS_KV * DIM, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, attend) -> Tensor:
        normed = self.norms[0](x)
        q = rotated(self.q(normed).view(-1, HEADS, DIM), positions)
        k, v = self.kv(normed).view(-1, 2, HEADS_KV, DIM).unbind(1)
        x = x + self.out(attend(q, rotated(k, positions), v).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HEADS * DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(HEADS * DIM, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, attend) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, attend)
        return self.head(x)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embeddings of `[rows, heads, DIM]`."""
    rates = 100.0 ** (-torch.arange(0, DIM, 2, dtype=x.dtype) / DIM)
    angle = positions.to(x.dtype)[:, None, None] * rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def dense(cells: Tensor):
    """Attention through a dense mask, in the dtype of its tensors."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(HEADS // HEADS_KV, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
        weights = scores.masked_fill(~cells, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, v)

    return attend


def causal(length: int, left: int | None) -> Tensor:
    """The mask of one sequence, with a window of `left` keys before a query."""
    cells = torch.ones(length, length, dtype=torch.bool).tril()
    return cells if left is None else cells.triu(-left)


def separate(model: Model, sequences, weights, left: int | None = None):
    """Results of each sequence by itself: its logits, the log probabilities of its tokens behind the first, and all
    parameters' gradients of the weighted sum of the latter."""
    model.zero_grad()
    all_logits, all_log_p = [], []
    for tokens, weight in zip(sequences, weights, strict=True):
        tokens = torch.as_tensor(tokens, dtype=torch.int64)
        if len(tokens) == 0:
            all_logits.append(torch.empty(0, VOCABULARY, dtype=torch.float64))
            all_log_p.append(torch.empty(0, dtype=torch.float64))
            continue
        logits = model(tokens, torch.arange(len(tokens)), dense(causal(len(tokens), left)))
        log_p = -F.cross_entropy(logits[:-1], tokens[1:], reduction="none")
        (-(log_p * torch.as_tensor(weight)[1:]).sum()).backward()
        all_logits.append(logits.detach())
        all_log_p.append(log_p.detach())
    return all_logits, all_log_p, gradients(model)


def gradients(model: Model) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def branching_sequences(generator: torch.Generator) -> list[Tensor]:
    """Two prompts with samples that agree for a while, a nested, an equal, an empty and a one-token sequence."""

    def draw(n: int) -> Tensor:
        return torch.randint(0, VOCABULARY, (n,), generator=generator)

    prompts = draw(40), draw(25)
    turn = torch.cat([prompts[0], draw(12)])
    return [
        torch.cat([prompts[0], draw(17)]),
        torch.cat([turn, draw(9)]),
        torch.cat([prompts[1], draw(1)]),
        torch.cat([turn, draw(20)]),
        turn.clone(),
        turn.clone(),
        draw(0),
        torch.cat([prompts[1], draw(30)]),
        draw(1),
        torch.cat([prompts[1][:10], draw(5)]),
    ]
