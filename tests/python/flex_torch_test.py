# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on torch tensors: gradients, compilation, checkpointing, what is refused."""

import random
import subprocess
import sys

import numpy as np
import pytest

from masks import random_typed
from reference import attention, mask_cells, typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import InvalidArgument, Mask, _core, flex_flash_attn_func  # noqa: E402
from tangram._core import are_plain  # noqa: E402
from tangram._torch_pass import _rows  # noqa: E402


def operands(seed, rows=24, heads=4, heads_kv=2, dim=16, dim_v=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def grads(tensors):
    return [t.grad.double().numpy() for t in tensors]


def test_gradients_agree_with_float64():
    for seed in range(20):
        rng = random.Random(seed)
        ranges = random_typed(rng)
        q, k, v = operands(seed, heads_kv=rng.choice([1, 2, 4]), dim_v=rng.choice([8, 16]))
        layout = rng.choice([None, "sh", "ssh"])
        sink = torch.randn((24, 2, 4) if layout == "ssh" else (3, 4)).requires_grad_() if layout else None
        softcap = rng.choice([0.0, 1.5])
        dout = torch.randn(24, 4, v.shape[2])
        out, meta = flex_flash_attn_func(q, k, v, *ranges, sink=sink, sink_layout=layout or "sh", softcap=softcap)
        out.backward(dout)
        expected = attention(
            *(t.detach().numpy() for t in (q, k, v)),
            typed_cells(*ranges, 24, 24),
            softcap=softcap,
            sink=None if sink is None else sink.detach().numpy(),
            dout=dout.numpy(),
        )
        # float32 sums of at most 24 products of values around 1.
        np.testing.assert_allclose(out.detach().numpy(), expected.out, atol=2e-5)
        np.testing.assert_allclose(meta.lse.numpy(), expected.lse, atol=2e-5)
        for got, want in zip(grads((q, k, v)), (expected.dq, expected.dk, expected.dv), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)
        if sink is not None:
            np.testing.assert_allclose(sink.grad.numpy(), expected.dsink, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_half_precision(dtype, out_dtype):
    q, k, v = operands(5, dtype=dtype)
    mask = Mask.causal(24)
    dout = torch.randn(24, 4, 16).to(dtype)
    out, _ = flex_flash_attn_func(q, k, v, mask, out_dtype=out_dtype)
    assert out.dtype == (out_dtype or dtype)
    out.backward(dout.to(out.dtype))
    expected = attention(
        *(t.detach().double().numpy() for t in (q, k, v)), mask_cells(mask), dout=dout.double().numpy()
    )
    # 8 bits of fraction in values and gradients up to 4.
    np.testing.assert_allclose(out.detach().double().numpy(), expected.out, atol=0.03)
    for got, want in zip(grads((q, k, v)), (expected.dq, expected.dk, expected.dv), strict=True):
        np.testing.assert_allclose(got, want, atol=0.06)
    assert q.grad.dtype == dtype


def test_compiles_without_a_graph_break_and_agrees():
    ranges = ([(0, 10), (10, 24)], [(0, 24), (3, 20)], [1, 3])
    tensors = tuple(torch.tensor(r, dtype=torch.int32) for r in ranges)
    sink = torch.randn(2, 4).requires_grad_()
    for given in (ranges, tensors):

        def step(q, k, v, sink, given=given):
            out, meta = flex_flash_attn_func(q * 2, k, v, *given, sink=sink, softcap=3.0, return_max_logits=True)
            return out.square().sum() + meta.max_logits.detach().sum(), meta.lse

        eager, compiled = operands(2), operands(2)
        loss, lse = step(*eager, sink)
        loss.backward()
        eager_dsink, sink.grad = sink.grad, None
        compiled_loss, compiled_lse = torch.compile(step, backend="aot_eager", fullgraph=True)(*compiled, sink)
        compiled_loss.backward()
        assert torch.equal(lse, compiled_lse) and torch.allclose(loss, compiled_loss)
        for a, b in zip(eager, compiled, strict=True):
            assert torch.allclose(a.grad, b.grad, atol=1e-6)
        assert torch.allclose(eager_dsink, sink.grad, atol=1e-6)
        sink.grad = None


# Head dims of q and k, and of v: those that the kernels of a GPU are compiled for, and one between them.
HEAD_DIMS = [(192, 128), (96, 96), (80, 80), (32, 32), (256, 256)]


def loss_of_step(q, k, v):
    out, meta = flex_flash_attn_func(q * 2, k, v, [(0, 10), (10, 24)], [(0, 24), (3, 20)], [1, 3], softcap=3.0)
    return out.square().sum(), out, meta.lse


def check_compiled_step(compiled, dims):
    results = []
    for run in (loss_of_step, compiled):
        tensors = operands(2, dim=dims[0], dim_v=dims[1])
        loss, out, lse = run(*tensors)
        assert out.shape == (24, 4, dims[1])
        loss.backward()
        results.append((loss, out, lse, *(t.grad for t in tensors)))
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", HEAD_DIMS, ids=str)
def test_head_dims_compile_without_a_graph_break(dims):
    torch._dynamo.reset()
    check_compiled_step(torch.compile(loss_of_step, backend="aot_eager", fullgraph=True, dynamic=False), dims)


def test_a_compiled_function_takes_all_head_dims_in_turn():
    """A graph for the first, and one for all others, in which they are symbols."""
    torch._dynamo.reset()
    compiled_steps = 0

    def count(graph, inputs):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    compiled = torch.compile(loss_of_step, backend=count, fullgraph=True)
    for dims in HEAD_DIMS:
        check_compiled_step(compiled, dims)
    assert compiled_steps == 2


def test_a_mask_is_a_constant_of_a_compiled_graph():
    compiled_steps = 0

    def count(graph, inputs):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    @torch.compile(backend=count, fullgraph=True)
    def step(q, k, v, mask):
        out, meta = flex_flash_attn_func(q * 2, k, v, mask, softcap=3.0)
        return out.square().sum(), meta.lse

    masks = [Mask.sliding_window(24, (5, 0)), Mask.causal(24), Mask.sliding_window(24, (5, 0))]
    for mask in masks:
        eager, compiled = operands(2), operands(2)
        out, meta = flex_flash_attn_func(eager[0] * 2, *eager[1:], mask, softcap=3.0)
        out.square().sum().backward()
        loss, lse = step(*compiled, mask)
        loss.backward()
        assert torch.equal(lse, meta.lse) and torch.allclose(loss, out.square().sum())
        for a, b in zip(eager, compiled, strict=True):
            assert torch.allclose(a.grad, b.grad, atol=1e-6)
    # Equal masks share a graph, others get their own.
    assert compiled_steps == 2


def test_a_mask_compiles_with_every_option():
    mask = Mask.causal(24)

    def step(q, k, v, sink):
        options = {"softmax_scale": 0.3, "out_dtype": torch.float32, "return_max_logits": True, "backend": "reference"}
        out, meta = flex_flash_attn_func(q, k, v, mask, sink=sink, **options)
        return out, meta.max_logits

    grads = []
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        tensors = [*operands(2, dtype=torch.float16), torch.ones(2, 4).requires_grad_()]
        out, peaks = run(*tensors)
        assert out.dtype == torch.float32
        (out.square().sum()).backward()
        grads.append([peaks, *(t.grad for t in tensors)])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    with pytest.raises(Exception, match="softmax_scale must be finite and positive"):
        torch.compile(lambda *t: flex_flash_attn_func(*t, Mask.causal(24), softmax_scale=0.0)[0], backend="eager")(
            *operands(2)
        )


def test_the_operator_keeps_the_rules_of_operators():
    q, k, v = operands(4)
    ranges = [torch.tensor([[0, 24]]), torch.tensor([[0, 24]]), torch.tensor([1])]
    flex_flash_attn_func(q, k, v, *ranges)
    arguments = (q, k, v, None, *ranges, [], -1, "sh", None, 0.0, False, 0, "", -1, None, True)
    torch.library.opcheck(torch.ops.tangram.flex_attn.default, arguments)


def test_checkpointing_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    mask = Mask.sliding_window(24, (5, 0))
    plain, saved = operands(3), operands(3)
    flex_flash_attn_func(*plain, mask)[0].square().sum().backward()
    checkpoint(lambda *t: flex_flash_attn_func(*t, mask)[0], *saved, use_reentrant=False).square().sum().backward()
    for a, b in zip(plain, saved, strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_are_refused(compiled):
    call = flex_flash_attn_func
    if compiled:
        call = torch.compile(lambda q, k, v, m: flex_flash_attn_func(q, k, v, m), backend="eager", fullgraph=True)
    # Also where the incoming gradient is a constant, and the rest of the loss would be differentiated without a word.
    for loss in (lambda out: out.square().sum(), lambda out: out.sum()):
        q, k, v = operands(0)
        out, _ = call(q, k, v, Mask.causal(24))
        dq, dv = torch.autograd.grad(loss(out), (q, v), create_graph=True)
        with pytest.raises(InvalidArgument, match="second derivatives are not supported"):
            (dq.square().sum() + (q * v.repeat_interleave(2, 1)).sum()).backward()
        with pytest.raises(InvalidArgument, match="second derivatives are not supported"):
            dv.sum().backward()


@pytest.mark.parametrize("function", ["flex", "flash_attn", "magi"])
def test_second_derivatives_by_one_input_are_neither_unused_nor_zero(function):
    """What asks for the derivative by an input, as a Hessian does, was told that it is unused, or got zeros."""
    from tangram import flash_attn, magi

    def call(q, k, v, sink):
        if function == "flash_attn":
            return flash_attn.flash_attn_func(q[None], k[None], v[None], causal=True, sink=sink)[0]
        if function == "magi":
            return magi.flex_flash_attn_func(q, k, v, [(0, 24)], [(0, 24)], [1], sink=sink)[0]
        return flex_flash_attn_func(q, k, v, Mask.causal(24), sink=sink)[0]

    inputs = (*operands(0), torch.zeros(1, 4, requires_grad=True))
    dout = torch.ones(24, 4, inputs[2].shape[2], requires_grad=True)
    grads = torch.autograd.grad(call(*inputs), inputs, dout, create_graph=True)
    for grad in grads:
        for by in (*inputs, dout):
            with pytest.raises(InvalidArgument, match="second derivatives are not supported"):
                torch.autograd.grad(grad.sum(), by, retain_graph=True, allow_unused=True)
    with pytest.raises(InvalidArgument, match="second derivatives are not supported"):
        torch.autograd.functional.hessian(lambda x: call(x, *inputs[1:]).square().sum(), inputs[0])


def test_transforms_of_functions_are_refused():
    q, k, v = (t.detach() for t in operands(0))

    def call(x):
        return flex_flash_attn_func(x, k, v, Mask.causal(24))[0]

    for transform in (
        lambda: torch.vmap(call)(torch.stack([q, q])),
        lambda: torch.func.grad(lambda x: call(x).sum())(q),
        lambda: torch.func.jvp(call, (q,), (q,)),
    ):
        with pytest.raises(InvalidArgument, match="transforms of torch.func are not supported"):
            transform()


def test_tensors_without_rows_and_strides_that_lead_nowhere():
    q, k, v = operands(0)
    empty = torch.empty(0, 4, 16, requires_grad=True)
    out, meta = flex_flash_attn_func(empty, k, v, [], [])
    out.sum().backward()
    assert (
        out.shape == (0, 4, 16) and meta.lse.shape == (0, 4) and (k.grad == 0).all() and empty.grad.shape == (0, 4, 16)
    )
    # One head: its stride is that of a whole tensor, and nothing follows it.
    one = [torch.randn(1, 24, 16).transpose(0, 1).requires_grad_() for _ in range(3)]
    assert one[0].is_contiguous() and one[0].stride() == (16, 384, 1)
    same = [t.detach().clone(memory_format=torch.contiguous_format).view(24, 1, 16).requires_grad_() for t in one]
    for tensors in (one, same):
        flex_flash_attn_func(*tensors, Mask.causal(24))[0].square().sum().backward()
    for a, b in zip(one, same, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_quick_look_at_tensors_agrees_with_the_careful_one():
    """are_plain lets a call skip what it would otherwise ask torch: it may never say yes where a copy is needed."""
    mask, (q, k, v) = tangram.Mask.causal(4), (torch.randn(4, h, 8) for h in (4, 2, 2))
    tangram.flex_flash_attn_func(q, k, v, mask)  # by which it knows torch's tensors
    assert are_plain(q, k, v)
    others = (None, np.zeros((4, 2, 8)), k.half(), k[:3], k[0], torch.nn.Parameter(k), k.double(), k.to("meta"))
    for other in others:
        assert not are_plain(q, other, v) and not are_plain(q, k, other), other
    assert not are_plain(q, k[..., :7], v) and are_plain(q, k, v[..., :7].contiguous())
    assert not are_plain(q[:, :3], k, v)  # three heads over two
    memory, generator, agreed = torch.randn(4096), random.Random(1), 0
    for _ in range(2000):
        shape = [generator.randint(1, 4) for _ in range(3)]
        stride = [generator.choice((0, 1, 2, 3, 4, 6, 8, 12, 16, 24)) for _ in range(3)]
        x = memory.as_strided(shape, stride)
        assert are_plain(x, x, x) == (_rows(x) is x), (shape, stride)
        agreed += are_plain(x, x, x)
    assert 50 < agreed < 1000


def test_views_and_gradients_of_any_stride():
    packed = torch.randn(24, 3, 4, 16)
    mask = Mask.causal(24)
    whole = packed.clone().requires_grad_()
    out, _ = flex_flash_attn_func(whole[:, 0], whole[:, 1], whole[:, 2], mask)
    parts = [packed[:, i].clone().requires_grad_() for i in range(3)]
    expected, _ = flex_flash_attn_func(*parts, mask)
    assert torch.equal(out, expected)
    # sum() sends a gradient whose strides are all zero.
    out.sum().backward()
    expected.backward(torch.ones_like(expected))
    assert torch.equal(whole.grad, torch.stack([p.grad for p in parts], dim=1))
    transposed = packed[:, 0].transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(flex_flash_attn_func(transposed, packed[:, 1], packed[:, 2], mask)[0], expected)
    shared = packed[:, 1, :1].expand(24, 4, 16)
    wanted, _ = flex_flash_attn_func(packed[:, 0], shared.contiguous(), shared.contiguous(), mask)
    assert torch.equal(flex_flash_attn_func(packed[:, 0], shared, shared, mask)[0], wanted)


def test_tensors_are_read_alike_with_and_without_the_functions_of_dlpack():
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        pytest.skip("this PyTorch has no such functions")
    packed = torch.randn(25, 3, 4, 16)
    sink = torch.randn(2, 4)

    def results():
        q, k, v = (packed[1:, i].detach().requires_grad_() for i in range(3))
        out, meta = flex_flash_attn_func(q, k, v, Mask.causal(24), sink=torch.nn.Parameter(sink))
        return [out, meta.lse, *torch.autograd.grad(out.sum(), (q, k, v))]

    def refusals():
        texts = []
        for wrong in (packed[:, 0].int(), packed[:, 0].to("meta"), packed):
            with pytest.raises((InvalidArgument, RuntimeError)) as error:
                _core.FlexAttention(
                    Mask.causal(25), tangram.HeadConfig(4, 4, 16, 16, "float32"), tangram.Backend("cpu")
                ).forward(wrong, packed[:, 1], packed[:, 2], packed[:, 0], packed[:, 0, :, 0])
            texts.append(str(error.value))
        return texts

    fast, fast_refusals = results(), refusals()
    try:
        _core.register_torch_exchange(None)
        slow, slow_refusals = results(), refusals()
    finally:
        _core.register_torch_exchange(exchange)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert fast_refusals == slow_refusals and len(set(fast_refusals)) == 3, fast_refusals


def test_ranges_that_change_in_place_or_are_new_are_seen():
    q, k, v = operands(3)
    ranges = torch.tensor([[0, 24]], dtype=torch.int32)
    flex_flash_attn_func(q, k, v, ranges, ranges)
    ranges[0, 1] = 12
    assert (flex_flash_attn_func(q, k, v, ranges, ranges)[0][12:] == 0).all()
    for end in range(1, 24):  # new tensors, many in the memory of those before
        fresh = torch.tensor([[0, end]])
        assert (flex_flash_attn_func(q, k, v, fresh, fresh)[0][end:] == 0).all()
        assert (flex_flash_attn_func(q, k, v, fresh, fresh)[0][:end] != 0).all()


def test_masks_that_come_and_go_are_told_apart():
    q, k, v = operands(3)
    for i in range(600):  # more than are remembered, many in the memory of those before
        end = i % 23 + 1
        out, _ = flex_flash_attn_func(q, k, v, Mask(24, 24, Mask.causal(end).slices))
        assert (out[end:] == 0).all() and (out[:end] != 0).all()


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch rounds gradients to the tensors' dtype")
def test_gradients_may_be_float32():
    """Gradients of 16-bit tensors, where torch lets their grad be float32."""
    exact = [t.detach().to(torch.bfloat16).float().requires_grad_() for t in operands(2)]
    flex_flash_attn_func(*exact, Mask.causal(24))[0].sum().backward()
    errors = []
    for dtype in (torch.float32, None):
        leaves = [t.detach().to(torch.bfloat16).requires_grad_() for t in exact]
        for leaf in leaves:
            leaf.grad_dtype = torch.float32
        out, _ = flex_flash_attn_func(*leaves, Mask.causal(24), out_dtype=torch.float32, grad_dtype=dtype)
        out.sum().backward()
        assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)
        errors.append((leaves[2].grad - exact[2].grad).abs().max().item())
    assert errors[0] < errors[1] / 4, errors
    with pytest.raises(InvalidArgument, match="grad_dtype must be that of q or torch.float32"):
        flex_flash_attn_func(*exact, Mask.causal(24), grad_dtype=torch.float16)


def test_wrong_input_is_named():
    q, k, v = operands(0)
    with pytest.raises(InvalidArgument, match="must share one dtype of float32, bfloat16, float16"):
        flex_flash_attn_func(q, k.to(torch.bfloat16), v, Mask.causal(24))
    with pytest.raises(InvalidArgument, match="must lie on one device"):
        flex_flash_attn_func(q, k.to("meta"), v, Mask.causal(24))
    with pytest.raises(InvalidArgument, match=r'must have shape \[rows, heads, dim\]; pass layout="bshd"'):
        flex_flash_attn_func(q[None], k, v, Mask.causal(24))
    with pytest.raises(InvalidArgument, match=r"softmax_scale must be a number or None \(got Tensor\)"):
        flex_flash_attn_func(q, k, v, Mask.causal(24), softmax_scale=torch.tensor(0.5))
    for wrong in (torch.int32, "float32"):
        with pytest.raises(InvalidArgument, match="out_dtype must be that of q or torch.float32"):
            flex_flash_attn_func(q, k, v, Mask.causal(24), out_dtype=wrong)
    with pytest.raises(InvalidArgument, match="sm_margin must not be negative"):
        flex_flash_attn_func(q, k, v, Mask.causal(24), sm_margin=-1)
    with pytest.raises(InvalidArgument, match=r"attn_type_map lists of integers or integer arrays \(got 1\)"):
        flex_flash_attn_func(q, k, v, [(0, 24)], [(0, 24)], 1)


def test_the_first_call_over_torch_may_be_of_the_extension_itself():
    # It was refused: "q must be float32, bfloat16 or float16 (got torch.float32)".
    code = """
import torch, tangram
q = torch.arange(128).reshape(8, 1, 16) / 128
out, lse = torch.empty_like(q), torch.empty(8, 1)
heads = tangram.HeadConfig(1, 1, 16, 16, "float32")
tangram.FlexAttention(tangram.Mask.causal(8), heads, tangram.Backend("cpu")).forward(q, q, q, out, lse)
# Row 0 sees one key, so its result is that value, rounded: p / p is not always one in float32.
assert torch.allclose(out[0], q[0], rtol=1e-6, atol=0), (out[0], q[0])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


class _WithMask(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = Mask.causal(24)

    def forward(self, q, k, v):
        return flex_flash_attn_func(q, k, v, self.mask)[0]


_MASK = Mask.causal(24)


def test_masks_that_a_whole_graph_may_hold():
    """Arguments, globals, closures and attributes; one that is made inside is a call that torch cannot trace."""
    q, k, v = torch.randn(3, 24, 2, 16).unbind(0)
    of_closure = Mask.causal(24)
    want, _ = flex_flash_attn_func(q, k, v, _MASK)

    def of_global(q, k, v):
        return flex_flash_attn_func(q, k, v, _MASK)[0]

    def made_inside(q, k, v):
        return flex_flash_attn_func(q, k, v, Mask.causal(24))[0]

    for function in (of_global, lambda q, k, v: flex_flash_attn_func(q, k, v, of_closure)[0], _WithMask()):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(q, k, v), want)
    assert torch.equal(torch.compile(made_inside, backend="eager")(q, k, v), want)  # in two graphs
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="nb_func"):
        torch.compile(made_inside, backend="eager", fullgraph=True)(q, k, v)


def test_batches_of_gradients_are_refused_in_words():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 24, 2, 16).unbind(0))
    out, _ = flex_flash_attn_func(q, k, v, _MASK)
    douts = torch.ones(3, *out.shape)
    for ask in (
        lambda: torch.autograd.grad(out, q, douts, is_grads_batched=True),
        lambda: torch.autograd.functional.jacobian(
            lambda x: flex_flash_attn_func(x, k, v, _MASK)[0], q.detach(), vectorize=True
        ),
        lambda: torch.autograd.grad(
            tangram.token_attn_func(q, k, v, torch.zeros(24, 2, 1, dtype=torch.int32))[0],
            q,
            douts,
            is_grads_batched=True,
        ),
    ):
        with pytest.raises(InvalidArgument, match="_attn_func: batched gradients are not supported: call torch.autogr"):
            ask()
    (again,) = torch.autograd.grad(out, q, douts[0])
    assert again.shape == q.shape
