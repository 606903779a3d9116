# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="tangram": small random models of many families against the attention of transformers itself."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tangram  # noqa: E402
from ranks.start import SERVER, run_script  # noqa: E402
from tangram import InvalidArgument, Mask, _held  # noqa: E402
from tangram.integrations._call import model_masks  # noqa: E402
from tangram.integrations._mask_function import mask_of  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402

SERVER.set_forkserver_preload(["torch.distributed", "tangram.distributed", "transformers.modeling_utils"])

LENGTH = 48
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
# What each is here for; the implementation that computes the same.
FAMILIES = {
    "llama": ("LlamaConfig", {}, "sdpa"),
    "mistral": ("MistralConfig", {"sliding_window": 7}, "sdpa"),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": 9, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
        "eager",
    ),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 11, "num_local_experts": 2, "num_experts_per_tok": 1}, "eager"),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()
    register()  # twice is once


def model_of(family, **changes):
    config_name, extra, same = FAMILIES[family]
    config = getattr(transformers, config_name)(**{**SIZES, **extra, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    return model.eval(), same


def both(model, same, **inputs):
    """(transformers' logits, ours), with the gradients of all parameters."""
    results = []
    for implementation in (same, "tangram"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        logits = model(**inputs).logits
        real = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(logits.shape[:2]).bool()
        logits = logits * real[:, :, None]  # rows of padding do not count
        logits.square().mean().backward()
        results.append((logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    return results


def assert_equal(results):
    (logits, grads), (our_logits, our_grads) = results
    # float32 through two layers, values around 1.
    torch.testing.assert_close(our_logits, logits, atol=2e-5, rtol=1e-4)
    assert len(grads) == len(our_grads) > 10
    for ours, theirs in zip(our_grads, grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-3)


def tokens(batch=1, length=LENGTH):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_documents(family):
    model, same = model_of(family)
    positions = torch.cat([torch.arange(n) for n in (5, 1, 30, 12)])[None]
    results = both(model, same, input_ids=tokens(), position_ids=positions, use_cache=False)
    if family != "gpt_oss":  # whose own mask does not know where documents begin
        assert_equal(results)
    # The packed documents really were kept apart.
    alone = model(input_ids=tokens()[:, 6:36], use_cache=False).logits
    torch.testing.assert_close(results[1][0][:, 6:36], alone.detach(), atol=2e-5, rtol=1e-4)


def test_packed_documents_of_gpt_oss_leak_with_its_own_attention_alone():
    """transformers does not pass position ids on to this model's masks, but to its layers, where we read them."""
    model, same = model_of("gpt_oss")
    borders = [0, 5, 6, 36, 48]
    positions = torch.cat([torch.arange(n) for n in (5, 1, 30, 12)])[None]
    packed = {"input_ids": tokens(), "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        model.set_attn_implementation(same)
        alone = model(input_ids=tokens()[:, 6:36], use_cache=False).logits
        leaks = (model(**packed).logits[:, 6:36] - alone).abs().max()
        assert leaks > 1e-2, f"{same} keeps packed documents apart: the guide may say so"
        masks = {
            "full_attention": Mask.varlen(borders, causal=True),
            "sliding_attention": Mask.sliding_window(borders, (model.config.sliding_window - 1, 0)),
        }
        model.set_attn_implementation("tangram")
        for given in ({}, {"tangram_mask": masks}):
            ours = model(**packed, **given).logits
            torch.testing.assert_close(ours[:, 6:36], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_with_padding_on_either_side(family):
    model, same = model_of(family)
    padding = torch.ones(3, LENGTH, dtype=torch.int64)
    padding[0, :13] = 0
    padding[2, 40:] = 0
    positions = (padding.cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": tokens(3), "attention_mask": padding, "position_ids": positions}
    assert_equal(both(model, same, **inputs, use_cache=False))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_generation_with_a_cache(family):
    model, same = model_of(family)
    padding = torch.ones(2, 15, dtype=torch.int64)
    padding[0, :4] = 0
    texts = []
    for implementation in (same, "tangram"):
        model.set_attn_implementation(implementation)
        options = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        made = model.generate(input_ids=tokens(2, 15), attention_mask=padding, **options)
        texts.append((made.sequences, torch.stack(made.logits)))
    assert torch.equal(texts[0][0], texts[1][0])
    torch.testing.assert_close(texts[1][1], texts[0][1], atol=2e-5, rtol=1e-4)


def test_an_encoder_sees_both_ways():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    padding = torch.ones(2, LENGTH, dtype=torch.int64)
    padding[1, 30:] = 0
    outs = []
    for implementation in ("sdpa", "tangram"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outs.append(model(input_ids=tokens(2), attention_mask=padding).last_hidden_state[padding.bool()])
    torch.testing.assert_close(outs[1], outs[0], atol=2e-5, rtol=1e-4)


def test_a_mask_of_ones_own_and_one_for_each_kind_of_layer():
    model, _ = model_of("llama")
    model.set_attn_implementation("sdpa")
    prefix = 10
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    cells = ((j <= i) | (j < prefix))[None, None]
    with torch.no_grad():
        expected = model(input_ids=tokens(), attention_mask=cells, use_cache=False).logits
        model.set_attn_implementation("tangram")
        ours = model(input_ids=tokens(), tangram_mask=Mask.prefix_lm(LENGTH, prefix), use_cache=False).logits
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)

    model, _ = model_of("mistral")
    model.set_attn_implementation("tangram")
    window = {"sliding_attention": Mask.sliding_window(LENGTH, (6, 0))}
    with torch.no_grad():
        expected = model(input_ids=tokens(), use_cache=False).logits
        for layer in model.model.layers:
            layer.self_attn.layer_type = "sliding_attention"
        ours = model(input_ids=tokens(), tangram_mask=window, use_cache=False).logits
        torch.testing.assert_close(ours, expected)
        with pytest.raises(InvalidArgument, match="must have every layer type"):
            model(input_ids=tokens(), tangram_mask={"full_attention": Mask.causal(LENGTH)}, use_cache=False)


def test_what_would_change_results_unseen_is_refused():
    model, _ = model_of("llama", attention_dropout=0.5)
    model.set_attn_implementation("tangram")
    with pytest.raises(InvalidArgument, match=r"dropout must be 0 \(got 0.5\)"):
        model.train()(input_ids=tokens())
    model.eval()
    with pytest.raises(InvalidArgument, match="masks of scores cannot be read"):
        model(input_ids=tokens(), attention_mask=torch.zeros(1, 1, LENGTH, LENGTH))
    with pytest.raises(InvalidArgument, match="a cache must not be longer than what was seen"):
        model.generate(input_ids=tokens(), max_new_tokens=3, cache_implementation="static")


def test_without_transformers_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(tangram.NotAvailable, match="transformers 4.57 or later must be there"):
        register()


def test_mask_functions_that_are_no_band_are_refused():
    rows = (0, LENGTH)

    def blocks(batch, head, q, k):
        """Causal, but the rows 20 to 23 see each other: pieces of an image."""
        return (k <= q) | ((q >= 20) & (q < 24) & (k >= 20) & (k < 24))

    with pytest.raises(InvalidArgument, match="must be causal, full or a window within documents"):
        mask_of(blocks, 1, rows, rows, None)
    with pytest.raises(InvalidArgument, match="must be causal, full or a window within documents"):
        mask_of(lambda b, h, q, k: (k <= q) & ((q - k < 5) | (k < 3)), 1, rows, rows, None)
    assert mask_of(lambda b, h, q, k: k <= q, 1, rows, rows, None) == Mask.causal(LENGTH)
    window = mask_of(lambda b, h, q, k: (k <= q) & (q - k < 5), 2, rows, rows, None)
    assert window == Mask.sliding_window([0, LENGTH, 2 * LENGTH], (4, 0))
    # 16 queries behind 32 keys of a cache that lost its first 8.
    tail = mask_of(lambda b, h, q, k: k <= q, 1, (32, 16), (8, 40), None)
    assert tail == Mask.causal(16, 40)


def test_layers_of_two_kinds_over_ranks_by_one_dispatch():
    run_script(Path(__file__).parent / "ranks" / "models.py", ranks=2)


def test_it_is_our_attention_that_runs(monkeypatch):
    model, _ = model_of("llama")
    model.set_attn_implementation("tangram")
    calls = []
    real = tangram.integrations._attention.flex_flash_attn_func

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return real(*args, **kwargs)

    monkeypatch.setattr(tangram.integrations._attention, "flex_flash_attn_func", counted)
    model(input_ids=tokens())
    assert calls == [(LENGTH, 4, 16)] * 2


def test_one_compiled_graph_serves_all_packs():
    """Layers alternate between a window and full attention."""
    model, _ = model_of("gemma2")
    model.set_attn_implementation("tangram")
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    outs = []
    for lengths in ((5, 1, 30, 12), (20, 28), (1, 47)):
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        results = []
        for run in (model, compiled):
            model.zero_grad()
            logits = run(input_ids=tokens(), position_ids=positions, use_cache=False).logits
            logits.square().mean().backward()
            results.append((logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
        assert_equal(results)
        outs.append(results[1][0])
    assert graphs.frame_count == 1
    assert (outs[0] - outs[1]).abs().max() > 1e-2, "the packs show no difference"
    assert len(model_masks) <= 2, "masks of earlier steps live on"
    assert len(_held.masks) <= 66
