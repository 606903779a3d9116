# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A transformer on a tree over ranks: each rank has the rows that dispatch gave it and the edges that start there.
trees_model_test.py starts the ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from rotary import DIM, HEADS, HEADS_KV, Model, branching_sequences, gradients, separate  # noqa: E402
from tangram import trees  # noqa: E402

BOUND = 3e-6  # float32 through two layers, relative to the largest value


def near(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((ours.double() - expected).abs().max()) <= BOUND * max(1.0, float(expected.abs().max()))


def check(left: int | None) -> None:
    torch.manual_seed(0)
    model = Model().double()
    generator = torch.Generator().manual_seed(0)
    sequences = branching_sequences(generator)
    weights = [torch.randn(len(s), generator=generator, dtype=torch.float64) for s in sequences]
    logits, log_p, grads = separate(model, sequences, weights, left)
    model.zero_grad()
    model.float()

    tree = trees.from_sequences(sequences, min_shared=4)
    key = tangram.mask_key(tree.mask(None if left is None else (left, 0)), HEADS, HEADS_KV, DIM, chunk_size=4)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return tangram.calc_attn(q, k, v, key)[0]

    tokens, positions = (tangram.dispatch(x, key) for x in (tree.tokens, tree.positions()))
    ours = model(tokens, positions, attend)
    rows, labels, weight = targets = tree.local(key, weights)
    of_edges = -F.cross_entropy(ours[rows], labels, reduction="none")
    (-(weight * of_edges).sum()).backward()
    for mine, expected in zip(gradients(model), grads, strict=True):
        dist.all_reduce(mine)
        assert near(mine, expected)

    whole = tangram.undispatch(ours.detach(), key)
    for s, expected in enumerate(logits):
        if len(expected):
            assert near(whole[tree.rows_of(s)], expected)
    # Each edge is on one rank, so values of tokens add up.
    of_tokens = targets.gather(of_edges.detach())
    dist.all_reduce(of_tokens)
    for mine, expected in zip(of_tokens.split(tree.lengths.tolist()), log_p, strict=True):
        assert len(expected) == 0 or near(mine[1:], expected)
    count = torch.tensor([len(targets)])
    dist.all_reduce(count)
    assert int(count) == len(tree.targets(weights))

    try:
        trees.from_sequences(sequences[:3]).local(key)
    except tangram.InvalidArgument as error:
        assert "Targets.local: key must be of the tree's mask" in str(error)
    else:
        raise AssertionError("a key of another tree was taken")


def main() -> None:
    dist.init_process_group("gloo")
    for left in (None, 7):
        check(left)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
