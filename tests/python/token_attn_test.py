# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""token_attn_func on the host: NumPy arrays, torch tensors, what is refused."""

import numpy as np
import pytest

import tangram
from reference import attention
from tangram import InvalidArgument, token_attn_func
from token_lists import cells_of, random_lists

ROWS, KEYS, HEADS, HEADS_KV, DIM = 20, 30, 6, 2, 16


def operands(seed, dtype=np.float32):
    random = np.random.default_rng(seed)
    shapes = [(ROWS, HEADS, DIM), (KEYS, HEADS_KV, DIM), (KEYS, HEADS_KV, DIM)]
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def expected(q, k, v, lists, head, dout=None):
    of_q, of_kv = slice(3 * head, 3 * head + 3), slice(head, head + 1)
    of_dout = None if dout is None else dout[:, of_q]
    return attention(q[:, of_q], k[:, of_kv], v[:, of_kv], cells_of(lists[:, head], KEYS), dout=of_dout), of_q, of_kv


def test_arrays_agree_with_float64():
    q, k, v = operands(1)
    for dtype in (np.int32, np.int64):
        lists = random_lists(2, ROWS, HEADS_KV, 8, KEYS).astype(dtype)
        out, meta = token_attn_func(q, k, v, lists)
        for head in range(HEADS_KV):
            want, of_q, _ = expected(q, k, v, lists, head)
            np.testing.assert_allclose(out[:, of_q], want.out, atol=1e-6)
            np.testing.assert_allclose(meta.lse[:, of_q], want.lse, atol=1e-5)


def test_keys_that_no_list_names_reach_nothing():
    q, k, v = operands(3)
    lists = random_lists(4, ROWS, HEADS_KV, 5, KEYS - 10)
    k[KEYS - 10 :] = v[KEYS - 10 :] = np.nan
    out, _ = token_attn_func(q, k, v, lists)
    assert np.isfinite(out).all()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    lists[3, 1, 1:] = lists[7, 0, :-1] = -1  # rows that see one key
    leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    dout = np.random.default_rng(5).standard_normal(q.shape).astype(np.float32)
    token_attn_func(*leaves, torch.from_numpy(lists))[0].backward(torch.from_numpy(dout))
    clean = [np.nan_to_num(x) for x in (q, k, v)]
    for head in range(HEADS_KV):
        want, of_q, of_kv = expected(*clean, lists, head, dout)
        np.testing.assert_allclose(leaves[0].grad[:, of_q].numpy(), want.dq, atol=1e-5)
        np.testing.assert_allclose(leaves[1].grad[:, of_kv].numpy(), want.dk, atol=1e-5)
        np.testing.assert_allclose(leaves[2].grad[:, of_kv].numpy(), want.dv, atol=1e-5)


def test_what_does_not_fit_is_refused():
    q, k, v = operands(1)
    lists = random_lists(2, ROWS, HEADS_KV, 8, KEYS)
    twice, outside = lists.copy(), lists.copy()
    twice[4, 1, :2] = 7
    outside[5, 0, 3] = KEYS
    for bad, message in (
        (twice, r"token_attn_func: lists must name a key once \(got key 7 twice for query 4, K/V head 1\)"),
        (
            outside,
            r"token_attn_func: indices must name rows of k, or -1 for none \(got key 30 for query 5, K/V head 0\)",
        ),
        (lists[:, :1], r"must be int32 or int64 \[rows of q, K/V heads, topk\] = \[20, 2, topk\] \(got int32"),
        (lists.astype(np.float32), r"\(got float32\[20, 2, 8\]\)"),
        (np.full_like(lists, 2**40, dtype=np.int64), r"\(got key 1099511627776 for query 0, K/V head 0\)"),
        (np.full_like(lists, 2**32, dtype=np.int64), r"\(got key 4294967296"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            token_attn_func(q, k, v, bad)
    tangram.check_token_errors()  # of GPUs


def test_gradients_agree_with_float64():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arrays = operands(5)
    lists = random_lists(6, ROWS, HEADS_KV, 8, KEYS)
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in arrays)
    dout = np.random.default_rng(7).standard_normal((ROWS, HEADS, DIM)).astype(np.float32)
    out, meta = token_attn_func(q, k.transpose(0, 1).contiguous().transpose(0, 1), v, torch.from_numpy(lists))
    out.backward(torch.from_numpy(dout))
    assert not meta.lse.requires_grad
    for head in range(HEADS_KV):
        want, of_q, of_kv = expected(*arrays, lists, head, dout)
        for got, exact in ((out[:, of_q], want.out), (q.grad[:, of_q], want.dq)):
            np.testing.assert_allclose(got.detach().numpy(), exact, atol=1e-5)
        np.testing.assert_allclose(k.grad[:, of_kv].numpy(), want.dk, atol=1e-5)
        np.testing.assert_allclose(v.grad[:, of_kv].numpy(), want.dv, atol=1e-5)
    with pytest.raises(InvalidArgument, match="token_attn_func: second derivatives are not supported"):
        (grad,) = torch.autograd.grad(token_attn_func(q, k, v, torch.from_numpy(lists))[0].sum(), q, create_graph=True)
        grad.sum().backward()
    with pytest.raises(InvalidArgument, match="softmax_scale must be"):
        token_attn_func(q, k, v, torch.from_numpy(lists), softmax_scale=-1.0)


def test_graphs_of_torch_compile_call_it_as_it_is():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in operands(8))
    lists = torch.from_numpy(random_lists(9, ROWS, HEADS_KV, 8, KEYS))

    def attend(q, k, v):
        return token_attn_func(2 * q, k, v, lists)[0].square().sum()

    grads = torch.autograd.grad(attend(q, k, v), (q, k, v))
    compiled = torch.autograd.grad(torch.compile(attend, backend="eager")(q, k, v), (q, k, v))
    for got, want in zip(compiled, grads, strict=True):
        assert torch.equal(got, want)
