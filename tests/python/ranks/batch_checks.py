# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""context_parallel(model) over ranks beside one process with the attention of Transformers. Arguments: cases
FAMILY:LAYOUT, and names of other checks. context_parallel_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from model_batches import LENGTH, batch_of, expected_loss, gradients, model_of  # noqa: E402
from tangram.integrations.transformers import context_parallel  # noqa: E402

PREFIXES = [
    tangram.AttnSlice(tangram.Range(begin, begin + 5), tangram.Range(begin, begin + 6), min_diag=1)
    for begin in range(0, 3 * LENGTH, LENGTH)
]
"""The first six tokens of each sequence see each other: what lies above the diagonal."""


def averaged(x):
    """Averages like DDP and FSDP average gradients and Trainer averages losses."""
    dist.all_reduce(x := x.detach().clone())
    return x / dist.get_world_size()


def assert_same_gradients(model, wanted):
    found = gradients(model)
    for name, gradient in wanted.items():
        ours = averaged(found.get(name, torch.zeros_like(gradient)))
        # float32: sums in another order, through two layers; gradients are up to about 1.
        torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    assert len(wanted) > 10


def check(family, layout):
    model, alone = model_of(family), model_of(family)
    batch = batch_of(layout)
    expected = expected_loss(alone, family, layout, batch)
    expected.backward()
    context_parallel(model)
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(averaged(loss), expected.detach(), rtol=1e-5, atol=1e-6)
    assert_same_gradients(model, gradients(alone))
    with torch.no_grad():  # the same on every rank
        torch.testing.assert_close(model(**batch).loss, expected.detach(), rtol=1e-5, atol=1e-6)


def check_masks():
    """A mask of the caller's for the whole batch, beside padding and the window of a layer."""
    batch = batch_of("plain")
    rows = batch["input_ids"].numel()
    prefix = tangram.Mask.varlen(list(range(0, rows + 1, LENGTH)))
    prefix = tangram.Mask(rows, rows, [*prefix.slices, *PREFIXES])
    cells = torch.zeros(3, 1, LENGTH, LENGTH, dtype=torch.bool)
    cells |= torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    cells[..., :6, :6] = True
    alone = model_of("llama")
    alone.set_attn_implementation("sdpa")
    expected = alone(**batch, attention_mask=cells, use_cache=False).loss
    expected.backward()
    model = context_parallel(model_of("llama"))
    loss = model(**batch, tangram_mask=prefix).loss
    loss.backward()
    torch.testing.assert_close(averaged(loss), expected.detach(), rtol=1e-5, atol=1e-6)
    assert_same_gradients(model, gradients(alone))


def check_generate():
    """Whole on every rank, between steps."""
    model, alone = context_parallel(model_of("mistral")), model_of("mistral")
    alone.set_attn_implementation("sdpa")
    loss = model(**batch_of("packed")).loss
    prompt = batch_of("plain")["input_ids"][:2, :9]
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.eval().generate(prompt, **options), alone.eval().generate(prompt, **options))
    assert torch.equal(model.train()(**batch_of("packed")).loss, loss)


def check_checkpointing():
    model, alone = context_parallel(model_of("gemma2")), model_of("gemma2")
    model.gradient_checkpointing_enable()
    batch = batch_of("packed")
    model(**batch).loss.backward()
    expected_loss(alone, "gemma2", "packed", batch).backward()
    assert_same_gradients(model, gradients(alone))


def check_fsdp():
    """Sharded after context_parallel, as Accelerate does: FSDP averages gradients."""
    model, alone = context_parallel(model_of("qwen3")), model_of("qwen3")
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    batch = batch_of("padded_right")
    loss = model(**batch).loss
    loss.backward()
    expected = expected_loss(alone, "qwen3", "padded_right", batch)
    expected.backward()
    torch.testing.assert_close(averaged(loss), expected.detach(), rtol=1e-5, atol=1e-6)
    for (name, parameter), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
        ours = parameter.grad.full_tensor()
        torch.testing.assert_close(ours, wanted.grad, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def check_embeddings():
    """Rows that the caller has embedded: the gradient of a rank is that of its rows."""
    model, alone = context_parallel(model_of("llama")), model_of("llama")
    batch = batch_of("packed")
    for one in (model, alone):
        given = {**batch, "inputs_embeds": one.get_input_embeddings()(batch["input_ids"])}
        del given["input_ids"]
        (one(**given).loss if one is model else expected_with(one, given)).backward()
    assert_same_gradients(model, gradients(alone))


def expected_with(model, given):
    model.set_attn_implementation("eager")
    return model(**given, use_cache=False).loss


def check_refusals():
    """On every rank alike, and the group goes on."""
    model = context_parallel(model_of("llama"))
    batch = batch_of("plain")
    for given, text in (
        ({**batch, "input_ids": batch["input_ids"] + dist.get_rank() % 2}, "alike on all ranks of the group"),
        ({**batch, "use_cache": True}, "use_cache must be False"),
        ({**batch, "use_cache": dist.get_rank() == 0}, "use_cache must be False"),
    ):
        try:
            model(**given)
        except tangram.InvalidArgument as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"not refused: {text}")
    packed = batch_of("packed_with_mask")
    packed["attention_mask"][:, -4:] = 0
    try:
        context_parallel(model_of("llama4"))(**packed)
    except tangram.InvalidArgument as error:
        assert "chunks of packed documents need position_ids without attention_mask" in str(error), error
    else:
        raise AssertionError("chunks of packed documents beside padding were not refused")
    model(**batch).loss.backward()


def main():
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        family, _, layout = case.partition(":")
        try:
            check(family, layout) if layout else globals()[f"check_{family}"]()
        except Exception as error:
            raise AssertionError(case) from error
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
