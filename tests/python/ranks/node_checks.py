# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Groups over several nodes, which ranks only claim to be on; nodes_test.py starts the ranks."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

RANK = int(os.environ["RANK"])
alternates = sys.argv[1] in ("order", "mesh")
os.environ["TANGRAM_NODE_ID"] = f"node {RANK % 2 if alternates else RANK // 2}"

import tangram  # noqa: E402
from tangram import _rendezvous  # noqa: E402
from tangram._torch_group import torch_group  # noqa: E402

TOTAL, HEADS, DIM = 128, 2, 8


def check_step(group):
    """Checks a step as on one device: the order of ranks is the group's own business."""
    torch.manual_seed(3)
    q, k, v, dout = (torch.randn(TOTAL, HEADS, DIM) for _ in range(4))
    mask = tangram.Mask.varlen([0, 50, TOTAL], causal=True)
    key = tangram.mask_key(mask, HEADS, HEADS, DIM, group, chunk_size=8)
    assert key.rank == torch_group(group).rank
    parts = [tangram.dispatch(x, key).requires_grad_() for x in (q, k, v)]
    out, _ = tangram.calc_attn(*parts, key)
    out.backward(tangram.dispatch(dout, key))
    got = [tangram.undispatch(x, key) for x in (out.detach(), *(part.grad for part in parts))]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = tangram.flex_flash_attn_func(*leaves, mask)[0]
    wanted.backward(dout)
    for mine, other in zip(got, (wanted.detach(), *(leaf.grad for leaf in leaves)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def check_order():
    group = torch_group(None)
    assert group.ranks == [0, 2, 1, 3], group.ranks
    assert group.ranks[group.rank] == RANK
    check_step(None)


def check_mesh():
    """Nodes are {0, 2} and {1, 3}."""
    try:
        torch_group(init_device_mesh("cpu", (2, 2)))
    except tangram.InvalidArgument as error:
        assert "got rank 0 on node 0 and rank 1 on node 1 in row [0, 1]" in str(error), error
        print(f"rank {RANK} saw it")
    else:
        raise AssertionError("a mesh whose rows are not on one node was taken")


def check_rows_of_a_mesh_that_are_nodes():
    mesh = init_device_mesh("cpu", (2, 2))
    assert torch_group(mesh).ranks == [0, 1, 2, 3]
    check_step(mesh)


def check_tcp():
    """Simulates ranks of several hosts, which have no folder in common."""
    _rendezvous._host_id = lambda: f"host of {RANK}"
    group = torch_group(None)
    assert not group.is_one_host and group.ranks == [0, 1, 2, 3]
    check_step(None)


def check_plans():
    """On host memory each rank fetches for itself, so plans know no nodes. On GPUs they do, alike on all ranks."""
    group = torch_group(None)
    mask = tangram.Mask.varlen([0, 700, 1100, 1900, 4096], causal=True)
    flat = tangram.mask_key(mask, HEADS, HEADS, DIM)
    assert flat.plan.config.cost.ranks_per_node == 0
    group.is_on_gpus = True
    key = tangram.mask_key(mask, HEADS, HEADS, DIM)
    assert key is not flat and key.plan.config.cost.ranks_per_node == 2
    same = tangram.plan(mask, 4, config=key.plan.config)
    ranks_of_rows = tuple(key.plan.q_dispatch.rank_of_chunk)
    assert tuple(same.q_dispatch.rank_of_chunk) == ranks_of_rows
    one_node = tangram.DistAttnConfig(cost=tangram.CostModel(ranks_per_node=4))
    assert tangram.mask_key(mask, HEADS, HEADS, DIM, dist_attn_config=one_node).plan.config.cost.ranks_per_node == 4
    check_step(None)
    print(f"rank {RANK} planned {hash(ranks_of_rows)}", flush=True)


dist.init_process_group("gloo")
{
    "order": check_order,
    "mesh": check_mesh,
    "plans": check_plans,
    "rows": check_rows_of_a_mesh_that_are_nodes,
    "tcp": check_tcp,
}[sys.argv[1]]()
dist.barrier()
dist.destroy_process_group()
