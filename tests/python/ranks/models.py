# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers whose layers alternate between window and full attention, over ranks: one dispatch, two keys.
transformers_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402
from transformers_test import FAMILIES, model_of  # noqa: E402

CU_SEQLENS = [0, 20, 21, 90, 140]


def check(family: str, checkpointing: bool) -> None:
    model, same = model_of(family)
    alone, _ = model_of(family)
    config = model.config
    total = CU_SEQLENS[-1]
    tokens = torch.randint(1, 64, (total,), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor(CU_SEQLENS).diff()
    starts = torch.tensor(CU_SEQLENS[:-1]).repeat_interleave(lengths)
    positions = torch.arange(total) - starts

    full = tangram.Mask.varlen(CU_SEQLENS)
    window = tangram.Mask.sliding_window(CU_SEQLENS, (config.sliding_window - 1, 0))
    heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    key = tangram.mask_key(full, *heads, chunk_size=8)
    keys = {"full_attention": key, "sliding_attention": tangram.make_mask_key_after_dispatch(window, key)}
    model.set_attn_implementation("tangram")
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()  # without dropout this changes nothing else
    local = [tangram.dispatch(x, key)[None] for x in (tokens, positions)]
    labels = tangram.dispatch_labels(tokens, key, shift=1, cu_seqlens=CU_SEQLENS)
    logits = model(input_ids=local[0], position_ids=local[1], tangram_key=keys, use_cache=False).logits[0]
    count = total - (len(CU_SEQLENS) - 1)
    loss = F.cross_entropy(logits, labels, reduction="sum") / count
    loss.backward()
    dist.all_reduce(loss := loss.detach())

    alone.set_attn_implementation("tangram")
    masks = {"full_attention": full, "sliding_attention": window}
    whole = alone(input_ids=tokens[None], position_ids=positions[None], tangram_mask=masks, use_cache=False).logits[0]
    if family != "gpt_oss":  # whose own mask does not know where documents begin
        alone.set_attn_implementation(same)
        theirs = alone(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]
        torch.testing.assert_close(whole, theirs, rtol=1e-4, atol=2e-5)
    borders = torch.tensor(CU_SEQLENS[1:]) - 1
    expected = F.cross_entropy(whole, tokens.roll(-1).index_fill(0, borders, -100), reduction="sum") / count
    expected.backward()
    assert abs(loss - expected) <= 1e-4 * expected, (family, loss, expected)
    compared = 0
    for (name, ours), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
        if wanted.grad is None:
            continue
        gradient = torch.zeros_like(wanted) if ours.grad is None else ours.grad
        dist.all_reduce(gradient)
        torch.testing.assert_close(gradient, wanted.grad, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
        compared += 1
    assert compared > 10


def main() -> None:
    dist.init_process_group("gloo")
    register()
    for family in ("gemma2", "gpt_oss"):
        assert family in FAMILIES
        check(family, checkpointing=family == "gemma2")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
