# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Dense attention in float64 with its gradients, which shares no code with the library."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Results:
    """Results of one call and its backward pass; what a call has not is None."""

    out: Tensor
    lse: Tensor
    max_logits: Tensor | None
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None = None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cells: Tensor,
    dout: Tensor,
    *,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> Results:
    """q `[rows, heads, dim]`, k, v `[keys, heads_kv, dim]`, cells `[heads, rows, keys]` of bool, on one device.

    sink: `[n, heads]` or `[rows, n, heads]`. Gradients are those of torch's autograd.
    """
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    of_sink = None if sink is None else sink.detach().double().requires_grad_()
    group = q.shape[1] // k.shape[1]
    q64, k64, v64 = leaves
    raw = torch.einsum("ihd,jhd->hij", q64, k64.repeat_interleave(group, 1)) * q.shape[2] ** -0.5
    score = softcap * torch.tanh(raw / softcap) if softcap else raw
    logits = score.masked_fill(~cells, -torch.inf)
    num_sinks = 0
    if of_sink is not None:
        rows = of_sink if of_sink.ndim == 3 else of_sink.expand(q.shape[0], *of_sink.shape)
        logits, num_sinks = torch.cat([logits, rows.permute(2, 0, 1)], 2), rows.shape[1]
    peak = logits.detach().amax(2, keepdim=True)
    powers = (logits - peak.masked_fill(peak == -torch.inf, 0)).exp()  # zeros where a row sees nothing
    total = powers.sum(2, keepdim=True)
    weights = (powers / total.clamp_min(1e-300))[..., : logits.shape[2] - num_sinks]
    lse = (peak + total.log())[..., 0]
    out = torch.einsum("hij,jhd->ihd", weights, v64.repeat_interleave(group, 1))
    wanted = [*leaves] if of_sink is None else [*leaves, of_sink]
    grads = torch.autograd.grad(out, wanted, dout.double())
    peaks = raw.detach().masked_fill(~cells, -torch.inf).amax((1, 2))
    return Results(out.detach(), lse.detach().T, peaks, *grads)
