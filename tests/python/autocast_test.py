# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""torch.autocast: models of Transformers compute as with their own attention, Tangram's functions say what to cast."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
import torch.distributed as dist  # noqa: E402

import tangram  # noqa: E402
from tangram import InvalidArgument, Mask, flash_attn, magi  # noqa: E402
from tangram.integrations.transformers import attention, register  # noqa: E402
from transformers_layers_test import LENGTH, model_of, positions, tokens  # noqa: E402

ROWS = 16
CAUSAL = Mask.causal(ROWS)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module", autouse=True)
def group():
    register()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def logits_and_gradients(model, implementation, dtype, **inputs):
    """Results of weights in float32, as Trainer(bf16=True) runs them; as one vector each."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(input_ids=tokens(), use_cache=False, **inputs).logits
    logits.float().square().mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return logits.detach().float(), torch.cat(gradients)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3", "gpt_oss"])
def test_models_under_autocast_are_as_exact_as_with_their_own_attention(family, dtype):
    model = model_of(family)
    exact = logits_and_gradients(model, "eager", None)
    theirs = logits_and_gradients(model, "eager", DTYPES[dtype])
    key = tangram.mask_key(Mask.causal(LENGTH), 4, 2, 16, chunk_size=8)
    for given in ({}, {"tangram_mask": Mask.causal(LENGTH)}, {"tangram_key": key}):
        ours = logits_and_gradients(model, "tangram", DTYPES[dtype], **given)
        for want, their, our in zip(exact, theirs, ours, strict=True):
            # Rounding falls otherwise in each, to about the same error.
            assert (our - want).norm() <= 1.5 * (their - want).norm(), (list(given), our - want)


def test_packed_documents_under_autocast():
    model = model_of("qwen3")
    exact, _ = logits_and_gradients(model, "sdpa", None, position_ids=positions())
    theirs, _ = logits_and_gradients(model, "sdpa", torch.bfloat16, position_ids=positions())
    ours, _ = logits_and_gradients(model, "tangram", torch.bfloat16, position_ids=positions())
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


def test_trainer_in_bf16_trains_as_with_sdpa(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    losses = []
    for implementation in ("sdpa", "tangram"):
        model = model_of("qwen3")
        model.set_attn_implementation(implementation)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=True,
            per_device_train_batch_size=2,
            max_steps=2,
            logging_steps=1,
            learning_rate=1e-2,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        rows = [{"input_ids": row, "labels": row} for row in tokens(4)]
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 2
    assert losses[1] == pytest.approx(losses[0], rel=2e-3), losses  # of bfloat16's eight bits


def test_query_and_key_in_float32_take_the_dtype_of_value():
    """Norms kept in float32, as PEFT does, without autocast."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, ROWS, 16, generator=generator) for heads in (4, 2, 2))
    module = torch.nn.Module()
    module.is_causal = True
    out, _ = attention(module, q, k, v.bfloat16(), None)
    assert out.dtype == torch.bfloat16
    wanted, _ = attention(module, q.bfloat16(), k.bfloat16(), v.bfloat16(), None)
    assert torch.equal(out, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(module, q, k, v, None)[0], wanted)


Q, K, V = torch.ones(ROWS, 4, 16), torch.ones(ROWS, 2, 16), torch.ones(ROWS, 2, 16, dtype=torch.bfloat16)
CU = torch.tensor([0, ROWS], dtype=torch.int32)
PICKS = torch.zeros(ROWS, 2, 1, dtype=torch.int32)


def key():
    return tangram.mask_key(CAUSAL, 4, 2, 16)


FUNCTIONS = {
    "flex_flash_attn_func": lambda: tangram.flex_flash_attn_func(Q, K, V, CAUSAL),
    "calc_attn": lambda: tangram.calc_attn(*(tangram.dispatch(x, key()) for x in (Q, K, V)), key()),
    "flash_attn_func": lambda: flash_attn.flash_attn_func(Q[None], K[None], V[None], causal=True),
    "flash_attn_varlen_func": lambda: flash_attn.flash_attn_varlen_func(Q, K, V, CU, CU, causal=True),
    "token_attn_func": lambda: tangram.token_attn_func(Q, K, V, PICKS),
    "flex_flash_attn_func of magi": lambda: magi.flex_flash_attn_func(Q, K, V, CU[None], CU[None]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_that_autocast_left_in_float32_are_refused_with_what_to_cast(name):
    function = name.partition(" ")[0]
    remedy = r"torch.autocast leaves q and k .* in float32, so pass q.to\(v.dtype\) and k.to\(v.dtype\)$"
    with pytest.raises(InvalidArgument, match=rf"^{function}: .*of.*float32, bfloat16, float16.*\(got q=.*{remedy}"):
        FUNCTIONS[name]()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InvalidArgument, match=remedy):
        FUNCTIONS[name]()
