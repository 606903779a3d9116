# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on tensors in GPU memory. Needs a Hopper GPU, torch with CUDA; skipped elsewhere."""

import contextlib
import random

import numpy as np
import pytest

from masks import random_typed
from reference import attention, mask_cells, typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import InvalidArgument, Mask, flex_flash_attn_func  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

# Kernels round probabilities, dS and results to 8 or 11 bits of fraction: relative L2 errors of whole tensors, the
# bounds of tests/attn/sm90.
BOUND = {torch.bfloat16: 4 / 512, torch.float16: 8 / 4096}


def operands(seed, rows=24, heads=4, heads_kv=2, dim=64, dim_v=None, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim if dim_v is None else dim_v)]
    return [torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_() for shape in shapes]


def as_double(tensor):
    return tensor.detach().double().cpu().numpy()


def assert_close(got, want, bound, name):
    got = as_double(got)
    assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want) + 1e-3, name


def step(tensors, *ranges, dout=None, **options):
    """out and the gradients, in new leaves."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out, _ = flex_flash_attn_func(*leaves, *ranges, **options)
    out.backward(torch.ones_like(out) if dout is None else dout)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_agree_with_float64(dtype):
    for seed in range(12):
        rng = random.Random(seed)
        ranges = random_typed(rng)
        dim = rng.choice([40, 64, 96, 128, 192, 256])
        q, k, v = operands(seed, heads_kv=rng.choice([1, 2, 4]), dim=dim, dtype=dtype)
        layout = rng.choice([None, "sh", "ssh"])
        shape = (24, 2, 4) if layout == "ssh" else (3, 4)
        sink = torch.randn(shape, device="cuda").requires_grad_() if layout else None
        softcap = rng.choice([0.0, 5.0])
        dout = torch.randn(q.shape).to("cuda", dtype)
        out, meta = flex_flash_attn_func(
            q, k, v, *ranges, sink=sink, sink_layout=layout or "sh", softcap=softcap, return_max_logits=True
        )
        out.backward(dout)
        expected = attention(
            *(as_double(t) for t in (q, k, v)),
            typed_cells(*ranges, 24, 24),
            softcap=softcap,
            sink=None if sink is None else as_double(sink),
            dout=as_double(dout),
        )
        assert_close(out, expected.out, BOUND[dtype], "out")
        np.testing.assert_allclose(as_double(meta.lse), expected.lse, atol=1e-3)
        for name, tensor, want in zip("qkv", (q, k, v), (expected.dq, expected.dk, expected.dv), strict=True):
            # Rows that see few keys have gradients of rounding alone, as large as the bound of one row.
            assert_close(tensor.grad, want, 3 * BOUND[dtype], f"d{name} of seed {seed}")
        if sink is not None:
            assert_close(sink.grad, expected.dsink, 10 * BOUND[dtype], "dsink")


def test_agrees_with_torch_on_a_causal_batch():
    q, k, v = operands(1, rows=1500, heads=8, heads_kv=2, dim=128)
    out = step((q, k, v), Mask.causal(1500))
    leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(0, 1)[None] for t in leaves), is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    expected.backward(torch.ones_like(expected))
    for got, want in zip(out, [expected, *(leaf.grad for leaf in leaves)], strict=True):
        # The gradient of sum() cancels in dq and dk but for rounding: only out and dv are compared relatively.
        assert torch.allclose(got.float(), want, atol=0.03, rtol=0.02)


def test_the_reference_takes_tensors_of_any_device():
    """Densely in float64 on the host, with gradients on the device."""
    q, k, v = operands(3, rows=200)
    sink = torch.randn(1, 4, device="cuda").requires_grad_()
    mask = Mask.sliding_window(200, (40, 3))
    dout = torch.randn(q.shape).to("cuda", torch.bfloat16)
    got = step((q, k, v), mask, dout=dout, sink=sink, backend="reference")
    ours = step((q, k, v), mask, dout=dout, sink=sink)
    assert all(x.is_cuda for x in got) and sink.grad.is_cuda
    for x, want in zip(ours, got, strict=True):
        assert_close(x, as_double(want), 3 * BOUND[torch.bfloat16], "reference")


def test_head_groups_that_see_different_cells():
    q, k, v = operands(4, rows=200)
    masks = [Mask.causal(200), Mask.sliding_window(200, (20, 0))]
    dout = torch.randn(q.shape).to("cuda", torch.bfloat16)
    got = step((q, k, v), masks, dout=dout, deterministic=True)
    for g, mask in enumerate(masks):
        of_q, of_kv = slice(2 * g, 2 * g + 2), slice(g, g + 1)
        parts = [x[:, of].detach().contiguous() for x, of in ((q, of_q), (k, of_kv), (v, of_kv))]
        want = step(parts, mask, dout=dout[:, of_q].contiguous(), deterministic=True)
        for x, one, of in zip(got, want, (of_q, of_q, of_kv, of_kv), strict=True):
            assert torch.equal(x[:, of], one)


@pytest.mark.parametrize("heads, block", [(4, 64), (16, 16)])
def test_blocks_that_each_key_head_chose_are_one_launch(heads, block):
    rows, heads_kv = 512, 4
    q, k, v = operands(8, rows=rows, heads=heads, heads_kv=heads_kv, dim=128)
    generator = torch.Generator().manual_seed(3)
    blocks = rows // block
    indices = torch.stack([torch.randperm(blocks, generator=generator)[:3] for _ in range(heads_kv * blocks)])
    indices = indices.view(heads_kv, blocks, 3).sort(-1, descending=True).values
    indices[:, 1] = -1  # rows that see nothing
    masks = tangram.masks_from_block_indices(rows, rows, block, block, indices.cuda())
    dout = torch.randn(q.shape, generator=generator).to("cuda", torch.bfloat16)
    got = step((q, k, v), masks, dout=dout)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        step((q, k, v), masks, dout=dout)
    names = [event.name for event in trace.events()]
    for kernel in ("sm90::forward_kernel", "backward::backward_kernel"):
        assert not names or sum(kernel in name for name in names) == 1, names  # none where nothing can be traced
    group = heads // heads_kv
    for g, mask in enumerate(masks):
        of_q, of_kv = slice(g * group, (g + 1) * group), slice(g, g + 1)
        given = [as_double(x[:, of]) for x, of in ((q, of_q), (k, of_kv), (v, of_kv))]
        want = attention(*given, mask_cells(mask), dout=as_double(dout[:, of_q]))
        for x, of, name in zip(got, (of_q, of_q, of_kv, of_kv), ("out", "dq", "dk", "dv"), strict=True):
            assert_close(x[:, of], getattr(want, name), 2 * BOUND[torch.bfloat16], name)
    first = step((q, k, v), masks, dout=dout, deterministic=True)
    for _ in range(5):
        assert_equal(step((q, k, v), masks, dout=dout, deterministic=True), first)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch rounds gradients to the tensors' dtype")
def test_gradients_may_be_float32():
    q, k, v = (t.detach().requires_grad_() for t in operands(5, rows=100))
    for x in (q, k, v):
        x.grad_dtype = torch.float32
    mask, dout = Mask.causal(100), torch.randn(q.shape).to("cuda", torch.bfloat16)
    out, _ = flex_flash_attn_func(q, k, v, mask, grad_dtype=torch.float32)
    out.backward(dout)
    rounded = step((q, k, v), mask, dout=dout)[1:]
    for x, want in zip((q, k, v), rounded, strict=True):
        assert x.grad.dtype == torch.float32
        assert not torch.equal(x.grad, x.grad.to(torch.bfloat16).float())
        assert torch.allclose(x.grad, want.float(), rtol=0.02, atol=0.02)


def test_runs_on_the_current_stream():
    q, k, v = operands(2, rows=512)
    mask = Mask.causal(512)
    expected = step((q, k, v), mask, deterministic=True)
    stream = torch.cuda.Stream()
    late = [torch.zeros_like(t) for t in (q, k, v)]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the values come long after the call was enqueued
        for to, value in zip(late, (q, k, v), strict=True):
            to.detach().copy_(value)
        got = step(late, mask, deterministic=True)
    stream.synchronize()
    assert_equal(got, expected)


def test_streams_that_share_a_mask_take_turns_in_its_workspace():
    mask = Mask.causal(2048)
    inputs = [operands(seed, rows=2048) for seed in (3, 4)]
    expected = [step(t, mask, deterministic=True) for t in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        results = []
        for stream, tensors in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(step(tensors, mask, deterministic=True))
        torch.cuda.synchronize()
        for got, want in zip(results, expected, strict=True):
            assert_equal(got, want)


@pytest.mark.parametrize("dims", [(64, 64), (192, 128), (96, 96)], ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break_and_agrees(backend, dims):
    pytest.importorskip("triton") if backend == "inductor" else None
    torch._dynamo.reset()
    ranges = [
        torch.tensor(r, dtype=torch.int32, device="cuda") for r in ([[0, 10], [10, 24]], [[0, 24], [3, 20]], [1, 3])
    ]

    def loss_of(q, k, v):
        out, meta = flex_flash_attn_func(q * 2, k, v, *ranges, softcap=3.0, deterministic=True)
        return out.float().square().sum(), meta.lse

    eager, compiled = (operands(5, dim=dims[0], dim_v=dims[1]) for _ in range(2))
    loss, lse = loss_of(*eager)
    loss.backward()
    compiled_loss, compiled_lse = torch.compile(loss_of, backend=backend, fullgraph=True)(*compiled)
    compiled_loss.backward()
    assert torch.allclose(lse, compiled_lse, atol=1e-4) and torch.allclose(loss, compiled_loss, rtol=1e-2)
    for a, b in zip(eager, compiled, strict=True):
        assert torch.allclose(a.grad.float(), b.grad.float(), atol=0.05, rtol=0.05)


def test_the_operator_keeps_the_rules_of_operators():
    q, k, v = operands(6)
    ranges = [torch.tensor(r, device="cuda") for r in ([[0, 24]], [[0, 24]], [1])]
    flex_flash_attn_func(q, k, v, *ranges)
    schema = torch.ops.tangram.flex_attn.default._schema.arguments
    given = {
        "q": q,
        "k": k,
        "v": v,
        "q_ranges": ranges[0],
        "k_ranges": ranges[1],
        "types": ranges[2],
        "flat": [],
        "mask": -1,
    }
    given |= {"sink": None, "sink_layout": "sh", "scale": None, "softcap": 0.0, "deterministic": True, "sm_margin": 0}
    given |= {"backend": "", "call": -1, "out_dtype": None, "max_logits": True}
    torch.library.opcheck(torch.ops.tangram.flex_attn.default, tuple(given[a.name] for a in schema))


def test_float32_results_have_gradients():
    """The gradient of a float32 output comes in float32, which no kernel reads: it is rounded, here without loss."""
    mask = Mask.causal(300)
    plain, wide = operands(9, rows=300), operands(9, rows=300)
    flex_flash_attn_func(*plain, mask, deterministic=True)[0].float().sum().backward()
    out, _ = flex_flash_attn_func(*wide, mask, deterministic=True, out_dtype=torch.float32)
    assert out.dtype is torch.float32
    out.sum().backward()
    for a, b in zip(plain, wide, strict=True):
        assert_close(b.grad, as_double(a.grad), BOUND[torch.bfloat16], "gradient")


def test_checkpointing_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    mask = Mask.sliding_window(300, (50, 0))
    plain, saved = operands(7, rows=300), operands(7, rows=300)
    flex_flash_attn_func(*plain, mask, deterministic=True)[0].square().sum().backward()
    again = checkpoint(lambda *t: flex_flash_attn_func(*t, mask, deterministic=True)[0], *saved, use_reentrant=False)
    again.square().sum().backward()
    for a, b in zip(plain, saved, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_a_step_is_captured_in_a_cuda_graph_and_replayed_on_new_values():
    mask = Mask.causal(400)
    static = [t.detach().requires_grad_() for t in operands(8, rows=400)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            out, _ = flex_flash_attn_func(*static, mask, deterministic=True)
            torch.autograd.grad(out.square().sum(), static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = flex_flash_attn_func(*static, mask, deterministic=True)
        grads = torch.autograd.grad(out.square().sum(), static)
    for seed in (9, 10):
        fresh = operands(seed, rows=400)
        with torch.no_grad():
            for to, value in zip(static, fresh, strict=True):
                to.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        expected, _ = flex_flash_attn_func(*fresh, mask, deterministic=True)
        assert torch.equal(out, expected)
        assert_equal(grads, torch.autograd.grad(expected.square().sum(), fresh))


def test_new_ranges_and_masks_are_refused_while_a_graph_is_captured():
    q, k, v = operands(11)
    flex_flash_attn_func(q, k, v, Mask.causal(24))
    new = torch.tensor([[0, 17]], dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    for ranges, text in (((new, new), "ranges in device memory"), (([(0, 18)], [(0, 18)]), "a mask")):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), pytest.raises(InvalidArgument, match=f"{text} must be seen once before"):
            flex_flash_attn_func(q, k, v, *ranges)


def test_device_ranges_are_copied_at_first_sight_only_and_changes_are_seen():
    q, k, v = operands(12)
    table = torch.tensor([[0, 24], [0, 12]], dtype=torch.int32, device="cuda")
    flex_flash_attn_func(q, k, v, table[:1], table[:1])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):  # new views of known ranges: nothing is copied
            flex_flash_attn_func(q, k, v, table[:1], table[:1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (flex_flash_attn_func(q, k, v, table[1:], table[1:])[0][12:] == 0).all()
    table[0, 1] = 6
    assert (flex_flash_attn_func(q, k, v, table[:1], table[:1])[0][6:] == 0).all()
    with torch.inference_mode():
        unversioned = torch.tensor([[0, 9]], dtype=torch.int32, device="cuda")
        for end in (9, 5):
            unversioned[0, 1] = end
            assert (flex_flash_attn_func(q, k, v, unversioned, unversioned)[0][end:] == 0).all()


def test_layouts_that_kernels_cannot_read_are_copied_and_never_wrong():
    mask = Mask.causal(24)
    packed = torch.randn(24, 3, 4, 64, device="cuda").bfloat16()
    parts = [packed[:, i].clone() for i in range(3)]
    expected = step(parts, mask, deterministic=True)
    assert_equal(step([packed[:, i] for i in range(3)], mask, deterministic=True), expected)
    # Rows of 64 + 1 elements: a stride of 130 bytes.
    odd = [torch.nn.functional.pad(p, (0, 1))[..., :64] for p in parts]
    assert odd[0].stride(1) == 65
    assert_equal(step(odd, mask, deterministic=True), expected)
    # Contiguous, but two bytes off.
    memory = torch.empty(24 * 4 * 64 + 1, device="cuda", dtype=torch.bfloat16)
    shifted = memory[1:].view(24, 4, 64)
    shifted.copy_(parts[0])
    assert shifted.is_contiguous() and shifted.data_ptr() % 16 == 2
    assert_equal(step([shifted, *parts[1:]], mask, deterministic=True), expected)
    transposed = parts[0].transpose(0, 2).contiguous().transpose(0, 2)
    assert_equal(step([transposed, *parts[1:]], mask, deterministic=True), expected)
    # sum() sends a gradient whose strides are all zero.
    leaf = parts[0].clone().requires_grad_()
    flex_flash_attn_func(leaf, *parts[1:], mask, deterministic=True)[0].sum().backward()
    assert torch.equal(leaf.grad, expected[1])


def test_wrong_input_is_named():
    q, k, v = operands(13)
    mask = Mask.causal(24)
    with pytest.raises(InvalidArgument, match="dtype must be bfloat16 or float16"):
        flex_flash_attn_func(q.float(), k.float(), v.float(), mask, backend="sm90")
    with pytest.raises(InvalidArgument, match="must lie on one device"):
        flex_flash_attn_func(q, k.cpu(), v, mask)
    with pytest.raises(InvalidArgument, match="must be multiples of 8 up to 256"):
        flex_flash_attn_func(*(t[..., :36].contiguous() for t in (q, k, v)), mask)
    with pytest.raises(InvalidArgument, match="must lie in host memory, where the backend computes"):
        flex_flash_attn_func(q, k, v, mask, backend="cpu")
    with pytest.raises(InvalidArgument, match="must lie in CUDA memory, where the backend computes"):
        flex_flash_attn_func(q.cpu(), k.cpu(), v.cpu(), mask, backend="sm90")


@pytest.mark.parametrize("backend", [None, "reference"])
def test_float32_is_computed_by_plain_kernels_and_said_to_be_slow(backend):
    q, k, v = (x.detach().float().requires_grad_() for x in operands(15, dim=40))
    dout = torch.randn(24, 4, 40, device="cuda")
    warns = pytest.warns(UserWarning, match="float32 is computed by plain kernels .backend sm80., which is slow")
    with contextlib.nullcontext() if backend else warns:
        out, meta = flex_flash_attn_func(q, k, v, Mask.causal(24), backend=backend)
    out.backward(dout)
    want = attention(*map(as_double, (q, k, v)), np.tril(np.ones((24, 24), bool)), dout=as_double(dout))
    assert out.is_cuda and meta.lse.is_cuda and out.dtype == torch.float32
    # float32: sums of at most 24 products of values around 1.
    for got, exact in ((out, want.out), (q.grad, want.dq), (k.grad, want.dk), (v.grad, want.dv)):
        np.testing.assert_allclose(as_double(got), exact, atol=1e-4)


def test_flash_attention_by_its_own_functions():
    from tangram import flash_attn as fa

    q, k, v = (x.detach().requires_grad_() for x in torch.randn(3, 2, 40, 4, 64, device="cuda").bfloat16())
    sink = torch.randn(4, device="cuda").requires_grad_()
    out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, window_size=(9, 0), sink=sink, return_attn_probs=True)
    cu = torch.tensor([0, 40, 80], dtype=torch.int32, device="cuda")
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    packed = fa.flash_attn_varlen_func(*flat, cu, cu, 40, 40, causal=True, window_size=(9, 0), sink=sink)
    assert torch.equal(packed.view(out.shape), out) and lse.shape == (2, 4, 40)
    dout = torch.randn_like(out)
    out.backward(dout)
    i, j = np.arange(40)[:, None], np.arange(40)[None, :]
    sinks = as_double(sink)[None]
    for b in range(2):
        given = [as_double(x[b]) for x in (q, k, v)]
        want = attention(*given, (j <= i) & (i - j <= 9), sink=sinks, dout=as_double(dout[b]))
        np.testing.assert_allclose(as_double(lse[b]).T, want.lse, atol=1e-3)
        for name, got, exact in (("out", out, want.out), ("dq", q.grad, want.dq), ("dk", k.grad, want.dk)):
            assert_close(got[b], exact, BOUND[torch.bfloat16], name)


def test_strides_of_any_kind_give_the_same_bits():
    from strides_test import COUNT, strided

    mask = Mask.varlen([0, 9, 24])
    for number in range(min(COUNT, 2000)):
        rng = random.Random(number)
        tensors = [x.detach() for x in operands(number)]
        dout = torch.randn(24, 4, 64, device="cuda").bfloat16()
        views = [strided(rng, x) for x in (*tensors, dout)]
        exact = [x.contiguous() for x in views]
        want = step(exact[:3], mask, dout=exact[3], deterministic=True)
        got = step(views[:3], mask, dout=views[3], deterministic=True)
        assert_equal(got, want)


def test_batches_and_index_lists_in_gpu_memory():
    from tangram import magi

    q, k, v = torch.randn(3, 2, 32, 4, 64, device="cuda").bfloat16()
    out, meta = flex_flash_attn_func(q, k, v, Mask.causal(32), layout="bshd")
    one, _ = flex_flash_attn_func(q[1], k[1], v[1], Mask.causal(32))
    assert_close(out[1], as_double(one), BOUND[torch.bfloat16], "out")
    assert meta.lse.shape == (2, 32, 4)
    keys = torch.stack([torch.randperm(32, device="cuda")[:8] for _ in range(32 * 4)]).view(32, 4, 8).int()
    sparse, _ = magi.flex_flash_attn_func(q[0], k[0], v[0], index_attn_indices=keys, index_attn_values="tokens")
    for head in range(4):
        cells = np.zeros((32, 32), bool)
        np.put_along_axis(cells, keys[:, head].cpu().numpy().astype(np.int64), True, axis=1)
        given = [as_double(x[0][:, head : head + 1]) for x in (q, k, v)]
        want = attention(*given, cells).out
        assert_close(sparse[:, head : head + 1], want, BOUND[torch.bfloat16], "sparse")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_of_any_gpu_whatever_is_current():
    mask = Mask.causal(24)
    tensors = operands(14)
    expected = step(tensors, mask, deterministic=True)
    elsewhere = step([t.detach().to("cuda:1") for t in tensors], mask, deterministic=True)
    assert torch.cuda.current_device() == 0
    assert_equal([t.to("cuda:0") for t in elsewhere], expected)
