# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tree_batch: padded batches of completions through small random models, as trees and as they are."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from ranks.start import run_script  # noqa: E402
from tangram import InvalidArgument  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402
from tangram.integrations.trees import tree_batch  # noqa: E402
from transformers_test import model_of  # noqa: E402

PROMPT, COMPLETION = 20, 16
NEAR = {"atol": 2e-5, "rtol": 1e-4}  # float32 through two layers, values around 1


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


def padded_batch():
    """Two prompts padded on the left, three completions each padded on the right, a row of padding alone."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.zeros(7, PROMPT + COMPLETION, dtype=torch.int64)
    real = torch.zeros_like(ids)
    completion = torch.zeros_like(ids)
    for i in range(6):
        if i % 3 == 0:
            prompt = torch.randint(1, 64, (PROMPT - i,), generator=generator)
        length = int(torch.randint(1, COMPLETION + 1, (1,), generator=generator))
        ids[i, PROMPT - len(prompt) : PROMPT] = prompt
        ids[i, PROMPT : PROMPT + length] = torch.randint(1, 64, (length,), generator=generator)
        real[i, PROMPT - len(prompt) : PROMPT + length] = 1
        completion[i, PROMPT : PROMPT + length] = 1
    return ids, real, completion


def of_padded_batch(model, ids, real):
    """Logits and log probabilities of each real sequence by itself, at their places in the batch."""
    logits = torch.zeros(*ids.shape, 64)
    log_p = torch.zeros(ids.shape)
    for i in range(len(ids)):
        places = real[i].nonzero().flatten()
        if len(places):
            of_one = model(input_ids=ids[i, places][None], use_cache=False).logits[0]
            logits = logits.index_put((torch.tensor(i), places), of_one)
            picked = of_one[:-1].log_softmax(-1).gather(1, ids[i, places[1:], None])[:, 0]
            log_p = log_p.index_put((torch.tensor(i), places[1:]), picked)
    return logits, log_p


def gradients(model):
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return grads


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_a_batch_as_a_tree_gives_the_same_logits_log_probabilities_and_gradients(family):
    """Mistral has a window in all layers, Gemma in every other one: windows count positions, not rows."""
    model, same = model_of(family)
    ids, real, completion = padded_batch()
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(2))
    model.set_attn_implementation(same)
    logits, log_p = of_padded_batch(model, ids, real)
    (log_p * weights).sum().backward()
    grads = gradients(model)
    completions = log_p.detach() * completion

    model.set_attn_implementation("tangram")
    batch = tree_batch(ids, real, config=model.config, min_shared=8)
    assert batch.tree.num_rows < 0.7 * int(real.sum())
    out = model(**batch.inputs).logits
    torch.testing.assert_close(batch.logits(out), logits, **NEAR)
    ours = batch.log_probs(out)
    torch.testing.assert_close(ours, log_p, **NEAR)
    (ours * weights).sum().backward()
    for mine, expected in zip(gradients(model), grads, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-3)

    # Targets of completions alone: the model computes the logits of fewer rows.
    part = tree_batch(ids, real, config=model.config, loss_mask=completion, min_shared=8)
    out = model(**part.inputs).logits
    assert out.shape[1] < batch.tree.num_rows
    torch.testing.assert_close(part.log_probs(out), completions, **NEAR)
    with pytest.raises(InvalidArgument, match="needs the logits of all rows"):
        part.logits(out)


def test_what_does_not_fit_is_refused():
    ids, real, _ = padded_batch()
    with pytest.raises(InvalidArgument, match=r"tree_batch: input_ids must be \[batch, length\]"):
        tree_batch(ids[0])
    with pytest.raises(InvalidArgument, match="tree_batch: attention_mask must have the shape of input_ids"):
        tree_batch(ids, real[:, 1:])
    with pytest.raises(InvalidArgument, match="tree_batch: loss_mask must have the shape of input_ids"):
        tree_batch(ids, real, loss_mask=real[1:])
    with pytest.raises(InvalidArgument, match=r"TreeBatch: logits must be those of model\(\*\*batch.inputs\)"):
        tree_batch(ids, real).log_probs(torch.zeros(1, 3, 64))

    class Chunked:
        layer_types = ["full_attention", "chunked_attention"]

    with pytest.raises(InvalidArgument, match=r"layers must be of full_attention or .* \(got chunked_attention\)"):
        tree_batch(ids, real, config=Chunked())


def test_over_ranks():
    run_script(Path(__file__).parent / "ranks" / "tree_batch_checks.py", ranks=2)
