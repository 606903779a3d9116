# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tree_batch over ranks: log probabilities and gradients add up to those of separate sequences.
trees_transformers_test.py starts the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tangram import InvalidArgument  # noqa: E402
from tangram.integrations.transformers import register  # noqa: E402
from tangram.integrations.trees import tree_batch  # noqa: E402
from transformers_test import model_of  # noqa: E402
from trees_transformers_test import NEAR, gradients, of_padded_batch, padded_batch  # noqa: E402


def check(family: str) -> None:
    model, same = model_of(family)
    ids, real, completion = padded_batch()
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(2)) * completion
    model.set_attn_implementation(same)
    _, log_p = of_padded_batch(model, ids, real)
    (log_p * weights).sum().backward()
    grads = gradients(model)

    model.set_attn_implementation("tangram")
    for loss_mask in (None, completion):
        batch = tree_batch(
            ids, real, config=model.config, loss_mask=loss_mask, min_shared=8, cp_group_or_mesh=dist.group.WORLD
        )
        assert batch.inputs["input_ids"].shape[1] < batch.tree.num_rows
        ours = batch.log_probs(model(**batch.inputs).logits)
        (ours * weights).sum().backward()
        whole = ours.detach()
        dist.all_reduce(whole)
        torch.testing.assert_close(whole * completion, log_p.detach() * completion, **NEAR)
        for mine, expected in zip(gradients(model), grads, strict=True):
            dist.all_reduce(mine)
            torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-3)
    for refused, options in (("needs all rows", {"config": model.config}), ("needs config", {})):
        try:
            tree_batch(ids, real, cp_group_or_mesh=dist.group.WORLD, **options).logits(torch.zeros(1, 3, 64))
        except InvalidArgument as error:
            assert refused in str(error)
        else:
            raise AssertionError(refused)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    register()
    for family in ("llama", "mistral", "gemma2"):
        check(family)
    dist.destroy_process_group()
