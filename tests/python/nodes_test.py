# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Groups over several nodes: the order of their ranks, meshes, and how transports are chosen."""

from pathlib import Path

import pytest

import tangram
from tangram import InvalidArgument, TransportConfig, _settings

pytest.importorskip("torch", reason="torch is not installed")
from ranks.start import run_script  # noqa: E402
from tangram._rendezvous import Node  # noqa: E402
from tangram._torch_group import equal_ranks_per_node, node_by_node  # noqa: E402

CHECKS = Path(__file__).parent / "ranks" / "node_checks.py"


def test_ranks_are_ordered_node_by_node():
    nodes = {3: "b", 5: "a", 7: "b", 9: "a", 11: "c"}
    node_of = {rank: Node(name, name) for rank, name in nodes.items()}
    assert node_by_node(sorted(nodes), node_of) == [3, 7, 5, 9, 11]


@pytest.mark.parametrize(
    ("nodes", "ranks"), [("aabb", 2), ("abab", 2), ("aaaa", 0), ("aaab", 0), ("abc", 1), ("a", 0), ("aabbc", 0)]
)
def test_nodes_with_equally_many_ranks_are_counted(nodes, ranks):
    assert equal_ranks_per_node([Node(name, name) for name in nodes]) == ranks


@pytest.mark.parametrize(
    ("transport", "found", "planned"),
    [
        ("copy_engine", 4, 4),
        ("copy_engine", 0, 0),
        ("nccl", 4, 0),
        (TransportConfig(), 4, 4),
        (TransportConfig(inside="nccl"), 4, 0),
        (TransportConfig(ranks_per_node=2), 4, 2),
        (TransportConfig(ranks_per_node=2), 0, 2),
        (TransportConfig(ranks_per_node=3), 4, 4),  # refused where the transport is made
        (TransportConfig(ranks_per_node=8), 4, 4),
    ],
)
def test_plans_know_nodes_where_transports_hand_rows_on(transport, found, planned):
    assert _settings.planned_ranks_per_node(transport, 8, found) == planned


def test_keys_over_nodes_are_planned_with_nodes_where_rows_cross_once():
    printed = run_script(CHECKS, "plans", ranks=4, timeout=120, TANGRAM_TIMEOUT_S="60")
    plans = [line.partition(" planned ")[2] for line in printed.splitlines() if " planned " in line]
    assert len(plans) == 4 and len(set(plans)) == 1


@pytest.mark.parametrize("case", ["order", "rows", "tcp"])
def test_steps_over_nodes_equal_one_device(case):
    run_script(CHECKS, case, ranks=4, timeout=120, TANGRAM_TIMEOUT_S="60")


def test_a_mesh_whose_rows_are_not_nodes_is_refused_on_every_rank():
    printed = run_script(CHECKS, "mesh", ranks=4, timeout=120, TANGRAM_TIMEOUT_S="60")
    assert all(f"rank {rank} saw it" in printed for rank in range(4))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("copy_engine", ("copy_engine", 0, 0)),
        ("nccl", ("nccl", 0, 0)),
        (TransportConfig(), ("copy_engine", 0, 0)),
        (TransportConfig(max_ctas=8), ("copy_engine", 0, 8)),
        (TransportConfig(inside="nccl"), ("nccl", 0, 0)),
        (TransportConfig(ranks_per_node=2), ("nccl", 2, 0)),
        (TransportConfig(ranks_per_node=4), ("copy_engine", 0, 0)),  # all four: one node
    ],
)
def test_a_transport_of_nodes_is_what_the_group_is_made_with(given, made):
    assert _settings.device_transport(given, 4) == made


def test_configure_takes_a_transport_of_nodes():
    before = tangram.configuration().transport
    try:
        assert tangram.configure(transport=TransportConfig(max_ctas=2)).transport == TransportConfig(max_ctas=2)
    finally:
        tangram.configure(transport=before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inside": "rdma"}, r"inside must be one of copy_engine, nccl \(got inside='rdma'\)"),
        ({"between": "copy_engine"}, r"between must be nccl \(got between='copy_engine'\)"),
        ({"max_ctas": -1}, r"max_ctas must be a whole number from 0 on \(got max_ctas=-1\)"),
        ({"ranks_per_node": True}, r"ranks_per_node must be a whole number from 0 on \(got ranks_per_node=True\)"),
        ({"inside": "nccl", "ranks_per_node": 2}, r"ranks_per_node must be 0 with inside='nccl'"),
    ],
)
def test_transports_that_cannot_be_are_refused(given, message):
    with pytest.raises(InvalidArgument, match=message):
        TransportConfig(**given)
