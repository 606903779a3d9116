# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers under torch.compile(fullgraph=True): logits and gradients of the model that is not compiled,
by one graph for all packs. `make test` runs one case of them in transformers_test.py."""

import os
from pathlib import Path

import pytest

if os.environ.get("TANGRAM_TEST_LONG", "0") == "0":
    pytest.skip("seconds a case, nearly all of them of the compiler: make test-long runs them", allow_module_level=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch.distributed as dist  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tangram  # noqa: E402
from model_batches import LENGTH, batch_of, expected_loss, gradients, model_of  # noqa: E402
from ranks.start import run_script  # noqa: E402
from tangram import Mask  # noqa: E402
from tangram.integrations.transformers import context_parallel, register  # noqa: E402

ALL = [
    ("llama", "plain"),
    ("mistral", "packed"),
    ("qwen2", "padded_left"),
    ("qwen3", "flattened"),
    ("gemma2", "padded_right"),
    ("gemma3", "packed"),
    ("gpt_oss", "packed_with_mask"),
    ("llama4", "packed"),
    ("phi3", "packed"),
]


@pytest.fixture(autouse=True)
def fresh():
    register()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_and_not(family, **changes):
    models = [model_of(family, **changes) for _ in range(2)]
    for model in models:
        model.set_attn_implementation("tangram")
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(models[0], backend=counter, fullgraph=True), *models, counter


def results(model, parameters_of, batch):
    parameters_of.zero_grad()
    outputs = model(**batch, use_cache=False)
    outputs.loss.backward()
    return outputs.logits.detach(), gradients(parameters_of)


def assert_same(ours, wanted):
    torch.testing.assert_close(ours[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert ours[1].keys() == wanted[1].keys()
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-4, atol=1e-6, msg=lambda t, n=name: f"{n}: {t}")


def test_a_mask_of_the_callers_and_what_is_refused():
    compiled, model, alone, _ = compiled_and_not("mistral", num_hidden_layers=1)
    batch = batch_of("padded_right")
    prefix = Mask.varlen(list(range(0, 3 * LENGTH + 1, LENGTH)))
    given = {**batch, "tangram_mask": prefix}
    assert_same(results(compiled, model, given), results(alone, alone, given))
    with pytest.raises(Exception, match="tangram_mask must have a row for each query and key of the batch"):
        compiled(**batch, tangram_mask=Mask.causal(LENGTH), use_cache=False)
    packed = batch_of("packed")
    half = torch.tensor([0, LENGTH // 2], dtype=torch.int32)
    with pytest.raises(tangram.InvalidArgument, match=f"cu_seq_lens_q must rise from 0 to the {LENGTH} rows"):
        compiled(**packed, cu_seq_lens_q=half, cu_seq_lens_k=half, use_cache=False)
    with pytest.raises(Exception, match="masks of scores cannot be read"):
        compiled(batch["input_ids"], attention_mask=torch.zeros(3, 1, LENGTH, LENGTH), use_cache=False)


def test_layers_that_are_compiled_alone():
    _, model, alone, counter = compiled_and_not("qwen3")
    for layer in model.model.layers:
        layer.compile(backend=counter, fullgraph=True)
    for layout in ("packed", "flattened"):
        batch = batch_of(layout)
        assert_same(results(model, model, batch), results(alone, alone, batch))


@pytest.mark.parametrize(("family", "layout"), ALL)
def test_families(family, layout):
    compiled, model, alone, counter = compiled_and_not(family)
    for seed in (1, 2):
        batch = batch_of(layout, seed)
        assert_same(results(compiled, model, batch), results(alone, alone, batch))
    # The long frequencies of phi3 are made in the first pass, and guarded.
    assert counter.frame_count == (2 if family == "phi3" else 1)


def test_inductor():
    compiled, model, alone, _ = compiled_and_not("llama", num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True)
    batch = batch_of("packed")
    assert_same(results(compiled, model, batch), results(alone, alone, batch))


def test_layers_of_two_kinds_over_ranks():
    run_script(Path(__file__).parent / "ranks" / "compiled_models.py", ranks=2)


def test_context_parallel_is_compiled_in_pieces(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        batch = batch_of("packed")
        wanted = expected_loss(model_of("qwen3"), "qwen3", "packed", batch)
        model = context_parallel(model_of("qwen3"))
        loss = torch.compile(model, backend="eager")(**batch).loss
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    finally:
        dist.destroy_process_group()
