# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What children of ranks may do: plan and attend, but not use the group of their parent; fork_torch_test.py starts the
ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from forked import assert_passes_in_child, refused  # noqa: E402
from tangram import _torch_group  # noqa: E402

HEADS, DIM, ROWS = 2, 8, 256
INHERITED = "a child of a fork must not use a group of its parent"


def key_of(mask, group=None):
    return tangram.mask_key(mask, HEADS, HEADS, DIM, group)


def step(key):
    shard = tangram.dispatch(torch.ones(ROWS, HEADS, DIM), key)
    q = shard.clone().requires_grad_()
    out, _ = tangram.calc_attn(q, shard, shard, key)
    out.sum().backward()
    return tangram.undispatch(out.detach(), key)


def check_child(key, other):
    q = torch.ones(key.shapes[0])
    with refused(tangram.CommError, INHERITED):
        tangram.calc_attn(q, q, q, key)
    with refused(tangram.CommError, INHERITED):
        tangram.undispatch(q, key)
    with refused(tangram.CommError, "must not make keys of a group that its parent has not used"):
        key_of(tangram.Mask.causal(ROWS), other)
    # Masks of the group that it knows, as a loader of training data plans them.
    mask = tangram.Mask.varlen([0, 100, ROWS], causal=True)
    assert key_of(mask).plan == tangram.mask_key_async(mask, HEADS, HEADS, DIM).result(timeout=50).plan
    tangram.plan_async(mask, 4).result(timeout=50)


def main():
    dist.init_process_group("gloo")
    key = key_of(tangram.Mask.causal(ROWS))
    before = step(key)
    other = dist.new_group()  # over the same ranks, not used yet
    for _ in range(3):
        assert_passes_in_child(lambda: check_child(key, other))
        torch.testing.assert_close(step(key), before, rtol=0, atol=0)
    assert_passes_in_child(_torch_group._leave)  # as at the end of a process: the peers must not hear of it
    torch.testing.assert_close(step(key), before, rtol=0, atol=0)
    dist.destroy_process_group()


main()
