# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.flash_attn: FlashAttention's functions over its own grid of parameters, against dense float64."""

import inspect
import itertools
import os
import random

import numpy as np
import pytest

from reference import attention

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import _flash_attend  # noqa: E402
from tangram import flash_attn as fa  # noqa: E402
from tangram import flash_attn_interface as fa3  # noqa: E402

LONG = os.environ.get("TANGRAM_TEST_LONG") == "1"
LENGTHS = [(1, 147), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (3, 2)]
DIMS = [32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256]
HEADS = {"mha": (6, 6), "gqa": (6, 2), "mqa": (6, 1)}
GRID = [
    (*case, list(HEADS)[number % 3], [0.0, 30.0][number // 3 % 2])
    for number, case in enumerate(
        itertools.product(
            LENGTHS,
            DIMS,
            [torch.float32, torch.bfloat16, torch.float16],
            [False, True],  # causal
            [False, True],  # window
        )
    )
    if max(case[0]) <= 256 or case[1] in (64, 128)  # the oracle is dense and in float64
]
# The whole, 840 cases, is two minutes; a sample of cases that the first dims and lengths make quick.
CASES = GRID if LONG else random.Random(7).sample([c for c in GRID if c[0][1] <= 217 and c[1] <= 128], 12)
# float32: sums of at most 512 products. Others: rounded inputs and outputs of up to 8, in 8 or 11 bits of fraction.
ATOL = {torch.float32: 2e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def visible(seqlen_q, seqlen_k, causal, window):
    """By the sentence that documents it: keys in [i + sk - sq - left, i + sk - sq + right]."""
    i = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    j = np.arange(seqlen_k)[None, :]
    left, right = window[0], 0 if causal else window[1]
    cells = np.ones((seqlen_q, seqlen_k), bool)
    if left >= 0:
        cells &= j >= i - left
    if right >= 0:
        cells &= j <= i + right
    return cells


def check(x, want, dtype, what):
    scale = max(1.0, float(np.abs(want).max(initial=0)))  # gradients of one key are sums over all its queries
    np.testing.assert_allclose(x.detach().double().cpu().numpy(), want, atol=ATOL[dtype] * scale, err_msg=what)


def leaves(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=lambda x: str(x) if isinstance(x, int) else "")
def test_a_case_of_the_grid(number, case):
    run_case(number, case, "cpu", check, ATOL[torch.float32])


def run_case(number, case, device, check, lse_atol):
    """One case, by a function that its number chooses; check(x, want, dtype, what) compares."""
    (seqlen_q, seqlen_k), dim, dtype, causal, has_window, kind, softcap = case
    rng = random.Random(number)
    window = (rng.randint(0, seqlen_k), rng.randint(0, seqlen_k)) if has_window else (-1, -1)
    heads, heads_kv = HEADS[kind]
    batch, deterministic = rng.randint(1, 2), rng.random() < 0.5
    shapes = [(batch, seqlen_q, heads, dim), *[(batch, seqlen_k, heads_kv, dim)] * 2]
    q, k, v = (x.detach().to(device).requires_grad_() for x in leaves(number, *shapes, dtype=dtype))
    sink = leaves(number + 1, (heads,))[0].detach().to(device).requires_grad_() if rng.random() < 0.5 else None
    options = {"causal": causal, "window_size": window, "softcap": softcap, "sink": sink}
    options["deterministic"] = deterministic
    packed = rng.choice(["no", "kv", "varlen", "varlen kv"])
    cu_q, cu_k = (torch.arange(0, (batch + 1) * n, n, dtype=torch.int32, device=device) for n in (seqlen_q, seqlen_k))
    borders = (cu_q, cu_k, seqlen_q, seqlen_k)
    if packed == "no":
        out, lse, none = fa.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    elif packed == "kv":
        out, lse, none = fa.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **options, return_attn_probs=True)
    else:
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        if packed == "varlen":
            out, lse, none = fa.flash_attn_varlen_func(*flat, *borders, **options, return_attn_probs=True)
        else:
            kv = torch.stack(flat[1:], 1)
            out, lse, none = fa.flash_attn_varlen_kvpacked_func(
                flat[0], kv, *borders, **options, return_attn_probs=True
            )
        assert lse.shape == (heads, batch * seqlen_q)
        out, lse = out.view(q.shape), lse.view(heads, batch, seqlen_q).transpose(0, 1)
    assert none is None and out.dtype == dtype and lse.shape == (batch, heads, seqlen_q)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    out.backward(dout)
    dsink = np.zeros((1, heads))
    for b in range(batch):
        want = attention(
            *(x[b].detach().double().cpu().numpy() for x in (q, k, v)),
            visible(seqlen_q, seqlen_k, causal, window),
            softcap=softcap,
            sink=None if sink is None else sink[None].detach().cpu().numpy(),
            dout=dout[b].double().cpu().numpy(),
        )
        check(out[b], want.out, dtype, "out")
        np.testing.assert_allclose(lse[b].T.cpu().numpy(), want.lse, atol=lse_atol)
        for name, x in (("dq", q), ("dk", k), ("dv", v)):
            check(x.grad[b], getattr(want, name), dtype, name)
        dsink += 0 if sink is None else want.dsink
    if sink is not None:
        check(sink.grad, dsink[0], dtype, "dsink")


def test_one_packed_tensor_gets_one_gradient():
    (qkv,) = leaves(1, (2, 20, 3, 4, 16))
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(2))
    out = fa.flash_attn_qkvpacked_func(qkv, 0.0, None, True, (5, 0), 2.0)
    want = fa.flash_attn_func(q, k, v, 0.0, None, True, (5, 0), 2.0)
    assert torch.equal(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    assert torch.equal(qkv.grad, torch.stack([q.grad, k.grad, v.grad], 2))
    (flat,) = leaves(2, (40, 3, 4, 16))
    cu = torch.tensor([0, 13, 13, 40], dtype=torch.int32)  # one sequence has no rows
    out = fa.flash_attn_varlen_qkvpacked_func(flat, cu, 27, causal=True)
    want = fa.flash_attn_varlen_func(*flat.unbind(1), cu, cu, 27, 27, causal=True)
    assert torch.equal(out, want)
    out.sum().backward()
    assert flat.grad.shape == flat.shape and bool(flat.grad[:, 2].abs().sum() > 0)


def test_borders_that_change_in_place_are_read_again():
    q, k, v = leaves(3, *[(30, 2, 16)] * 3)
    cu = torch.tensor([0, 10, 30], dtype=torch.int32)
    first = fa.flash_attn_varlen_func(q, k, v, cu, cu, 20, 20)
    cu[1] = 20
    second = fa.flash_attn_varlen_func(q, k, v, cu, cu, 20, 20)
    want = fa.flash_attn_varlen_func(q, k, v, [0, 20, 30], [0, 20, 30], 20, 20)
    assert torch.equal(second, want) and not torch.equal(first, second)


def test_known_borders_are_looked_up_and_those_of_many_packs_bounded(monkeypatch, bounds):
    q, k, v = leaves(4, *[(30, 2, 16)] * 3)
    cu = torch.tensor([0, 10, 30], dtype=torch.int32)
    want = fa.flash_attn_varlen_func(q, k, v, cu, cu, 20, 20)
    with monkeypatch.context() as patch:
        patch.setattr(_flash_attend, "_make_mask", None)
        assert torch.equal(fa.flash_attn_varlen_func(q, k, v, cu, cu, 20, 20), want)
        with pytest.raises(tangram.InvalidArgument, match="max_seqlen_q must be at least the longest sequence, 20"):
            fa.flash_attn_varlen_func(q, k, v, cu, cu, 19, 20)
    tangram.set_cache_bytes("borders", 5000)
    for middle in range(1, 12):
        fa.flash_attn_varlen_func(q, k, v, [0, middle, 30], [0, middle, 30])
    (row,) = (row for row in tangram.memory_use() if row.name == "borders")
    assert 0 < row.num_bytes <= row.max_bytes  # of all caches of that name, other tests have filled theirs


def test_values_may_have_another_dim():
    q, k, v = leaves(4, (1, 9, 4, 24), (1, 9, 2, 24), (1, 9, 2, 16))
    out = fa.flash_attn_func(q, k, v, causal=True)
    want = attention(*(x[0].detach().numpy() for x in (q, k, v)), visible(9, 9, True, (-1, -1)))
    np.testing.assert_allclose(out[0].detach().numpy(), want.out, atol=1e-4)


def test_compiles_without_a_graph_break():
    q, k, v = leaves(5, *[(2, 12, 2, 16)] * 3)
    cu = torch.tensor([0, 5, 24], dtype=torch.int32)

    def step(q, k, v, cu):
        batched = fa.flash_attn_func(q * 2, k, v, causal=True, window_size=(3, 0), softcap=2.0)
        batched = batched + fa.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True)
        batched = batched + fa3.flash_attn_func(q, k, v, 0.2, True, return_attn_probs=True)[0]
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        packed = fa.flash_attn_varlen_func(*flat, cu, cu, 19, 19, causal=True)
        packed = packed + fa.flash_attn_varlen_kvpacked_func(flat[0], torch.stack(flat[1:], 1), cu, cu, 19, 19)
        return batched.sum() + packed.square().sum()

    grads = []
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        given = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        run(*given, cu).backward()
        grads.append([x.grad for x in given])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        ("func", {"dropout_p": 0.1}, r"flash_attn_func: dropout .* pass dropout_p=0.0; .* \(got dropout_p=0.1\)"),
        ("func", {"alibi_slopes": torch.ones(2)}, "flash_attn_func: ALiBi .* alibi_slopes must be None"),
        ("varlen", {"alibi_slopes": torch.ones(2)}, "flash_attn_varlen_func: ALiBi"),
        ("varlen", {"block_table": torch.ones(2)}, "paged keys are not supported, block_table must be None"),
        ("func", {"window_size": 5}, r"window_size must be two integers.*\(got window_size=5\)"),
        ("func", {"q": torch.ones(9, 2, 16)}, r"q must be a tensor \[batch, rows, heads, dim\] \(got q=\[9, 2, 16\]\)"),
        ("func", {"k": torch.ones(1, 8, 2, 16)}, "q, k and v must be of one batch, k and v of equal rows"),
        ("func", {"sink": torch.ones(3)}, r"sink must be \[heads of q\].*heads of q = 2 \(got sink=\[3\]\)"),
        ("varlen", {"max_seqlen_q": 4}, r"max_seqlen_q must be at least the longest .*, 6 \(got max_seqlen_q=4\)"),
        ("varlen", {"cu_seqlens_k": torch.tensor([0, 3, 8])}, "cu_seqlens_k must rise from 0 to the 9 rows"),
        ("varlen", {"cu_seqlens_q": torch.tensor([0.0, 9.0])}, "cu_seqlens_q must be int32"),
        ("varlen", {"cu_seqlens_q": torch.tensor([0, 9])}, "must be equally long .got 2 and 3 values"),
    ],
)
def test_what_is_refused_is_named(function, changes, message):
    if function == "func":
        given = {name: torch.ones(1, 9, 2, 16) for name in "qkv"}
        call = fa.flash_attn_func
    else:
        given = {name: torch.ones(9, 2, 16) for name in "qkv"}
        cu = torch.tensor([0, 3, 9], dtype=torch.int32)
        given |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 6, "max_seqlen_k": 6}
        call = fa.flash_attn_varlen_func
    call(**given)
    with pytest.raises(tangram.InvalidArgument, match=message):
        call(**(given | changes))
    with pytest.raises(tangram.InvalidArgument, match=r"qkv must be a tensor \[batch, rows, 3, heads, dim\]"):
        fa.flash_attn_qkvpacked_func(torch.ones(1, 9, 2, 2, 16))


TUNING = ["softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic", "return_attn_probs"]
OF_2 = ["dropout_p", *TUNING]
DESCALE = ["q_descale", "k_descale", "v_descale"]
OF_3 = ["qv", *DESCALE, "window_size", "attention_chunk", "softcap", "num_splits", "pack_gqa", "deterministic"]
OF_3 += ["sm_margin", "return_attn_probs"]
BORDERS = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
PUBLISHED = {
    fa.flash_attn_func: ["q", "k", "v", *OF_2],
    fa.flash_attn_kvpacked_func: ["q", "kv", *OF_2],
    fa.flash_attn_qkvpacked_func: ["qkv", *OF_2],
    fa.flash_attn_varlen_func: ["q", "k", "v", *BORDERS, *OF_2, "block_table"],
    fa.flash_attn_varlen_kvpacked_func: ["q", "kv", *BORDERS, *OF_2],
    fa.flash_attn_varlen_qkvpacked_func: ["qkv", "cu_seqlens", "max_seqlen", *OF_2],
    fa3.flash_attn_func: ["q", "k", "v", "softmax_scale", "causal", *OF_3],
    fa3.flash_attn_varlen_func: [
        *("q", "k", "v", *BORDERS, "seqused_q", "seqused_k", "softmax_scale", "causal"),
        *OF_3,
    ],
    fa3.flash_attn_qkvpacked_func: [
        *("qkv", "softmax_scale", "causal", *DESCALE, "window_size", "attention_chunk", "softcap", "deterministic"),
        *("num_heads_q", "sm_margin", "return_attn_probs"),
    ],
}
DEFAULTS = {"dropout_p": 0.0, "causal": False, "window_size": (-1, -1), "softcap": 0.0, "deterministic": False}
DEFAULTS |= {"return_attn_probs": False, "attention_chunk": 0, "num_splits": 1, "sm_margin": 0}


@pytest.mark.parametrize("function", PUBLISHED, ids=lambda f: f"{f.__module__[-9:]}.{f.__name__}")
def test_arguments_stand_in_the_published_order(function):
    parameters = inspect.signature(function).parameters.values()
    by_position = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in by_position] == PUBLISHED[function]
    for p in by_position:
        if p.default is not p.empty:
            assert p.default == DEFAULTS.get(p.name), p


def test_the_order_of_flash_attention_3():
    q, k, v = leaves(6, (2, 9, 4, 16), *[(2, 9, 2, 16)] * 2)
    want, want_lse, _ = fa.flash_attn_func(
        q, k, v, softmax_scale=0.2, causal=True, window_size=(4, 0), softcap=3.0, return_attn_probs=True
    )
    out, lse = fa3.flash_attn_func(q, k, v, 0.2, True, None, None, None, None, (4, 0), 0, 3.0, 1, None, True, 2, True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    assert torch.equal(fa3.flash_attn_func(q, k, v), fa.flash_attn_func(q, k, v))
    cu = torch.tensor([0, 5, 18], dtype=torch.int32)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse = fa3.flash_attn_varlen_func(*flat, cu, cu, 13, 13, None, None, 0.2, True, return_attn_probs=True)
    want, want_lse, _ = fa.flash_attn_varlen_func(*flat, cu, cu, 13, 13, 0.0, 0.2, True, return_attn_probs=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    heads = torch.cat([q, k, v], 2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(heads, num_heads_q=4), fa.flash_attn_func(q, k, v))
    qkv = torch.stack([q, q, q], 2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(qkv, 0.2, True), fa.flash_attn_qkvpacked_func(qkv, 0.0, 0.2, True))
    for given, message in (
        ({"qv": q}, "flash_attn_func: qv is not supported and must be None .got qv of type Tensor"),
        ({"k_descale": q}, "k_descale is not supported"),
        ({"attention_chunk": 4}, r"attention_chunk must be 0.*flash_attn_varlen_func .got attention_chunk=4"),
    ):
        with pytest.raises(tangram.InvalidArgument, match=message):
            fa3.flash_attn_func(q, k, v, **given)
    with pytest.raises(tangram.InvalidArgument, match="flash_attn_varlen_func: seqused_k is not supported"):
        fa3.flash_attn_varlen_func(*flat, cu, cu, 13, 13, seqused_k=cu)
    with pytest.raises(tangram.InvalidArgument, match=r"num_heads_q \+ 2 \* heads_kv.*num_heads_q=3"):
        fa3.flash_attn_qkvpacked_func(heads, num_heads_q=3)


def test_a_softcap_that_is_not_positive_is_none():
    q, k, v = leaves(7, *[(1, 9, 2, 16)] * 3)
    assert torch.equal(fa.flash_attn_func(q, k, v, softcap=-1.0), fa.flash_attn_func(q, k, v))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fa.flash_attn_func(x, x.half(), x), "^flash_attn_func: q, k and v must share one dtype"),
        (lambda x: fa.flash_attn_func(x, x, x, softmax_scale=-1.0), "^flash_attn_func: softmax_scale must be finite"),
        (
            lambda x: fa.flash_attn_kvpacked_func(x[:, :, :3], torch.stack([x, x], 2)),
            "^flash_attn_kvpacked_func: .*heads of q must be a multiple",
        ),
        (
            lambda x: fa.flash_attn_qkvpacked_func(torch.stack([x] * 3, 2), window_size=3),
            "^flash_attn_qkvpacked_func: window_size must be two integers",
        ),
        (
            lambda x: fa.flash_attn_varlen_kvpacked_func(x[0], torch.stack([x[0]] * 2, 1), [0, 8], [0, 9]),
            "^flash_attn_varlen_kvpacked_func: cu_seqlens_q must rise from 0 to the 9 rows",
        ),
        (
            lambda x: fa.flash_attn_varlen_qkvpacked_func(torch.stack([x[0]] * 3, 1), torch.tensor([0, 8]), 9),
            "^flash_attn_varlen_qkvpacked_func: cu_seqlens must rise from 0 to the 9 rows",
        ),
        (
            lambda x: fa.flash_attn_varlen_qkvpacked_func(torch.stack([x[0]] * 3, 1), torch.tensor([0, 9]), 8),
            "^flash_attn_varlen_qkvpacked_func: max_seqlen must be at least the longest sequence, 9",
        ),
        (
            lambda x: fa.flash_attn_varlen_kvpacked_func(x[0], x[0], [0, 9], [0, 9]),
            r"^flash_attn_varlen_kvpacked_func: kv must be a tensor .rows, 2, heads, dim. .got kv=.9, 4, 16..",
        ),
        (
            lambda x: fa.flash_attn_varlen_qkvpacked_func(torch.stack([x[0]] * 3, 1), [0, 9], alibi_slopes=x),
            "^flash_attn_varlen_qkvpacked_func: ALiBi is not supported",
        ),
    ],
)
def test_errors_carry_the_name_that_was_called(call, message):
    with pytest.raises(tangram.InvalidArgument, match=message):
        call(torch.ones(1, 9, 4, 16))


@pytest.mark.parametrize(
    "borders", [[0, 3, 7], [1, 3, 8], [0, 5, 3, 8], [0, 3, 9]], ids=["short", "late", "falling", "long"]
)
def test_compiled_calls_refuse_the_borders_that_others_refuse(borders):
    """Rows behind the last border were attended to by none, and no one said so."""
    q, k, v = torch.randn(8, 2, 16), torch.randn(8, 2, 16), torch.randn(8, 2, 16)

    def step(q, k, v, cu):
        return fa.flash_attn_varlen_func(q, k, v, cu, cu, 8, 8, causal=True)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    good, bad = torch.tensor([0, 3, 8], dtype=torch.int32), torch.tensor(borders, dtype=torch.int32)
    assert torch.equal(compiled(q, k, v, good), step(q, k, v, good))
    messages = []
    for run in (step, compiled):
        with pytest.raises(tangram.InvalidArgument, match="cu_seqlens_q must rise from 0 to the 8 rows") as raised:
            run(q, k, v, bad)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    short = torch.compile(lambda cu: fa.flash_attn_varlen_func(q, k, v, cu, cu, 4, 8), backend="eager", fullgraph=True)
    with pytest.raises(tangram.InvalidArgument, match=r"max_seqlen_q must be at least the longest sequence, 5"):
        short(good)
