# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A compiled model over ranks by keys of its two kinds of layers, a new pair for each pack, beside the model that is
not compiled. transformers_compiled_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from model_batches import gradients, model_of  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402

PACKS = [(20, 1, 69, 50), (100, 40), (70, 70)]


def keys_of(borders, window):
    key = tangram.mask_key(tangram.Mask.varlen(borders), 4, 2, 16, chunk_size=10)
    narrow = tangram.Mask.sliding_window(borders, (window - 1, 0))
    return key, {"full_attention": key, "sliding_attention": tangram.make_mask_key_after_dispatch(narrow, key)}


def refused(compiled, **inputs):
    try:
        compiled(use_cache=False, **inputs)
    except Exception as error:
        return str(error)
    raise AssertionError("not refused")


def main():
    dist.init_process_group("gloo")
    register()
    model, alone = model_of("qwen3"), model_of("qwen3")
    graphs = 0

    def backend(graph, _):
        nonlocal graphs
        graphs += 1
        return graph

    for one in (model, alone):
        one.set_attn_implementation("tangram")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for lengths in PACKS:
        borders = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        key, keys = keys_of(borders, model.config.sliding_window)
        positions = torch.cat([torch.arange(n) for n in lengths])
        tokens = torch.randint(1, 64, (borders[-1],), generator=torch.Generator().manual_seed(len(lengths)))
        local = [tangram.dispatch(x, key)[None] for x in (tokens, positions)]
        inputs = dict(zip(("input_ids", "position_ids"), local, strict=True))
        outs = []
        for run, of in ((compiled, model), (alone, alone)):
            of.zero_grad()
            logits = run(**inputs, tangram_key=keys, use_cache=False).logits
            logits.square().mean().backward()
            outs.append((logits.detach(), gradients(of)))
        torch.testing.assert_close(outs[0][0], outs[1][0], rtol=1e-5, atol=1e-5)
        for name, gradient in outs[1][1].items():
            torch.testing.assert_close(outs[0][1][name], gradient, rtol=1e-4, atol=1e-6)
    assert graphs <= 2, graphs  # of one pair of keys, and of all others
    text = refused(compiled, **inputs, tangram_key=key)
    assert "layers with a sliding_window need a key of their own" in text, text
    text = refused(compiled, **inputs, tangram_key=keys, attention_mask=torch.ones_like(inputs["input_ids"]))
    assert "attention_mask must be None beside tangram_key" in text, text
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
