# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of scores so large that an lse in float32 does not hold them, against dense float64."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

import tangram
from reference import attention, mask_cells
from tangram import Mask

HEADS, HEADS_KV, DIM, ROWS, CHUNK = 4, 2, 16, 128, 32
# Scales of queries and of keys that tie: lse 4e4 and 1e5, whose steps in float32 are 2^-8 and 2^-7.
LARGE = {torch.float32: 400.0, torch.bfloat16: 640.0}
# bfloat16: gradients are rounded to it, half a step of 2^-8.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
MASKS = {
    "causal": Mask.causal(ROWS),
    "documents": Mask.varlen([0, 50, 95, ROWS], causal=True),
    "window": Mask.sliding_window(ROWS, (75, 10)),
    "head groups": [Mask.causal(ROWS), Mask.full(ROWS)],
}


def operands(dtype, tied):
    """q, k, v in which every row that sees keys of `tied` shares itself among them."""
    generator = torch.Generator().manual_seed(len(tied))
    q, k, v = (torch.randn(ROWS, heads, DIM, generator=generator) for heads in (HEADS, HEADS_KV, HEADS_KV))
    q[..., 1:] = 0
    q[..., 0] = LARGE[dtype]
    k[..., 0] = 0
    k[tied, :, 0] = LARGE[dtype]
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def expected_of(mask, tensors, sink, softcap, dout):
    """The gradients of each head group, side by side."""
    masks = mask if isinstance(mask, list) else [mask]
    results = []
    for group, one in enumerate(masks):
        q, k, v, of_sink, of_dout = (
            None if x is None else np.split(x.detach().double().numpy(), len(masks), axis=1)[group]
            for x in (*tensors, sink, dout)
        )
        results.append(attention(q, k, v, mask_cells(one), softcap=softcap, sink=of_sink, dout=of_dout))
    return lambda name: np.concatenate([getattr(result, name) for result in results], axis=1)


def check_ties(group, mask, dtype, tied, softcap=0.0, sink=None, tolerance=None):
    """Gradients are those of float64, but for what rounding them takes."""
    key = tangram.mask_key(mask, HEADS, HEADS_KV, DIM, group, chunk_size=CHUNK)
    tensors = operands(dtype, tied)
    sink = None if sink is None else torch.full((1, HEADS), sink).requires_grad_()
    out, _ = tangram.calc_attn(*(tangram.dispatch(x, key) for x in tensors), key, softcap=softcap, sink=sink)
    full = tangram.undispatch(out, key)
    dout = torch.randn(full.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    full.backward(dout)
    expected = expected_of(mask, tensors, sink, softcap, dout)
    for name, leaf in zip(("dq", "dk", "dv", "dsink"), (*tensors, sink), strict=True):
        if leaf is None:
            continue
        got, want = leaf.grad.double().numpy(), expected(name)
        if name == "dq":
            got, want = got[..., 1:], want[..., 1:]  # in the first, equal keys cancel
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < (tolerance or TOLERANCE[dtype]), (name, dtype, len(tied), softcap, error)


def check_large_logits(group):
    """Keys that tie within one chunk, and so on one rank, are exact; of several ranks, or beside a sink that another
    call has, they are within a step of lse."""
    spread = 2**-6 if dist.get_world_size(group) > 1 else None
    for dtype in LARGE:
        for mask, ties in zip(MASKS.values(), (2, 3, 30, 3), strict=True):
            check_ties(group, mask, dtype, torch.arange(CHUNK, CHUNK + ties))
        check_ties(
            group, MASKS["causal"], dtype, torch.arange(35, 38), sink=LARGE[dtype] ** 2 / 4 - 1, tolerance=spread
        )
        check_ties(group, MASKS["causal"], dtype, torch.arange(35, 38), softcap=2e5)
        check_ties(group, MASKS["causal"], dtype, torch.arange(0, ROWS), tolerance=spread)
