# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""token_attn_func on tensors in GPU memory. Needs a Hopper GPU, torch with CUDA; skipped elsewhere."""

import gc

import numpy as np
import pytest

from reference import attention
from token_lists import cells_of, random_lists

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import InvalidArgument, magi, token_attn_func  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

# Kernels round probabilities, dS and results to 8 or 11 bits of fraction: relative L2 errors of whole tensors, the
# bounds of tests/attn/sm90.
BOUND = {torch.bfloat16: 4 / 512, torch.float16: 8 / 4096}


def operands(seed, heads, heads_kv, rows=40, keys=150, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, 128), (keys, heads_kv, 128), (keys, heads_kv, 128)]
    return [torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_() for shape in shapes]


def as_double(tensor):
    return tensor.detach().double().cpu().numpy()


def assert_close(got, want, bound, name):
    got = as_double(got)
    assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want) + 1e-3, name


def expected(q, k, v, lists, dout):
    """out, dq, dk, dv of all heads."""
    group = q.shape[1] // k.shape[1]
    results = []
    for head in range(k.shape[1]):
        of_q, of_kv = slice(group * head, group * (head + 1)), slice(head, head + 1)
        given = (as_double(q[:, of_q]), as_double(k[:, of_kv]), as_double(v[:, of_kv]))
        results.append(attention(*given, cells_of(lists[:, head], len(k)), dout=as_double(dout[:, of_q])))
    return [np.concatenate([getattr(r, name) for r in results], 1) for name in ("out", "dq", "dk", "dv")]


def of_indices(q, k, v, indices, **options):
    return magi.flex_flash_attn_func(q, k, v, index_attn_indices=indices, index_attn_values="tokens", **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(16, 2), (16, 1), (64, 1), (128, 1)])
def test_agrees_with_float64(heads, dtype):
    q, k, v = operands(1, *heads, dtype=dtype)
    lists = random_lists(2, len(q), heads[1], 70, len(k))
    dout = torch.randn_like(q)
    names = ("out", "dq", "dk", "dv")
    wanted = expected(q, k, v, lists, dout)
    indices = torch.from_numpy(lists).cuda()
    for attend in (token_attn_func, of_indices):
        for given in (indices, indices.long()):
            for x in (q, k, v):
                x.grad = None
            out, _ = attend(q, k, v, given)
            out.backward(dout)
            for got, want, name in zip((out, q.grad, k.grad, v.grad), wanted, names, strict=True):
                assert_close(got, want, BOUND[dtype], name)
    torch.cuda.synchronize()
    tangram.check_token_errors()


@pytest.mark.parametrize("heads", [(16, 2), (128, 1)])
def test_deterministic_gradients_repeat(heads):
    q, k, v = operands(11, *heads, rows=300)
    lists = random_lists(12, len(q), heads[1], 70, len(k))
    indices, dout = torch.from_numpy(lists).cuda(), torch.randn_like(q)
    wanted = expected(q, k, v, lists, dout)[1:]

    def gradients(attend):
        return torch.autograd.grad(attend()[0], (q, k, v), dout)

    first = gradients(lambda: token_attn_func(q, k, v, indices, deterministic=True))
    for got, want, name in zip(first, wanted, ("dq", "dk", "dv"), strict=True):
        assert_close(got, want, BOUND[torch.bfloat16], name)
    for attend in (
        lambda: token_attn_func(q, k, v, indices, deterministic=True),
        lambda: of_indices(q, k, v, indices, deterministic=True),
    ):
        for got, want in zip(gradients(attend), first, strict=True):
            assert torch.equal(got, want)


def test_a_graph_takes_the_lists_of_its_day():
    q, k, v = operands(3, 16, 2)
    indices = torch.from_numpy(random_lists(4, len(q), 2, 70, len(k))).cuda()
    dout = torch.randn_like(q)

    def step():
        out, _ = token_attn_func(q, k, v, indices)
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # loads kernels
    torch.cuda.current_stream().wait_stream(stream)
    gc.collect()  # a graph that ends while another is captured spoils it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for seed in (5, 6):
        lists = random_lists(seed, len(q), 2, 70, len(k))
        indices.copy_(torch.from_numpy(lists))
        graph.replay()
        for got, want in zip(results, expected(q, k, v, lists, dout), strict=True):
            assert_close(got, want, BOUND[torch.bfloat16], "replay")
    indices[3, 1, 4] = 150
    graph.replay()
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match="got key 150 for query 3, K/V head 1"):
        tangram.check_token_errors()
    tangram.check_token_errors()


def test_lists_that_are_refused_see_nothing():
    q, k, v = (x.detach() for x in operands(7, 8, 1))
    indices = torch.arange(64, device="cuda", dtype=torch.int32).repeat(len(q), 1, 1)
    indices[5, 0, 9] = 3
    out, meta = token_attn_func(q, k, v, indices)
    assert (out[5] == 0).all() and torch.isneginf(meta.lse[5]).all() and torch.isfinite(meta.lse[6]).all()
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match=r"token_attn_func: lists .*\(got key 3 twice for query 5, K/V head 0"):
        token_attn_func(q, k, v, indices)
    tangram.check_token_errors()


def test_what_kernels_do_not_take_is_refused_or_computed_on_the_host():
    q, k, v = (x.detach() for x in operands(8, 8, 1))
    indices = torch.arange(64, device="cuda", dtype=torch.int32).repeat(len(q), 1, 1)
    with pytest.raises(InvalidArgument, match="token_attn_func: needs bfloat16 or float16"):
        token_attn_func(q.float(), k.float(), v.float(), indices)
    with pytest.raises(InvalidArgument, match=r"head_dim and head_dim_v 128 \(got 64 and 64\)"):
        token_attn_func(q[..., :64], k[..., :64], v[..., :64], indices)
    on_gpu, _ = token_attn_func(q, k, v, indices)
    on_host, _ = token_attn_func(q, k, v, indices, backend="reference")
    assert_close(on_gpu, as_double(on_host), BOUND[torch.bfloat16], "reference")
    capped, _ = of_indices(q, k, v, indices, softcap=1e6)
    assert_close(capped, as_double(on_host), BOUND[torch.bfloat16], "softcap")
