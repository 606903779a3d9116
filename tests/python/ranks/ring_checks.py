# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""ring_flash_attn's names over ranks beside dense attention in float64. ring_flash_attn_test.py starts the ranks."""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist

import tangram
import tangram.integrations.ring_flash_attn as ours

LENGTHS = [24, 8, 16]
"""Packed documents: multiples of twice the ranks."""
PACK = [7, 20, 13]
"""Documents that end anywhere."""
HEADS, HEADS_KV, DIM = 4, 2, 16


def dense(q, k, v, causal, window):
    """Attention of one document `[rows, heads, dim]`: out and lse `[heads, rows]`."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    away = torch.arange(len(k))[None] - torch.arange(len(q))[:, None]
    seen = (away <= 0) if causal else torch.ones_like(away, dtype=torch.bool)
    if window[0] >= 0:
        seen &= away >= -window[0]
    if window[1] >= 0:
        seen &= away <= window[1]
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def states(total):
    return [torch.randn(total, heads, DIM, dtype=torch.float64) for heads in (HEADS, HEADS_KV, HEADS_KV, HEADS)]


def places(layout, length, rank, ranks):
    """The rows of a document that a rank has."""
    rows = torch.arange(length)
    if layout == "zigzag":
        chunks = rows.chunk(2 * ranks)
        return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
    return rows[rank::ranks] if layout == "stripe" else rows.chunk(ranks)[rank]


def compare(call, lengths, layout, causal, window):
    """call: of q, k, v and lse of this rank's rows. layout None: runs of the pack."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    whole = states(sum(lengths))
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    if layout is None:
        rows = torch.arange(sum(lengths)).chunk(ranks)[rank]
    else:
        rows = torch.cat([b + places(layout, n, rank, ranks) for b, n in zip(begins, lengths, strict=True)])
    wanted = [x.clone().requires_grad_() for x in whole[:3]]
    of_documents = [
        dense(*(x[b : b + n] for x in wanted), causal, window) for b, n in zip(begins, lengths, strict=True)
    ]
    torch.cat([out for out, _ in of_documents]).backward(whole[3])
    mine = [x[rows].float().requires_grad_() for x in whole[:3]]
    out, lse = call(*mine)
    out.backward(whole[3][rows].float())
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(out.double(), torch.cat([out for out, _ in of_documents]).detach()[rows], **close)
    torch.testing.assert_close(lse.double(), torch.cat([lse for _, lse in of_documents], 1).detach()[:, rows], **close)
    for x, y in zip(mine, wanted, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad[rows], **close)


def check_batches(ring):
    batch, length = 3, 24
    for name, layout in (("ring", "contiguous"), ("zigzag_ring", "zigzag"), ("stripe", "stripe")):
        func = getattr(ring, f"{name}_flash_attn_func")
        for causal, window in ((True, (-1, -1)), (True, (5, 0)), (False, (-1, -1)), (False, (3, 9))):
            if not causal and name != "ring":
                continue

            def call(q, k, v, func=func, causal=causal, window=window):
                parts = (x.view(batch, -1, *x.shape[1:]) for x in (q, k, v))
                out, lse, nothing = func(*parts, causal=causal, window_size=window, return_attn_probs=True)
                assert nothing is None and lse.shape == (batch, HEADS, out.shape[1])
                return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)

            compare(call, [length] * batch, layout, causal, window)


def check_documents(ring):
    cu = torch.tensor([0, *LENGTHS]).cumsum(0).int() // dist.get_world_size()
    for name, layout in (("ring", "contiguous"), ("zigzag_ring", "zigzag")):
        func = getattr(ring, f"{name}_flash_attn_varlen_func")
        for window in ((-1, -1), (4, -1)):

            def call(q, k, v, func=func, window=window):
                return func(q, k, v, cu, max(LENGTHS), causal=True, window_size=window, return_attn_probs=True)[:2]

            compare(call, LENGTHS, layout, True, window)


def check_sequence(ring):
    cu = torch.tensor([0, *PACK]).cumsum(0).int()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for causal, window, copied in ((True, (-1, -1), False), (True, (6, 0), True), (False, (-1, -1), True)):
        *of_rank, local = ring.llama3_flash_attn_prepare_cu_seqlens(cu, causal, rank, ranks)
        if copied:  # without what prepare left on it
            of_rank[0] = of_rank[0].clone()

        def call(q, k, v, of_rank=of_rank, local=local, causal=causal, window=window):
            func = ring.llama3_flash_attn_varlen_func
            more = {"causal": causal, "window_size": window, "return_attn_probs": True}
            return func(q, k, v, *of_rank, heads_k_stride=1, local_k_slice=local, **more)[:2]

        compare(call, PACK, None, causal, window)


def check_packed_forms(ring):
    qkv = torch.randn(2, 8, 3, 2, DIM)
    whole = ring.zigzag_ring_flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(ring.zigzag_ring_flash_attn_qkvpacked_func(qkv, causal=True), whole)
    assert torch.equal(ring.zigzag_ring_flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), whole)
    rows, cu = qkv.flatten(0, 1), torch.tensor([0, 10, 16])
    whole = ring.ring_flash_attn_varlen_func(*rows.unbind(1), cu, 10, causal=True)
    assert torch.equal(ring.ring_flash_attn_varlen_qkvpacked_func(rows, cu, 10, causal=True), whole)
    assert torch.equal(ring.ring_flash_attn_varlen_kvpacked_func(rows[:, 0], rows[:, 1:], cu, 10, causal=True), whole)


def refused(message, call):
    try:
        call()
    except tangram.InvalidArgument as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


def check_refusals(ring):
    x, rows = torch.randn(1, 8, 2, DIM), torch.randn(8, 2, DIM)
    zigzag, varlen = ring.zigzag_ring_flash_attn_func, ring.zigzag_ring_flash_attn_varlen_func
    llama3, prepare = ring.llama3_flash_attn_varlen_func, ring.llama3_flash_attn_prepare_cu_seqlens
    refused("zigzag_ring_flash_attn_func: causal must be True (got causal=False)", lambda: zigzag(x, x, x))
    refused("must be even in number", lambda: zigzag(x[:, :7], x[:, :7], x[:, :7], causal=True))
    refused("dropout is not supported", lambda: zigzag(x, x, x, 0.1, causal=True))
    refused("ALiBi is not supported", lambda: zigzag(x, x, x, causal=True, alibi_slopes=torch.ones(2)))
    refused("must be [batch, rows, heads, dim] of equally many", lambda: zigzag(x, x[:, :4], x, causal=True))
    refused("cu_seqlens must rise from 0 to the 8 rows", lambda: varlen(rows, rows, rows, [0, 6], 6, causal=True))
    refused("multiple of world_size", lambda: prepare(torch.tensor([0, 4, 7]), True, 0, 2))
    *of_rank, local = prepare(torch.tensor([0, 10, 16]), True, dist.get_rank(), 2)
    more = {"heads_k_stride": 1, "local_k_slice": local}
    refused("causal must be as", lambda: llama3(rows, rows, rows, *of_rank, **more, causal=False))
    refused("q must be this rank's rows", lambda: llama3(*[rows[:4]] * 3, *of_rank, **more, causal=True))
    changed = [x.clone() if isinstance(x, torch.Tensor) else x for x in of_rank]
    changed[0][0] = 1
    refused("must be those that", lambda: llama3(rows, rows, rows, *changed, **more, causal=True))


def main():
    dist.init_process_group("gloo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours.install()
        import ring_flash_attn as ring

        for check in sys.argv[1:]:
            globals()[f"check_{check}"](ring)
    if "batches" in sys.argv:
        told = [str(each.message) for each in caught if "should be equal work" in str(each.message)]
        # Once a function; zigzag and stripe need no warning.
        names = {"ring_flash_attn_func", "ring_flash_attn_varlen_func", "llama3_flash_attn_varlen_func"}
        assert len(told) == len(names) and {text.split(":")[0] for text in told} == names, told
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
