# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of any strides give what contiguous ones give, bit for bit, or are refused: never other numbers."""

import os
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tangram import InvalidArgument, Mask, flex_flash_attn_func  # noqa: E402
from tangram.flash_attn import flash_attn_func  # noqa: E402

COUNT = 10_000 if os.environ.get("TANGRAM_TEST_LONG") == "1" else 60
ROWS, HEADS, HEADS_KV, DIM = 12, 4, 2, 8


def strided(rng, x):
    """A tensor of equal values in memory that looks otherwise: dims in any order, gaps, offsets, heads or rows on top
    of each other, views of a packed projection."""
    kind = rng.randrange(5)
    if kind == 0:  # dims in another order
        order = rng.sample(range(x.ndim), x.ndim)
        back = [order.index(i) for i in range(x.ndim)]
        return x.permute(order).contiguous().permute(back)
    if kind == 1:  # gaps in every dim
        steps = [rng.randint(1, 3) for _ in x.shape]
        room = x.new_full([n * s for n, s in zip(x.shape, steps, strict=True)], float("nan"))
        view = room[tuple(slice(None, None, s) for s in steps)]
        view.copy_(x)
        return view
    if kind == 2:  # an address that is no multiple of anything
        room = x.new_full((x.numel() + 5,), float("nan"))
        view = room[rng.randint(1, 5) :][: x.numel()].view(x.shape)
        view.copy_(x)
        return view
    if kind == 3:  # a part of a wider tensor
        dim = rng.randrange(x.ndim)
        before, behind = rng.randint(0, 3), rng.randint(0, 3)
        room = x.new_full([*x.shape[:dim], before + x.shape[dim] + behind, *x.shape[dim + 1 :]], float("nan"))
        view = room.narrow(dim, before, x.shape[dim])
        view.copy_(x)
        return view
    dim = rng.randrange(x.ndim)  # values that repeat, so that the dim may be expanded
    return x.narrow(dim, 0, 1).expand(x.shape)


def step(tensors, dout, run):
    leaves = [x.detach().requires_grad_() for x in tensors]  # detach keeps strides
    out = run(*leaves)
    out.backward(dout)
    return [out.detach(), *(x.grad for x in leaves)]


def check(number, run, shapes):
    rng = random.Random(number)
    generator = torch.Generator().manual_seed(number)
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    views = [strided(rng, torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    *views, dout = views
    want = step([x.contiguous() for x in views], dout.contiguous(), run)
    for got, exact in zip(step(views, dout, run), want, strict=True):
        assert torch.equal(got, exact) and bool(got.isfinite().all()), (number, [x.stride() for x in views])


def test_strides_of_rows():
    shapes = [(ROWS, HEADS, DIM), (ROWS, HEADS_KV, DIM), (ROWS, HEADS_KV, DIM), (ROWS, HEADS, DIM)]
    mask = Mask.varlen([0, 5, ROWS])
    for number in range(COUNT * 2 // 3):
        check(number, lambda q, k, v: flex_flash_attn_func(q, k, v, mask)[0], shapes)


def test_strides_of_batches():
    shapes = [(2, 6, HEADS, DIM), (2, 6, HEADS_KV, DIM), (2, 6, HEADS_KV, DIM), (2, 6, HEADS, DIM)]
    for number in range(COUNT // 3):
        check(number, lambda q, k, v: flash_attn_func(q, k, v, causal=True), shapes)


def test_batches_by_their_layout():
    """Batch layouts that are accepted by name, with ranges, masks of a sequence or of all, and sinks of rows."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 6, n, DIM, generator=generator) for n in (HEADS, HEADS_KV, HEADS_KV))
    sink = torch.randn(2, 6, 1, HEADS, generator=generator)
    want = torch.stack([flex_flash_attn_func(*x, Mask.causal(6))[0] for x in zip(q, k, v, strict=True)])
    for mask in ((Mask.causal(6),), (Mask.varlen([0, 6, 12]),), ([(0, 6)], [(0, 6)], [1])):
        out, meta = flex_flash_attn_func(q, k, v, *mask, layout="bshd", return_max_logits=True)
        assert torch.equal(out, want) and meta.lse.shape == (2, 6, HEADS) and meta.max_logits.shape == (HEADS,)
    with_sink, _ = flex_flash_attn_func(q, k, v, Mask.causal(6), layout="bshd", sink=sink, sink_layout="ssh")
    one, _ = flex_flash_attn_func(q[1], k[1], v[1], Mask.causal(6), sink=sink[1], sink_layout="ssh")
    assert torch.equal(with_sink[1], one)
    by_heads, _ = flex_flash_attn_func(q, k, v, [Mask.causal(6), Mask.full(6)], layout="bshd")
    assert torch.equal(by_heads[:, :, :2], want[:, :, :2]) and not torch.equal(by_heads, want)
    arrays, _ = flex_flash_attn_func(*(x.numpy() for x in (q, k, v)), Mask.causal(6), layout="bshd")
    assert torch.equal(torch.from_numpy(arrays), want)
    for layout, given, message in (
        ("bhsd", q, r"layout must be one of shd, bshd \(got layout='bhsd'\)"),
        ("bshd", q[0], r"must have shape \[batch, rows, heads, dim\]"),
        ("shd", q, 'pass layout="bshd" for batches'),
    ):
        with pytest.raises(InvalidArgument, match=message):
            flex_flash_attn_func(given, k, v, Mask.causal(6), layout=layout)
    with pytest.raises(InvalidArgument, match=r"6 x 6, or of all 2, 12 x 12 \(got 7 x 7\)"):
        flex_flash_attn_func(q, k, v, Mask.causal(7), layout="bshd")
