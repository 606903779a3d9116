# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers over ranks by one key: windows of layers, padding, cu_seq_lens, and rows without their key.
transformers_layers_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from tangram import Mask  # noqa: E402
from tangram.integrations._narrow import _narrowed_keys  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402
from transformers_layers_test import (  # noqa: E402
    BORDERS,
    FAMILIES,
    LENGTH,
    assert_close,
    documents_alone,
    model_of,
    positions,
    tokens,
)

HEADS = (4, 2, 16)


def shards(key, **whole):
    return {name: tangram.dispatch(tensor[0], key)[None] for name, tensor in whole.items()}


def logits_of(model, key, **inputs):
    """Logits of the whole sequence. The key appends rows, whose logits are dropped."""
    local = model(use_cache=False, tangram_key=key, **inputs).logits[0]
    return tangram.undispatch(local, key)[None]


def check_window(family: str, attention_mask: bool) -> None:
    model, alone = model_of(family), model_of(family)
    key = tangram.mask_key(Mask.varlen(BORDERS), *HEADS, chunk_size=8)
    whole = {"input_ids": tokens(), "position_ids": positions()}
    if attention_mask:
        whole["attention_mask"] = torch.ones(1, LENGTH, dtype=torch.int64)
    model.set_attn_implementation("tangram")
    for _ in range(2):
        model.zero_grad()
        ours = logits_of(model, key, **shards(key, **whole))
        ours.square().mean().backward()
    assert tangram.get_most_recent_key() is key
    assert len(_narrowed_keys.get(key, {})) == ("sliding_window" in FAMILIES[family][1]), "planned more than once"
    theirs = documents_alone(alone)
    assert_close(ours, theirs)
    alone.set_attn_implementation("tangram")
    given = {"position_ids": positions(), "use_cache": False}
    alone(input_ids=tokens(), **given).logits.square().mean().backward()
    for (name, parameter), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
        if wanted.grad is None:
            continue
        gradient = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        torch.testing.assert_close(gradient, wanted.grad, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def refused(kind, model, **inputs) -> str:
    try:
        model(use_cache=False, **inputs)
    except kind as error:
        return str(error)
    raise AssertionError(f"nothing was refused, expected {kind.__name__}")


@torch.no_grad()
def check_documents_and_refusals() -> None:
    rank = dist.get_rank()
    model = model_of("mistral")
    whole = documents_alone(model)
    model.set_attn_implementation("tangram")
    key = tangram.mask_key(Mask.causal(LENGTH), *HEADS, chunk_size=8)
    cu = {"cu_seq_lens_q": torch.tensor(BORDERS), "cu_seq_lens_k": torch.tensor(BORDERS)}
    local = shards(key, input_ids=tokens(), position_ids=positions())
    assert_close(logits_of(model, key, **local, **cu), whole)
    half = torch.tensor([0, LENGTH // 2])
    text = refused(tangram.InvalidArgument, model, **local, tangram_key=key, cu_seq_lens_q=half, cu_seq_lens_k=half)
    assert "rise from 0 to the 40 rows of the key's mask" in text, text

    # A rank whose documents all begin there needs no other rows.
    begins = torch.cat([torch.tensor([True]), local["position_ids"][0].diff() != 1])
    needs_others = local["position_ids"][0][begins].any()
    if needs_others:
        text = refused(tangram.InvalidArgument, model, **local)
        assert "need tangram_key" in text, text
    dist.all_reduce(count := needs_others.int())
    assert count > 0, "no shard needs rows of the other"
    text = refused(tangram.InvalidArgument, model, **local, tangram_mask=Mask.causal(LENGTH))
    assert "need tangram_key" in text, text
    scores = torch.zeros(1, 1, *[local["input_ids"].shape[1]] * 2)
    text = refused(tangram.InvalidArgument, model, **local, tangram_key=key, attention_mask=scores)
    assert "beside tangram_key" in text, text

    # A rank knows the padding of its own rows alone; the other one learns of it instead of waiting.
    padding = torch.ones(1, LENGTH, dtype=torch.int64)
    padding[0, 0] = 0
    local |= shards(key, attention_mask=padding)
    owner = bool(tangram.dispatch(1 - padding[0], key).any())
    text = refused(tangram.Error, model, **local, tangram_key=key)
    assert "attention_mask must be dispatched and hide no rows" in text, (rank, text)
    assert ("refused" in text) != owner, (rank, text)


def main() -> None:
    dist.init_process_group("gloo")
    register()
    check_window("mistral", attention_mask=True)
    for family in ("qwen2_moe", "gemma3", "gpt_oss"):
        check_window(family, attention_mask=False)
    check_documents_and_refusals()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
