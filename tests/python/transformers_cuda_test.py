# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="tangram" on a GPU: bfloat16 models against the attention of transformers itself. Needs a Hopper
GPU, torch with CUDA and transformers; skipped elsewhere."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tangram  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

SIZES = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}, "sdpa"),
    "mistral": ("MistralConfig", {"sliding_window": 50}, "sdpa"),
    "gemma2": ("Gemma2Config", {"sliding_window": 50, "attn_logit_softcapping": 5.0}, "eager"),
    # All experts: to choose one of two turns the rounding of a score into another result.
    "gpt_oss": ("GptOssConfig", {"sliding_window": 50, "num_local_experts": 2, "num_experts_per_tok": 2}, "eager"),
}


def run(model, implementation, dtype, autocast=None, **inputs):
    """Logits and the gradients of all parameters, as one long vector each."""
    model.set_attn_implementation(implementation)
    model.to("cuda", dtype).zero_grad()
    with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
        logits = model(**inputs).logits
    logits.float().square().mean().backward()
    grads = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    return logits.detach().double(), grads


def model_and_inputs(family):
    register()
    config_name, extra, same = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_name)(**{**SIZES, **extra}))
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    lengths = (300, 17, 180)
    inputs = {
        "input_ids": torch.randint(1, 64, (1, sum(lengths)), generator=torch.Generator().manual_seed(1)).cuda(),
        "use_cache": False,
    }
    if family != "gpt_oss":  # whose own attention lets packed documents see each other
        inputs["position_ids"] = torch.cat([torch.arange(n) for n in lengths])[None].cuda()
    return model.eval(), same, inputs


def assert_as_exact(exact, theirs, ours):
    for name, want, their, our in zip(("logits", "gradients"), exact, theirs, ours, strict=True):
        assert our.isfinite().all(), name
        error, bound = (our - want).norm(), (their - want).norm()
        assert error <= 2 * bound, f"{name}: {error / want.norm():.2e}, of transformers {bound / want.norm():.2e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_documents_are_as_exact_as_with_the_attention_of_transformers(family):
    model, same, inputs = model_and_inputs(family)
    # One rounding of the parameters, so that all three compute the same model.
    model.to(torch.bfloat16)
    exact = run(model, same, torch.float32, **inputs)
    theirs = run(model, same, torch.bfloat16, **inputs)
    assert_as_exact(exact, theirs, run(model, "tangram", torch.bfloat16, **inputs))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_in_float32_under_autocast(family, autocast):
    model, same, inputs = model_and_inputs(family)
    exact = run(model, same, torch.float32, **inputs)
    theirs = run(model, same, torch.float32, autocast, **inputs)
    assert_as_exact(exact, theirs, run(model, "tangram", torch.float32, autocast, **inputs))
