# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder of tree_steps.py, its loss, and what attends in place of Tangram."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from kept_attention import Layer
from torch.utils.checkpoint import checkpoint

FULL_LAYERS, FULL_VOCABULARY = 16, 128_256
CHUNK = 8192  # rows whose logits exist at a time


@dataclass
class Shape:
    """The decoder and the bounds within which systems must agree, relative to log p and to the norm of gradients."""

    layer: tuple = (2048, 32, 8, 64, 8192)  # hidden, heads of queries, of keys, their dim, MLP
    layers: int = 4
    vocabulary: int = FULL_VOCABULARY // 4
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    recompute: bool = False
    log_p_bound: float = 2e-3
    gradient_bound: float = 5e-2


class WeightedLoss(torch.autograd.Function):
    """-(weights * log p of labels).sum() with log p, float32. Gradients are computed at once, for logits in chunks."""

    @staticmethod
    def forward(ctx, hidden, head, labels, weights):
        log_p = hidden.new_empty(len(labels), dtype=torch.float32)
        d_hidden, d_head = torch.zeros_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        for begin in range(0, len(labels), CHUNK):
            part = slice(begin, begin + CHUNK)
            scores = F.log_softmax((hidden[part] @ head.T).float(), -1)
            log_p[part] = scores.gather(1, labels[part, None])[:, 0]
            d_logits = scores.exp_().mul_(weights[part, None])
            d_logits.scatter_add_(1, labels[part, None], -weights[part, None])
            d_logits = d_logits.to(hidden.dtype)
            d_hidden[part] = d_logits @ head
            d_head += d_logits.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_head.to(head.dtype))
        ctx.mark_non_differentiable(log_p)
        return -(weights * log_p).sum(), log_p

    @staticmethod
    def backward(ctx, d_loss, _):
        d_hidden, d_head = ctx.saved_tensors
        return d_loss * d_hidden, d_loss * d_head, None, None


class Decoder(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden = shape.layer[0]
        self.embedding = torch.nn.Embedding(shape.vocabulary, hidden)
        self.layers = torch.nn.ModuleList(Layer(shape.layer) for _ in range(shape.layers))
        self.norm = torch.nn.RMSNorm(hidden)
        self.head = torch.nn.Linear(hidden, shape.vocabulary, bias=False)
        self.recompute = shape.recompute

    def forward(self, tokens, turns, attend):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, attend, *turns, use_reentrant=False)
            else:
                x = layer(x, attend, *turns)
        return self.norm(x)


def turns_of(positions, dim, dtype):
    """Cosines and signed sines of rotary embeddings, [rows, 1, dim]."""
    angles = positions[:, None] * 500_000.0 ** -torch.arange(0, 1, 2 / dim, device=positions.device)
    cosine, sine = (torch.cat([y, y], -1)[:, None] for y in (angles.cos(), angles.sin()))
    sine[..., : dim // 2] *= -1
    return cosine.to(dtype), sine.to(dtype)


def peer_attention(tree, shape, name):
    """`attend(q, k, v)` on packed sequences by the named peer."""
    borders = tree.cu_seqlens.to(shape.device, torch.int32)
    longest = int(tree.lengths.max())
    if name == "fa4":
        from flash_attn.cute import flash_attn_varlen_func

        options = {"cu_seqlens_q": borders, "cu_seqlens_k": borders, "max_seqlen_q": longest, "max_seqlen_k": longest}

        def attend(q, k, v):
            out = flash_attn_varlen_func(q, k, v, causal=True, **options)
            return out[0] if isinstance(out, tuple) else out

        return attend
    if name == "fa2":
        from torch.nn.attention.varlen import varlen_attn

        return lambda q, k, v: varlen_attn(q, k, v, borders, borders, longest, longest, window_size=(-1, 0))

    def attend_each(q, k, v):
        each = zip(*(x.transpose(0, 1)[None].split(tree.lengths.tolist(), 2) for x in (q, k, v)), strict=True)
        options = {"is_causal": True, "enable_gqa": True}
        return torch.cat([F.scaled_dot_product_attention(*qkv, **options) for qkv in each], 2)[0].transpose(0, 1)

    return attend_each
