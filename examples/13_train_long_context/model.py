# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder of Qwen3's kind in plain PyTorch. Memory grows with rows by layer inputs and attention alone. The MLP and
the loss work on chunks of rows, and what they need for their backward pass is computed again, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from data import IGNORED
from report import Timeline
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    heads_kv: int
    head_dim: int
    wide: int  # of the MLP
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Elements of a layer's matrices."""
        return self.hidden * ((2 * self.heads + 2 * self.heads_kv) * self.head_dim + 3 * self.wide)


SHAPES = {
    "toy": Shape(64, 2, 4, 2, 16, 96, 256),  # for tests: bytes are tokens
    "10M": Shape(256, 8, 4, 2, 64, 768, 8192),
    "1B-d64": Shape(2048, 18, 32, 8, 64, 7168, 151_936),
    "1B": Shape(2048, 20, 16, 8, 128, 6144, 151_936),
    "8B": Shape(4096, 36, 32, 8, 128, 12_288, 151_936),
}
ROTARY_BASE = 1_000_000.0


@dataclass
class Step:
    """What the layers need of a step beside their input; no module looks into it but Layer and Model."""

    tokens: Tensor  # [rows] of this rank
    labels: Tensor
    turns: tuple[Tensor, Tensor]  # cosines and signed sines, [rows, 1, head_dim]
    attend: dict[int | None, Any]  # by window: function of q, k, v
    keeper: Any  # keep.Keeper: checkpoints the layers
    chunk_rows: int  # of the MLP
    loss_rows: int  # whose logits exist at a time
    windows: list[int | None]  # of each layer
    timeline: Timeline = field(default_factory=Timeline)


class ChunkedMlp(torch.autograd.Function):
    """down(silu(gate) * up) of [rows, hidden] in chunks of rows, forward and backward; only the input is saved.

    Sums of weight gradients over chunks are rounded to the weights' dtype after each chunk.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, chunk_rows: int, is_recomputed: bool) -> Tensor:
        ctx.save_for_backward(x, gate_up, down)
        ctx.chunk_rows = chunk_rows
        out = torch.empty_like(x)
        if is_recomputed:  # the backward pass reads what is saved, not the result
            return out
        for part in _chunks(len(x), chunk_rows):
            gate, up = (x[part] @ gate_up.T).chunk(2, -1)
            torch.mm(F.silu(gate).mul_(up), down.T, out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, gate_up, down = ctx.saved_tensors
        dx, d_gate_up, d_down = torch.empty_like(x), torch.zeros_like(gate_up), torch.zeros_like(down)
        for part in _chunks(len(x), ctx.chunk_rows):
            both = x[part] @ gate_up.T
            gate, up = both.chunk(2, -1)
            active = F.silu(gate)
            d_inner = dy[part] @ down
            d_down.addmm_(dy[part].T, active * up)
            d_both = torch.empty_like(both)
            d_gate, d_up = d_both.chunk(2, -1)
            torch.mul(d_inner, active, out=d_up)
            d_gate.copy_(torch.ops.aten.silu_backward(d_inner.mul_(up), gate))
            torch.mm(d_both, gate_up, out=dx[part])
            d_gate_up.addmm_(d_both.T, x[part])
        return dx, d_gate_up, d_down, None, None


class ChunkedLoss(torch.autograd.Function):
    """Sum of cross entropies, float64, of [rows, hidden] and the head's weights [vocabulary, hidden]. Gradients are
    computed at once, so that logits of one chunk exist at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Tensor, labels: Tensor, chunk_rows: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        dx, d_head = torch.empty_like(x), torch.zeros_like(head)
        for part in _chunks(len(x), chunk_rows):
            wanted = labels[part]
            counts = wanted != IGNORED
            at = wanted.clamp(min=0)[:, None]
            log_p = F.log_softmax((x[part] @ head.T).float(), -1)
            total -= torch.where(counts, log_p.gather(1, at)[:, 0], 0).double().sum()
            d_logits = log_p.exp_()
            d_logits.scatter_add_(1, at, torch.full_like(at, -1, dtype=d_logits.dtype))
            d_logits = d_logits.mul_(counts[:, None]).to(x.dtype)
            torch.mm(d_logits, head, out=dx[part])
            d_head.addmm_(d_logits.T, x[part])
        ctx.save_for_backward(dx, d_head)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Any, ...]:
        dx, d_head = ctx.saved_tensors
        return dx.mul_(d_total), d_head.mul_(d_total), None, None


def _chunks(rows: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


class Layer(torch.nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.shape, self.index = shape, index
        rows_of_heads = (shape.heads + 2 * shape.heads_kv) * shape.head_dim
        self.norm_attention, self.norm_mlp = (torch.nn.RMSNorm(shape.hidden, eps=1e-6) for _ in range(2))
        self.norm_q, self.norm_k = (torch.nn.RMSNorm(shape.head_dim, eps=1e-6) for _ in range(2))
        self.qkv = torch.nn.Linear(shape.hidden, rows_of_heads, bias=False)
        self.out = torch.nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.gate_up = torch.nn.Linear(shape.hidden, 2 * shape.wide, bias=False)
        self.down = torch.nn.Linear(shape.wide, shape.hidden, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        # The checkpoint lies within FSDP's hooks, which gather the weights once for recomputation and backward.
        x = step.timeline.through(x, "linear", "fsdp")
        y = step.keeper.checkpoint(self._compute, x, step, self.index)
        return step.timeline.through(y, "fsdp", "linear")

    def _compute(self, x: Tensor, step: Step) -> Tensor:
        shape = self.shape
        rows = self.qkv(self.norm_attention(x)).view(len(x), -1, shape.head_dim)
        q, k, v = rows.split([shape.heads, shape.heads_kv, shape.heads_kv], 1)
        q, k = (_rotated(norm(y), *step.turns) for norm, y in ((self.norm_q, q), (self.norm_k, k)))
        q, k, v = (step.timeline.through(y, "attention", "linear") for y in (q, k, v))
        out = step.attend[step.windows[self.index]](q, k, v)
        out = step.timeline.through(out, "linear", "attention")
        x = x + self.out(out.flatten(1))
        weights = (self.gate_up.weight, self.down.weight)
        return x + ChunkedMlp.apply(self.norm_mlp(x), *weights, step.chunk_rows, step.keeper.is_recomputing())


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return x * cosines + x.roll(x.shape[-1] // 2, -1) * sines


def turns_of(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of rotary embeddings, [rows, 1, head_dim]."""
    frequencies = ROTARY_BASE ** -torch.arange(0, 1, 2 / head_dim, dtype=torch.float64, device=positions.device)
    angles = positions[:, None] * frequencies
    cosines, sines = (torch.cat([y, y], -1)[:, None] for y in (angles.cos(), angles.sin()))
    sines[..., : head_dim // 2] *= -1
    return cosines.to(dtype), sines.to(dtype)


class Model(torch.nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = torch.nn.ModuleList(Layer(shape, i) for i in range(shape.layers))
        self.norm = torch.nn.RMSNorm(shape.hidden, eps=1e-6)
        self.head = torch.nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, step: Step) -> Tensor:
        """The sum of this rank's losses."""
        x = self.embedding(step.tokens)
        x = step.timeline.through(x, "fsdp", "linear")
        for layer in self.layers:
            x = layer(x, step)
        x = step.timeline.through(x, "loss", "fsdp")
        total: Tensor = ChunkedLoss.apply(self.norm(x), self.head.weight, step.labels, step.loss_rows)
        return step.timeline.through(total, "other", "loss")


@torch.no_grad()
def initialise(model: Model, seed: int, rank: int, ranks: int, device: torch.device) -> None:
    """Every parameter by its own seed, so that weights do not depend on the number of ranks. FSDP's shards, dim 0, are
    taken of the whole. Small models are drawn in host memory: alike on all devices."""
    small = sum(p.numel() for p in model.parameters()) < 1e8
    for number, (name, parameter) in enumerate(model.named_parameters()):
        where = torch.device("cpu") if small else device
        generator = torch.Generator(where).manual_seed(seed * 1_000_003 + number)
        whole = torch.empty(parameter.shape, device=where)
        if parameter.dim() == 1:
            whole.fill_(1.0)
        else:
            scale = 0.02 if name.startswith("embedding") else parameter.shape[1] ** -0.5
            whole.normal_(0.0, scale, generator=generator)
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        parts = whole.chunk(ranks) if hasattr(parameter, "to_local") else (whole,) * ranks
        if rank < len(parts):
            local.copy_(parts[rank])
