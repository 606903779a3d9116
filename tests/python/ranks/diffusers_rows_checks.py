# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of diffusers' context parallelism, beside PyTorch's own attention over all rows. It needs no
diffusers: of a ContextParallelConfig it reads three fields. stacks_test.py starts the ranks."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

import tangram
from tangram.integrations._diffusers_ranks import attention_over_ranks

BATCH, ROWS, HEADS, HEADS_KV, DIM = 2, 6, 4, 2, 16


def expected_of(q, k, v, mask, causal, scale):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // HEADS_KV, 1) for x in (k, v))
    cells = None if mask is None else mask[:, None, None]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, cells, is_causal=causal, scale=scale)
    return out.transpose(1, 2)


def main():
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    config = SimpleNamespace(_flattened_mesh=mesh, ring_anything=False, ulysses_anything=False)

    def own(x):
        return x.detach().chunk(ranks, 1)[rank].clone()

    def ours(q, k, v, mask=None, causal=False, scale=None):
        return attention_over_ranks("backend", q, k, v, mask, causal, scale, config)

    for batch in (1, BATCH):
        shapes = ((batch, ranks * ROWS, heads, DIM) for heads in (HEADS, HEADS_KV, HEADS_KV, HEADS))
        whole = [torch.randn(shape) for shape in shapes]
        padding = torch.ones(batch, ranks * ROWS, dtype=torch.bool)
        padding[0, 4:9] = padding[-1, 10:] = False
        cases = [(None, False, None), (None, True, None), (None, False, 0.3), (padding, False, None)]
        for mask, causal, scale in cases:
            wanted = [x.clone().requires_grad_() for x in whole[:3]]
            expected = expected_of(*wanted, mask, causal, scale)
            expected.backward(whole[3])
            for given in (None,) if mask is None else (own(mask), own(mask)[:, None, None]):
                mine = [own(x).requires_grad_() for x in whole[:3]]
                out, _ = ours(*mine, given, causal, scale)
                torch.testing.assert_close(out, own(expected), rtol=1e-4, atol=1e-5)
                out.backward(own(whole[3]))
                for x, y in zip(mine, wanted, strict=True):
                    torch.testing.assert_close(x.grad, own(y.grad), rtol=1e-4, atol=1e-5)
    q, k, v = map(own, whole[:3])
    _, lse = ours(q, k, v)
    scores = torch.einsum("bqhd,bkhd->bqhk", whole[0], whole[1].repeat_interleave(HEADS // HEADS_KV, 2)) / DIM**0.5
    torch.testing.assert_close(lse, own(scores.logsumexp(-1)), rtol=1e-4, atol=1e-5)

    def refused(message, *args):
        try:
            ours(*args)
        except tangram.InvalidArgument as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"not refused: {message}")

    refused("attn_mask must be of this rank's keys alone", q, k, v, torch.ones(ROWS, ROWS, dtype=torch.bool))
    refused("attn_mask must be bool", q, k, v, torch.ones(BATCH, ROWS))
    refused("a rank's queries must be as many as its keys", q[:, :3], k, v)
    refused("is_causal must be False beside attn_mask", q, k, v, own(padding), True)
    config.ring_anything = True
    refused("ranks must have equally many rows", q, k, v)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
