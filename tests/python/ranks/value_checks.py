# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Borders and ranges that collectives of torch.distributed have written, which count no version."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tangram
from tangram.flash_attn import flash_attn_varlen_func

ROWS = 256


def broadcast(x, values, group):
    if dist.get_rank(group) == 0:
        x.copy_(values)
    dist.broadcast(x, 0, group=group)


def send_and_receive(x, values, group):
    if dist.get_rank(group) == 0:
        x.copy_(values)
        dist.send(x, 1, group=group)
    elif dist.get_rank(group) == 1:
        dist.recv(x, 0, group=group)
    else:
        x.copy_(values)


def all_reduce(x, values, group):
    x.copy_(values if dist.get_rank(group) == 0 else torch.zeros_like(values))
    dist.all_reduce(x, group=group)


def gather_into_one(x, values, group):
    size = dist.get_world_size(group)
    parts = torch.zeros(size * len(x), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(parts, values.to(x), group=group)
    dist.scatter(x, list(parts.chunk(size)) if dist.get_rank(group) == 0 else None, 0, group=group)


def handle_of_broadcast(x, values, group):
    if dist.get_rank(group) == 0:
        x.copy_(values)
    dist.broadcast(x, 0, group=group, async_op=True).wait()


COLLECTIVES = (broadcast, send_and_receive, all_reduce, gather_into_one, handle_of_broadcast)


def packed(q, k, v, cu):
    return flash_attn_varlen_func(q, k, v, cu, cu, causal=True)


def by_ranges(q, k, v, cu):
    ranges = cu.as_strided((2, 2), (1, 1))  # [[0, middle], [middle, ROWS]]
    return tangram.flex_flash_attn_func(q, k, v, ranges, ranges, [1, 1])[0]


def check_collectives(device, group):
    """What a call returns is of the values that then stand in the tensor. On a GPU it may be NaN instead, and the next
    call raises; it is never of the values of before."""
    generator = torch.Generator().manual_seed(4)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(ROWS, 2, 64, generator=generator).to(device, dtype) for _ in range(3))
    middles = (64, 130, 130, 17, 64)
    listed = {middle: [0, middle, ROWS] for middle in middles}
    wants = {middle: flash_attn_varlen_func(q, k, v, c, c, causal=True) for middle, c in listed.items()}
    refused = 0
    for write in COLLECTIVES:
        for attend in (packed, by_ranges):
            cu = torch.zeros(3, dtype=torch.int32, device=device)
            for step, middle in enumerate(middles):
                write(cu, torch.tensor(listed[middle], dtype=torch.int32), group)
                copied = attend(q, k, v, cu.clone())  # the remedy that the error names
                assert torch.equal(copied, wants[middle]), (write.__name__, attend.__name__, step)
                out = attend(q, k, v, cu)
                if device != "cpu" and bool(out.isnan().any()):
                    assert bool(out.isnan().all())
                    try:
                        attend(q, k, v, cu)
                    except tangram.InvalidArgument as error:
                        assert "ranges and cu_seqlens in GPU memory must keep their values" in str(error), error
                    else:
                        raise AssertionError("a call behind one with other values was not refused")
                    refused += 1
                    out = attend(q, k, v, cu)  # which reads anew
                assert torch.equal(out, wants[middle]), (write.__name__, attend.__name__, step)
    return refused
