# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that keep attention: passes are counted, gradients are those without checkpoints, bit for bit."""

import functools
import gc
import os
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import tangram  # noqa: E402
from ranks.start import run_script  # noqa: E402
from tangram import InvalidArgument, Mask, _watched, checkpointing, flash_attn  # noqa: E402
from tangram.magi import flex_flash_attn_func as magi_flex_flash_attn_func  # noqa: E402

ROWS, HEADS, HEADS_KV, DIM = 48, 4, 2, 16
MASK = Mask.varlen([0, 10, 31, ROWS], causal=True)


def flex(q, k, v, sink):
    out, meta = tangram.flex_flash_attn_func(q, k, v, MASK, sink=sink, softcap=3.0, return_max_logits=True)
    return out + meta.lse[..., None].detach() + meta.max_logits[:, None].detach()


def flash(q, k, v, sink):
    return flash_attn.flash_attn_func(q[None], k[None], v[None], causal=True, sink=sink)[0]


def packed(q, k, v, sink):
    borders = torch.tensor([0, 10, 31, ROWS], dtype=torch.int32)
    return flash_attn.flash_attn_varlen_func(q, k, v, borders, borders, 21, 21, causal=True, sink=sink)


def magi(q, k, v, _):
    ranges = torch.tensor([[0, 10], [10, ROWS]], dtype=torch.int32)
    return magi_flex_flash_attn_func(q, k, v, ranges, ranges, torch.tensor([1, 0], dtype=torch.int32))[0]


def tokens(q, k, v, _):
    lists = torch.arange(ROWS)[:, None, None] - torch.arange(5)
    return tangram.token_attn_func(q, k, v, lists.clamp(min=-1).repeat(1, HEADS_KV, 1).int())[0]


def groups(q, k, v, _):
    return tangram.flex_flash_attn_func(q, k, v, [MASK, Mask.causal(ROWS)])[0]


class Layer(torch.nn.Module):
    """Attention twice, with dropout around it."""

    def __init__(self, attend=flex):
        super().__init__()
        width = HEADS * DIM
        self.attend = attend
        self.qkv = torch.nn.Linear(width, (HEADS + 2 * HEADS_KV) * DIM)
        self.out = torch.nn.Linear(width, width)
        self.sink = torch.nn.Parameter(torch.randn(2, HEADS))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for _ in range(2):
            q, k, v = self.qkv(x).view(ROWS, -1, DIM).split([HEADS, HEADS_KV, HEADS_KV], 1)
            attended = self.attend(q, k, v, self.sink).reshape(ROWS, -1)
            x = x + torch.nn.functional.dropout(self.out(attended), 0.3)
        return torch.nn.functional.gelu(x)


def plain(layer, x):
    return layer(x)


def by_policy(layer, x, **options):
    return checkpoint(layer, x, use_reentrant=False, context_fn=tangram.checkpoint_policy(**options))


def by_list(layer, x):
    context = by_operators(list(checkpointing.OPERATORS))
    return checkpoint(layer, x, use_reentrant=False, context_fn=context)


def by_operators(operators):
    return lambda: create_selective_checkpoint_contexts(operators)


def beside_a_policy(layer, x):
    def policy(ctx, operator, *args, **kwargs):
        return CheckpointPolicy.PREFER_SAVE if operator == torch.ops.aten.addmm.default else False

    return by_policy(layer, x, policy=policy)


def beside_a_list(layer, x):
    return by_policy(layer, x, policy=[torch.ops.aten.addmm.default])


def kept(layer, x):
    return checkpoint(tangram.keep_attention(layer), x, use_reentrant=False)


def kept_reentrant(layer, x):
    return checkpoint(tangram.keep_attention(layer), x, use_reentrant=True)


def kept_offloaded(layer, x):
    with torch.autograd.graph.save_on_cpu():
        return kept_reentrant(layer, x)


def kept_alone(layer, x):
    return tangram.keep_attention(layer)(x)


class MegatronCheckpoint(torch.autograd.Function):
    """What Megatron's and DeepSpeed's checkpoints do: a reentrant one with arguments that they may copy."""

    @staticmethod
    def forward(ctx, function, *args):
        ctx.function, ctx.state = function, torch.get_rng_state()
        with torch.no_grad():
            outputs = function(*args)
        ctx.save_for_backward(*(x.clone() for x in args))
        return outputs

    @staticmethod
    def backward(ctx, *grads):
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        state = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            outputs = ctx.function(*inputs)
        torch.set_rng_state(state)
        torch.autograd.backward([outputs], grads)
        return None, *(x.grad for x in inputs)


def as_megatron(layer, x):
    return MegatronCheckpoint.apply(tangram.keep_attention(layer), x)


KEEPING = [by_policy, by_list, beside_a_policy, beside_a_list, kept, kept_reentrant, kept_offloaded, as_megatron]


def gradients_of(layers, run, x):
    torch.manual_seed(3)
    x = x.detach().requires_grad_()
    y = x
    for layer in layers:
        y = run(layer, y)
    wanted = [x, *(p for layer in layers for p in layer.parameters())]
    loss = y.square().sum()
    loss.backward()
    grads = [None if t.grad is None else t.grad.clone() for t in wanted]
    for layer in layers:
        layer.zero_grad()
    return [y.detach(), *grads]


def counted(layers, run, x):
    """(results, attention passes forward, backward)."""
    with tangram.meter() as measured:
        results = gradients_of(layers, run, x)
    report = measured.report()
    return results, report.num_forward, report.num_backward


def assert_same(ours, wanted):
    for a, b in zip(ours, wanted, strict=True):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def layers_of(count=2, attend=flex):
    torch.manual_seed(1)
    return [Layer(attend) for _ in range(count)], torch.randn(ROWS, HEADS * DIM)


@pytest.mark.parametrize("run", [plain, *KEEPING, kept_alone], ids=lambda f: f.__name__)
def test_a_checkpointed_layer_attends_once(run):
    layers, x = layers_of()
    wanted = gradients_of(layers, plain, x)
    results, forward, backward = counted(layers, run, x)
    assert_same(results, wanted)
    assert (forward, backward) == (4, 4)
    # Each pass of gradients ran the layers once, and the checkpointed one once more.
    assert [layer.calls for layer in layers] == [2 if run in (plain, kept_alone) else 3] * 2


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_other_checkpoints_attend_twice(use_reentrant):
    layers, x = layers_of()
    results, forward, _ = counted(layers, lambda f, y: checkpoint(f, y, use_reentrant=use_reentrant), x)
    assert_same(results, gradients_of(layers, plain, x))
    assert forward == 8


@pytest.mark.parametrize("run", [by_policy, kept_reentrant], ids=lambda f: f.__name__)
@pytest.mark.parametrize("attend", [flash, packed, magi, tokens, groups], ids=lambda f: f.__name__)
def test_every_function_of_attention_is_kept(attend, run):
    layers, x = layers_of(1, attend)
    results, forward, backward = counted(layers, run, x)
    assert_same(results, gradients_of(layers, plain, x))
    assert (forward, backward) == (2, 2)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("run", [by_policy, kept], ids=lambda f: f.__name__)
def test_recomputations_that_end_early_or_late(run, early):
    layers, x = layers_of()
    wanted = gradients_of(layers, plain, x)
    with set_checkpoint_early_stop(early):
        results, forward, _ = counted(layers, run, x)
    assert_same(results, wanted)
    assert forward == 4 and not _watched.frames()


def test_options_of_a_call_are_exact_under_a_policy():
    for options in (
        {"grad_dtype": torch.float32},
        {"out_dtype": torch.float32, "deterministic": True},
        {"softmax_scale": 0.3, "softcap": 2.0, "sink": torch.randn(ROWS, 3, HEADS), "sink_layout": "ssh"},
    ):

        def attend(q, k, v, options=options):
            return tangram.flex_flash_attn_func(q, k, v, MASK, **options)[0].float() * 2

        grads = []
        inputs = [torch.randn(ROWS, n, DIM).bfloat16() for n in (HEADS, HEADS_KV, HEADS_KV)]
        for run in (attend, lambda *x, f=attend: by_all(f, *x)):
            q, k, v = (x.detach().clone().requires_grad_() for x in inputs)
            run(q, k, v).square().sum().backward()
            grads.append([x.grad for x in (q, k, v)])
        assert_same(*grads)


def by_all(function, *inputs):
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=tangram.checkpoint_policy())


def test_a_mask_buffer_keeps_its_meaning_under_a_policy():
    heads = tangram.HeadConfig(HEADS, HEADS_KV, DIM, DIM, "float32")
    buffer = tangram.MaskBuffer(ROWS, ROWS, heads, device="cpu")
    inputs = [torch.randn(ROWS, n, DIM).requires_grad_() for n in (HEADS, HEADS_KV, HEADS_KV)]

    def attend(*x):
        return tangram.flex_flash_attn_func(*x, buffer)[0] * 2

    buffer.set(MASK)
    wanted = torch.autograd.grad(attend(*inputs).sum(), inputs)
    assert_same(torch.autograd.grad(by_all(attend, *inputs).sum(), inputs), wanted)
    out = by_all(attend, *inputs)
    buffer.set(Mask.causal(ROWS))
    with pytest.raises(InvalidArgument, match="must come before the MaskBuffer's next mask is set"):
        out.sum().backward()


def test_only_some_layers_keep():
    layers, x = layers_of(3)
    wanted = gradients_of(layers, plain, x)
    for given in (layers[1:], torch.nn.ModuleList(layers[1:])):
        context = tangram.checkpoint_policy(layers=given)
        run = functools.partial(checkpoint, use_reentrant=False, context_fn=context)
        results, forward, _ = counted(layers, run, x)
        assert_same(results, wanted)
        assert forward == 2 * 2 + 4


@pytest.mark.parametrize("outer", [by_policy, kept, kept_reentrant], ids=lambda f: f.__name__)
@pytest.mark.parametrize("inner", [by_policy, kept, kept_reentrant], ids=lambda f: f.__name__)
def test_nested_checkpoints(outer, inner):
    layers, x = layers_of(2)
    wanted = gradients_of(layers, plain, x)
    both = torch.nn.Sequential(*layers)
    both.forward = lambda y: inner(layers[1], inner(layers[0], y))
    ours = gradients_of([both], outer, x)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b)
    both.zero_grad()
    _, forward, _ = counted([both], outer, x)
    assert forward == 4


def test_a_graph_that_is_differentiated_twice():
    for run in (kept, kept_reentrant):
        (layer,), x = layers_of(1)
        torch.manual_seed(3)
        x.requires_grad_()
        y = run(layer, x)
        with tangram.meter() as measured:
            y.sum().backward(retain_graph=True)
            first = x.grad.clone()
            x.grad = None
            y.sum().backward()
        assert torch.equal(x.grad, first)
        report = measured.report()
        assert (report.num_forward, report.num_backward) == (2, 4)  # nothing is kept after the first


def test_a_wrapper_that_is_used_again_after_its_backward_pass():
    (layer,), x = layers_of(1)
    wanted = gradients_of([layer], plain, x)
    wrapped = tangram.keep_attention(layer)
    for _ in range(3):
        with torch.no_grad():
            wrapped(x)
        results, forward, _ = counted([layer], lambda _, y: checkpoint(wrapped, y, use_reentrant=True), x)
        assert_same(results, wanted)
        assert forward == 2


def test_a_wrapper_of_two_forward_passes_is_refused():
    (layer,), x = layers_of(1)
    x.requires_grad_()
    wrapped = tangram.keep_attention(layer)
    checkpoint(wrapped, x, use_reentrant=True)
    with pytest.raises(InvalidArgument, match="keep_attention: .* make it anew for each checkpoint"):
        checkpoint(wrapped, x * 2, use_reentrant=True)


def test_a_layer_that_raises_leaves_nothing():
    (layer,), x = layers_of(1)
    wanted = gradients_of([layer], plain, x)
    fails = [True]

    def function(y):
        y = layer(y)
        if fails[0]:
            raise RuntimeError("in the middle")
        return y

    wrapped = tangram.keep_attention(function)
    for run in (by_policy, lambda f, y: checkpoint(wrapped, y, use_reentrant=True)):
        fails[0] = True
        with pytest.raises(RuntimeError, match="in the middle"):
            run(function, x.requires_grad_())
        assert not _watched.frames() and not _watched._calls
        fails[0] = False
        with set_checkpoint_early_stop(False):
            y = run(function, x)
        fails[0] = True
        with pytest.raises(RuntimeError, match="in the middle"):
            y.sum().backward()
        assert not _watched.frames() and not _watched._calls
        fails[0] = False
        results = gradients_of([layer], lambda _, y, run=run: run(function, y), x)
        assert_same(results, wanted)


def kept_results():
    gc.collect()
    return {id(o) for o in gc.get_objects() if type(o) is checkpointing._Kept}


@pytest.mark.parametrize("run", [by_policy, kept, kept_reentrant], ids=lambda f: f.__name__)
def test_nothing_of_a_pass_lives_after_its_backward_pass(run, monkeypatch):
    wrappers, outs = [], []
    keep = tangram.keep_attention
    monkeypatch.setattr(tangram, "keep_attention", lambda f: wrappers.append(keep(f)) or wrappers[-1])

    def attend(*inputs):
        out = flex(*inputs)
        outs.append(weakref.ref(out))
        return out

    (layer,), x = layers_of(1, attend)
    before = kept_results()
    x.requires_grad_()
    y = run(layer, x)
    y.sum().backward()
    # y holds the graph, and the graph the wrapper, but no results: they go while the backward pass goes on.
    assert [wrapper._kept for wrapper in wrappers] == [None] * (run is not by_policy)
    assert kept_results() <= before
    del y
    gc.collect()
    assert len(outs) == 4 and not any(ref() is not None for ref in outs)
    run(layer, x)  # a loss that is not differentiated
    wrappers.clear()
    assert kept_results() <= before


def test_an_output_that_is_changed_in_place_is_refused():
    def attend(q, k, v, sink):
        out = tangram.flex_flash_attn_func(q, k, v, MASK)[0]
        with torch.no_grad():
            out.mul_(2)
        return out

    (layer,), x = layers_of(1, attend)
    y = kept_reentrant(layer, x.requires_grad_())
    with pytest.raises(
        InvalidArgument, match="flex_flash_attn_func: with keep_attention the output must not be changed"
    ):
        y.sum().backward()


def test_a_recomputation_that_calls_otherwise_is_refused():
    (layer,), x = layers_of(1)
    masks = [flex, flex, tokens]
    layer.attend = lambda *args: masks.pop(0)(*args)
    y = kept_reentrant(layer, x.requires_grad_())
    with pytest.raises(
        InvalidArgument, match="token_attn_func: with keep_attention the recomputation must call attention as"
    ):
        y.sum().backward()


def test_what_a_policy_refuses():
    for given, text in (
        ({"policy": 3}, "policy must be a function, a list of operators or None .got int"),
        ({"policy": [torch.ops.aten.mm]}, "a list must hold operators such as torch.ops.aten.mm.default"),
        ({"layers": [1, 2]}, "layers must be modules .got int"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            tangram.checkpoint_policy(**given)
    with pytest.raises(InvalidArgument, match="keep_attention: function must be callable .got int"):
        tangram.keep_attention(3)


@pytest.mark.parametrize("run", [by_policy, beside_a_policy, beside_a_list], ids=lambda f: f.__name__)
def test_a_compiled_layer_attends_once(run):
    layers, x = layers_of(1)
    for layer in layers:
        layer.dropout = 0.0
    torch.nn.functional.dropout, dropout = (lambda y, _: y), torch.nn.functional.dropout
    try:
        wanted = gradients_of(layers, plain, x)
        compiled = torch.compile(lambda y: run(layers[0], y), backend="aot_eager")
        results, forward, backward = counted(layers, lambda _, y: compiled(y), x)
    finally:
        torch.nn.functional.dropout = dropout
    for a, b in zip(results, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert (forward, backward) == (2, 2)


def test_compiled_attention_in_a_checkpoint_that_keeps():
    inputs = [torch.randn(ROWS, n, DIM).requires_grad_() for n in (HEADS, HEADS_KV, HEADS_KV)]

    def attend(q, k, v):
        return tangram.flex_flash_attn_func(q, k, v, MASK)[0]

    wanted = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with tangram.meter() as measured:
        out = checkpoint(tangram.keep_attention(compiled), *inputs, use_reentrant=True)
        out.square().sum().backward()
    assert measured.report().num_forward == 1
    for x, grad in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(x.grad, grad)


def test_what_is_refused_inside_torch_compile():
    (layer,), x = layers_of(1)
    for run, text in (
        (kept, "must take context_fn=tangram.checkpoint_policy"),
        (lambda f, y: by_policy(f, y, layers=layer), "layers must be None under torch.compile"),
    ):
        compiled = torch.compile(lambda y, run=run: run(layer, y), backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=text):
            compiled(x.requires_grad_()).sum().backward()


def test_a_fake_pass_has_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(ROWS, HEADS, DIM, requires_grad=True)
        k, v = torch.empty(ROWS, HEADS_KV, DIM), torch.empty(ROWS, HEADS_KV, 2 * DIM)
        out, meta = tangram.flex_flash_attn_func(q, k, v, MASK)
        assert out.shape == (ROWS, HEADS, 2 * DIM) and meta.lse.shape == (ROWS, HEADS)
        out.sum().backward()
        assert q.grad.shape == q.shape


def test_transformers_keep():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tangram.integrations.transformers import register

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    register()
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="tangram",
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    ids = torch.randint(1, 64, (1, 30))

    def step():
        model.zero_grad()
        with tangram.meter() as measured:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()], measured.report().num_forward

    wanted, forward = step()
    assert forward == 3
    for context, passes in (
        (None, 6),
        (tangram.checkpoint_policy(), 3),
        (tangram.checkpoint_policy(layers=model.model.layers[:2]), 4),
    ):
        options = {"use_reentrant": False} | ({} if context is None else {"context_fn": context})
        model.gradient_checkpointing_enable(options)
        grads, forward = step()
        assert_same(grads, wanted)
        assert forward == passes


def test_ranks_attend_and_fetch_once():
    run_script(Path(__file__).parent / "ranks" / "checkpoint_checks.py", ranks=2)


@pytest.mark.parametrize(("ranks", "mask"), [(0, "packs"), (2, "causal")])
def test_the_benchmark_runs_on_cpus(ranks, mask, tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "python" / "kept_attention.py"
    table = tmp_path / "kept.csv"
    options = ["--device", "cpu", "--tokens", "256", "--rounds", "1", "--masks", mask, "--csv", table]
    printed = run_script(script, *options, ranks=ranks)
    assert "wrapper" in printed and "left out" not in printed
    header, *lines = table.read_text().splitlines()
    figures = 6 if ranks else 5  # over ranks also the attention of rows that are there
    assert header.startswith("version,machine,mask,") and len(lines) == 4 * figures
