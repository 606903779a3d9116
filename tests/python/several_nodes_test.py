# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""`make bench-dist NODES=2 HOSTS=a,b`, tried with ranks on processors and a stand-in for ssh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tangram
from ranks.start import free_ports

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(tangram.__file__).parents[2] / "bin" / "tangram"
SSH = """#!/bin/sh
# Hosts are this machine; writes down who was asked for what.
host=$1
shift
[ "$host" != gone ] || { echo "ssh: $host is not known" >&2; exit 255; }
echo "$host $*" >> "$(dirname "$0")/asked"
exec "$@"
"""


@pytest.fixture
def ssh(tmp_path):
    script = tmp_path / "ssh"
    script.write_text(SSH)
    script.chmod(0o755)
    return script


def several_nodes(ssh, *options, hosts="node_a,node_b", program=PROGRAM):
    """Its exit status, what it printed, and the report."""
    report = ssh.parent / "report.json"
    command = [sys.executable, ROOT / "benchmarks" / "runtime" / "several_nodes.py", program, "--hosts", hosts]
    command += ["--cpus", "--forged", "--ssh", ssh, "--address", "127.0.0.1", "--port", free_ports()[0]]
    command += ["--json", report, "--env", "TANGRAM_NUM_THREADS=1", "--limit", "60"]
    command += ["--rows", "256", "--heads", "2,1", "--head-dim", "16", "--fault-rows", "1024", *options]
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, env=env)
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.exists() else None


def test_rates_masks_and_losses_of_ranks_are_reported(ssh):
    status, printed, report = several_nodes(ssh, "--gpus", "1", "--timeout", "3")
    assert (status, report["problems"]) == (0, []), printed
    assert [host["name"] for host in report["hosts"]] == ["node_a", "node_b"]
    assert all(host["version"] == f"tangram {tangram.__version__}" for host in report["hosts"])
    assert report["rates"][0]["GB_per_s"] > 0
    assert [mask["mask"] for mask in report["masks"]] == ["causal", "documents", "windows"]
    assert all(mask["share"] > 0 and mask["tflops_of_rank_one_node"] > 0 for mask in report["masks"])
    assert [fault["signal"] for fault in report["faults"]] == ["KILL", "STOP"]
    for fault in report["faults"]:
        assert fault["ok"] and fault["rank"] == 1
        (survivor,) = fault["survivors"]
        assert survivor["ended"] and survivor["exit_status"] == 4 and "rank 1" in survivor["error"]
        assert survivor["seconds"] < 3 + 15
    asked = (ssh.parent / "asked").read_text()
    assert {line.split()[0] for line in asked.splitlines()} == {"node_a", "node_b"}
    assert "TANGRAM_SECRET" not in asked


def test_survivors_of_each_node_are_asked_for_the_lost_rank(ssh):
    status, printed, report = several_nodes(ssh, "--gpus", "2", "--timeout", "3", "--parts", "faults")
    assert status == 0, printed
    for fault in report["faults"]:
        assert fault["rank"] == 3
        assert [survivor["rank"] for survivor in fault["survivors"]] == [0, 1, 2]


def test_a_part_that_fails_does_not_end_the_others(ssh):
    status, printed, report = several_nodes(ssh, "--gpus", "1", "--parts", "rates,masks", "--heads", "3,2")
    assert status == 1
    assert len(report["rates"]) == 1 and report["masks"] == []
    assert len(report["problems"]) == 3
    assert all("--heads-q: must be a multiple of --heads-kv" in problem for problem in report["problems"]), printed


@pytest.mark.parametrize(
    ("hosts", "program", "message"),
    [
        ("node_a", PROGRAM, "--hosts must name each of the nodes, at least two (got 1: node_a)"),
        ("node_a,gone", PROGRAM, "gone must have"),
        ("node_a,node_b", "/no/such/tangram", "node_a must have /no/such/tangram and take commands by ssh"),
    ],
)
def test_hosts_that_cannot_run_are_named(ssh, hosts, program, message):
    status, printed, report = several_nodes(ssh, "--gpus", "1", hosts=hosts, program=program)
    assert status != 0 and report is None
    assert message in printed
