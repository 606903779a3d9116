# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs of several nodes, forged: ranks that claim to be on different nodes may share a GPU. NCCL takes them for
ranks of different hosts, which it reaches through sockets."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import distributed_cuda_test as one_node  # noqa: E402

pytestmark = one_node.pytestmark


def run_nodes(nodes, ranks_per_node, what, timeout=400, **env):
    given = {"FORGED_RANKS_PER_NODE": str(ranks_per_node), "TANGRAM_TIMEOUT_S": "60", **env}
    return one_node.run_ranks(nodes * ranks_per_node, what, timeout=timeout, **given)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 1), (4, 1), (2, 2)])
def test_forged_nodes_agree_with_dense_attention(nodes, ranks_per_node):
    assert "strategies" in run_nodes(nodes, ranks_per_node, "nodes")


@pytest.mark.skipif(one_node.NUM_GPUS < 2, reason="needs two Hopper GPUs")
def test_four_nodes_of_two_ranks_agree_with_dense_attention():
    assert "strategies" in run_nodes(4, 2, "nodes")


def test_nodes_without_relays_agree_with_dense_attention():
    """NCCL alone moves rows: for nodes of unequal numbers of ranks, and GPUs that cannot reach each other."""
    assert "strategies" in run_nodes(2, 1, "flat")


@pytest.mark.parametrize("how", ["kill", "silence"])
def test_the_failure_of_a_node_ends_the_waits_of_the_other(how):
    assert "rank 0 saw it" in run_nodes(2, 1, how, TANGRAM_TIMEOUT_S="4")
