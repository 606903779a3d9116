# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="tangram": what a layer's call says beside a mask or key of the caller is computed or refused."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tangram  # noqa: E402
from ranks.start import SERVER, run_script  # noqa: E402
from tangram import InvalidArgument, Mask, Range  # noqa: E402
from tangram._dist_mask_buffer import DistMaskBuffer  # noqa: E402
from tangram.integrations._call import LayerCall, ModelMask  # noqa: E402
from tangram.integrations._layer import layer_key  # noqa: E402
from tangram.integrations._narrow import Limits, narrowed  # noqa: E402
from tangram.integrations.transformers import attention, register  # noqa: E402

SERVER.set_forkserver_preload(["torch.distributed", "tangram.distributed", "transformers.modeling_utils"])

LENGTH = 40
LENGTHS = (9, 1, 22, 8)
BORDERS = [0, 9, 10, 32, 40]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
KINDS = ["sliding_attention", "full_attention"]
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "qwen2_moe": (  # its layers tell the window to their mask alone
        "Qwen2MoeConfig",
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": KINDS, "num_experts": 2, **EXPERTS},
    ),
    "qwen3": ("Qwen3Config", {"use_sliding_window": True, "sliding_window": 7, "layer_types": KINDS}),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": 7, "layer_types": KINDS, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 7, "layer_types": KINDS, "query_pre_attn_scalar": 16}),
    "gpt_oss": (
        "GptOssConfig",
        {"sliding_window": 7, "layer_types": KINDS, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


def model_of(family, **changes):
    config_name, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config_name)(**{**SIZES, **extra, **changes})
    )
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    return model.eval()


def tokens(batch=1):
    return torch.randint(1, 64, (batch, LENGTH), generator=torch.Generator().manual_seed(1))


def positions():
    return torch.cat([torch.arange(n) for n in LENGTHS])[None]


def logits_of(model, implementation="tangram", **inputs):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(input_ids=tokens(), use_cache=False, **inputs).logits


def documents_alone(model):
    """Each document by itself, with the attention of transformers."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        parts = [model(input_ids=part, use_cache=False).logits for part in tokens().split(LENGTHS, dim=1)]
    return torch.cat(parts, dim=1)


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)  # float32 through two layers, values around 1


def call(length=LENGTH, kv_length=None, **given):
    """attention() of a layer whose model makes no mask, as a hook of another library calls it."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, 4, length, 16, generator=generator)
    k, v = torch.randn(2, 1, 2, kv_length or length, 16, generator=generator)
    module = torch.nn.Module()
    module.is_causal = True
    return attention(module, q, k, v, given.pop("attention_mask", None), **given)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_of_the_caller_does_not_widen_the_window_of_a_layer(family):
    model = model_of(family)
    assert_close(logits_of(model, tangram_mask=Mask.causal(LENGTH)), logits_of(model, "eager"))
    mask = Mask.varlen(BORDERS)
    assert_close(logits_of(model, position_ids=positions(), tangram_mask=mask), documents_alone(model))


def test_windows_padding_and_documents_with_keys_over_ranks():
    run_script(Path(__file__).parent / "ranks" / "model_layers.py", ranks=2)


def test_padding_hides_keys_of_a_mask_of_the_caller():
    model = model_of("mistral")
    padding = torch.ones(1, LENGTH, dtype=torch.int64)
    padding[0, :5] = 0
    given = {"attention_mask": padding, "position_ids": (padding.cumsum(1) - 1).clamp(min=0)}
    theirs = logits_of(model, "eager", **given)
    ours = logits_of(model, tangram_mask=Mask.causal(LENGTH), **given)
    assert_close(ours[:, 5:], theirs[:, 5:])


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_packed_documents_stay_apart_beside_an_attention_mask(family):
    """Transformers drops them beside a 2D mask, and gpt-oss always, unless FlashAttention reads position ids."""
    model = model_of(family)
    whole = documents_alone(model)
    ones = torch.ones(1, LENGTH, dtype=torch.int64)
    assert_close(logits_of(model, position_ids=positions(), attention_mask=ones), whole)
    assert_close(logits_of(model, position_ids=positions()), whole)
    padded = ones.clone()
    padded[0, 36:] = 0
    ours = logits_of(model, position_ids=positions() * padded, attention_mask=padded)
    assert_close(ours[:, :32], whole[:, :32])


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_cu_seq_lens_without_position_ids_keep_documents_apart(family):
    model = model_of(family)
    cu = torch.tensor(BORDERS, dtype=torch.int32)
    given = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 22, "max_length_k": 22}
    whole = documents_alone(model)
    assert_close(logits_of(model, **given), whole)  # rotary embeddings see distances alone
    assert_close(logits_of(model, **given, position_ids=positions()), whole)
    assert_close(logits_of(model, **given, tangram_mask=Mask.causal(LENGTH)), whole)
    other = torch.tensor([0, 20, LENGTH])
    with pytest.raises(InvalidArgument, match=r"cu_seq_lens and position_ids must begin .* \(got row 9 in one alone\)"):
        logits_of(model, cu_seq_lens_q=other, cu_seq_lens_k=other, position_ids=positions())
    with pytest.raises(InvalidArgument, match=r"cu_seq_lens_q must rise from 0 to the 40 rows .* \(got \[0, 39\]\)"):
        logits_of(model, cu_seq_lens_q=torch.tensor([0, 39]), cu_seq_lens_k=cu)
    with pytest.raises(InvalidArgument, match=r"must be given together \(got q alone\)"):
        logits_of(model, cu_seq_lens_q=cu)


def test_a_layer_without_a_mask_computes_what_its_call_says():
    """DeepSpeed and Accelerate replace every mask by None."""
    mask = Mask.varlen(BORDERS)
    window = Mask.sliding_window(BORDERS, (6, 0))
    by_mask = call(tangram_mask=mask)
    cu = {"cu_seq_lens_q": BORDERS, "cu_seq_lens_k": BORDERS}
    for given in ({"position_ids": positions()}, cu, {**cu, "position_ids": positions()}):
        torch.testing.assert_close(call(**given), by_mask)
        torch.testing.assert_close(call(**given, sliding_window=7), call(tangram_mask=window))
    torch.testing.assert_close(call(is_causal=False), call(tangram_mask=Mask.full(LENGTH)))
    both_ways = call(is_causal=False, sliding_window=7)
    torch.testing.assert_close(both_ways, call(tangram_mask=Mask.sliding_window(LENGTH, (6, 6))))
    last = Mask(1, LENGTH, [tangram.AttnSlice(Range(0, 1), Range(33, 40))])
    torch.testing.assert_close(call(1, LENGTH, sliding_window=7), call(1, LENGTH, tangram_mask=last))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.zeros(1, 1, LENGTH, LENGTH)}, "masks of scores cannot be read"),
        (
            {"attention_mask": torch.zeros(1, 1, LENGTH, LENGTH), "tangram_mask": Mask.causal(LENGTH)},
            r"attention_mask must be None or \[batch, length\] beside tangram_mask.*\(got Tensor\[1, 1, 40, 40\]\)",
        ),
        ({"tangram_mask": Mask.causal(20)}, r"need tangram_key \(got a mask of 20 x 20, 40 queries, 40 keys\)"),
        ({"tangram_mask": 3}, r"tangram_mask must be a tangram.Mask \(got int\)"),
        ({"s_aux": torch.zeros(8)}, r"a sink for each of the layer's 4 heads \(got \[8\]\)"),
        ({"indices": torch.zeros(1)}, "indices is not supported"),
        ({"dropout": 0.1}, r"dropout must be 0 \(got 0.1\)"),
        ({"sliding_window": 0}, r"sliding_window must be positive or None \(got 0\)"),
    ],
)
def test_what_would_be_lost_is_refused_by_name(given, message):
    with pytest.raises(InvalidArgument, match=f"^attn_implementation='tangram': .*{message}"):
        call(**given)


def test_is_causal_against_the_mask_of_the_model_is_refused():
    """Transformers before 5.23 hands is_causal on to the layer and makes a causal mask all the same."""
    mask = ModelMask(lambda: Mask.causal(LENGTH), None)
    with pytest.raises(InvalidArgument, match=r"is_causal must agree with the model's mask.*\(got is_causal=False\)"):
        call(attention_mask=mask, is_causal=False)
    torch.testing.assert_close(call(attention_mask=mask, is_causal=True), call(tangram_mask=mask.mask))


def test_chunked_layers_need_their_own_mask():
    config = transformers.Llama4TextConfig(
        **{**SIZES, "intermediate_size_mlp": 96, "num_local_experts": 2, "attention_chunk_size": 16}
    )
    torch.manual_seed(0)
    model = transformers.Llama4ForCausalLM(config).eval()
    assert "chunked_attention" in config.layer_types
    with pytest.raises(InvalidArgument, match="layers of chunked attention need a mapping"):
        logits_of(model, tangram_mask=Mask.causal(LENGTH))
    chunks = Mask.varlen([0, 16, 32, LENGTH])
    masks = {"full_attention": Mask.causal(LENGTH), "chunked_attention": chunks}
    assert_close(logits_of(model, tangram_mask=masks), logits_of(model, "eager"))
    with pytest.raises(InvalidArgument, match="chunks of packed documents need position_ids without attention_mask"):
        logits_of(model, cu_seq_lens_q=BORDERS, cu_seq_lens_k=BORDERS)


def test_narrowed_masks_have_the_cells_within_the_limits():
    def cells_of(mask):
        seen = torch.zeros(mask.seqlen_q, mask.seqlen_k, dtype=torch.bool)
        for piece in mask.slices:
            seen |= torch.tensor([[piece.visible(q, k) for k in range(mask.seqlen_k)] for q in range(mask.seqlen_q)])
        return seen

    generator = torch.Generator().manual_seed(4)
    i, j = torch.arange(12)[:, None], torch.arange(12)[None, :]
    document = torch.tensor([0] * 3 + [1] * 5 + [2] * 4)
    keys = ((j >= 1) & (j < 4)) | (j == 6) | (j >= 9)
    within = (j >= i - 3) & (j <= i + 2) & (document[:, None] == document) & keys
    limits = Limits(3, 2, ((0, 3, 3, 8, 12),) * 2, ((1, 4), (6, 7), (9, 12)))
    for _ in range(5):
        cells = torch.rand(12, 12, generator=generator) < 0.7
        assert torch.equal(cells_of(narrowed(tangram.from_dense(cells), limits)), cells & within)
    for _ in range(2):  # an equal mask is another object
        mask = Mask.causal(12)
        assert narrowed(mask, Limits(left=11)) is mask


def test_the_mask_of_a_buffer_must_lie_within_the_window(monkeypatch):
    """Its lists lie in GPU memory, where nothing narrows them."""
    buffer = object.__new__(DistMaskBuffer)
    layer = LayerCall(torch.nn.Module(), 1, LENGTH, LENGTH, None, 7, True, None, (None, None))
    for mask, fits in ((Mask.causal(LENGTH), False), (Mask.sliding_window(BORDERS, (6, 0)), True)):
        plan = SimpleNamespace(mask=mask)
        key = SimpleNamespace(total_seqlen_q=LENGTH, total_seqlen_k=LENGTH, masks=None, plan=plan)
        monkeypatch.setattr(buffer, "key", key, raising=False)
        if fits:
            assert layer_key(layer, buffer) is buffer
        else:
            with pytest.raises(InvalidArgument, match=r"mask of a DistMaskBuffer must lie .*sliding_window=7"):
                layer_key(layer, buffer)
