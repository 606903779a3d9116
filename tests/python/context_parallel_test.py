# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""context_parallel(model, mesh): the table of docs/tutorials/05_transformers_fsdp_tp.md. Each cell is computed as in
one process or refused by name."""

import copy
import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch.distributed as dist  # noqa: E402

from model_batches import FAMILIES, LAYOUTS, batch_of, expected_loss, model_of  # noqa: E402
from ranks.start import run_script  # noqa: E402
from tangram import InvalidArgument, Mask  # noqa: E402
from tangram.integrations import _versions  # noqa: E402
from tangram.integrations.transformers import context_parallel  # noqa: E402

SCRIPT = Path(__file__).parent / "ranks" / "batch_checks.py"
LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
SAMPLE = ["gpt_oss:flattened", "llama4:padded_left", "phi3:packed", "llama_one_kv_head:plain"]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    """Group of this process alone: refusals do not depend on the number of ranks."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parallel(family="llama", **changes):
    return context_parallel(model_of(family, **changes))


def test_losses_and_gradients_are_those_of_one_process():
    cases = [f"{family}:{layout}" for family in FAMILIES for layout in LAYOUTS] if LONG else SAMPLE
    run_script(SCRIPT, *cases, "masks", "generate", "checkpointing", "embeddings", "fsdp", "refusals", ranks=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"attention_mask": torch.zeros(3, 1, 72, 72)},
            r"attention_mask must be None or \[3, 72\].*Tensor\[3, 1, 72, 72\]",
        ),
        ({"attention_mask": torch.ones(3, 71)}, r"attention_mask must be None or \[3, 72\]"),
        ({"position_ids": torch.zeros(3, 3, 72)}, r"position_ids must be \[3, 72\]"),
        ({"labels": torch.zeros(3, 71)}, r"labels must be \[3, 72\]"),
        ({"use_cache": True}, "use_cache must be False"),
        ({"past_key_values": transformers.DynamicCache()}, "past_key_values must be None"),
        ({"output_attentions": True}, "output_attentions must be False"),
        ({"output_router_logits": True}, "output_router_logits must be False"),
        ({"logits_to_keep": 1}, r"logits_to_keep must be 0.*\(got logits_to_keep=1\)"),
        ({"token_type_ids": torch.zeros(3, 72)}, r"token_type_ids must be None.*Tensor\[3, 72\]"),
        ({"inputs_embeds": torch.zeros(3, 72, 64)}, "input_ids must be .* or inputs_embeds be given instead"),
        ({"tangram_mask": Mask.causal(72)}, "tangram_mask must have a row for each query and key of the batch"),
        ({"cu_seq_lens_q": torch.tensor([0, 216])}, r"must be given together \(got q alone\)"),
    ],
)
def test_what_cannot_be_computed_over_ranks_is_refused_by_name(given, message):
    with pytest.raises(InvalidArgument, match=message):
        parallel()(**{**batch_of("plain"), **given})


def test_models_that_would_compute_something_else_are_refused_by_name():
    with pytest.raises(InvalidArgument, match=r"attention_dropout must be 0 \(got attention_dropout=0.5\)"):
        parallel(attention_dropout=0.5)(**batch_of("plain"))
    with pytest.raises(InvalidArgument, match="output_router_logits must be False, since the router's loss"):
        parallel("gpt_oss", output_router_logits=True)(**batch_of("plain"))
    with pytest.raises(InvalidArgument, match="model must be a causal language model"):
        context_parallel(torch.nn.Linear(2, 2))
    with pytest.raises(InvalidArgument, match=r"model must be a causal language model.*\(got LlamaForSequenceClass"):
        context_parallel(transformers.LlamaForSequenceClassification(model_of("llama").config))
    other = transformers.GPTNeoXConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(InvalidArgument, match=r"model_type must be one of llama.*\(got model_type='gpt_neox'\)"):
        context_parallel(transformers.AutoModelForCausalLM.from_config(other))
    sharded = model_of("llama")
    sharded._tp_size = 2  # as from_pretrained(tp_plan="auto") leaves it
    with pytest.raises(InvalidArgument, match=r"must not be sharded by tensor parallelism.*\(got tp_size=2\)"):
        context_parallel(sharded)
    model = parallel()
    model.set_attn_implementation("sdpa")
    with pytest.raises(InvalidArgument, match=r"attn_implementation must stay 'tangram' \(got .*'sdpa'\)"):
        model(**batch_of("plain"))


def test_a_mask_that_the_config_does_not_describe_is_refused(monkeypatch):
    model = parallel("mistral")
    model.model.config = copy.deepcopy(model.config)
    model.model.config.sliding_window = 9  # what the model takes for its masks, unlike its layers and model.config
    with pytest.raises(InvalidArgument, match="a layer's mask must be the one that the config describes"):
        model(**batch_of("plain"))


def test_a_copy_of_the_model_computes_with_its_own_weights():
    model = parallel()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    batch = batch_of("plain")
    assert model(**batch).loss != other(**batch).loss
    assert context_parallel(model) is model  # twice is once


def test_one_rank_computes_the_loss_of_the_batch():
    batch = batch_of("packed")
    wanted = expected_loss(model_of("qwen2"), "qwen2", "packed", batch)
    for arguments in (batch, {**batch, "num_items_in_batch": (batch["labels"][:, 1:] != -100).sum()}):
        torch.testing.assert_close(parallel("qwen2")(**arguments).loss, wanted, rtol=1e-5, atol=1e-6)


def test_other_versions_are_warned_of_once(monkeypatch):
    monkeypatch.setattr(_versions, "version", lambda package: "99.1.0")
    monkeypatch.setattr(_versions, "_warned", set())
    with pytest.warns(UserWarning, match=r"tested with trl 1.16 \(got trl 99.1.0\)"):
        _versions.warn_of_untested("trl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _versions.warn_of_untested("trl")
