# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The distributed functions over gloo: ranks are processes, started by torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

CHECKS = Path(__file__).parent / "ranks" / "checks.py"


def run_ranks(count, *arguments, **env):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    result = subprocess.run(
        [*command, str(CHECKS), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TANGRAM_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    return result.stdout


# `make test-long` adds what twice as many processes take.
@pytest.mark.parametrize("count", [2, 4] if os.environ.get("TANGRAM_TEST_LONG") == "1" else [2])
def test_ranks_agree_with_dense_attention(count):
    run_ranks(count, "all")


def test_ranks_of_several_hosts_meet_at_a_port():
    run_ranks(3, "hosts")


def test_a_silent_rank_is_a_timeout():
    assert "rank 0 saw it" in run_ranks(2, "silence", TANGRAM_TIMEOUT_S="3")


def test_a_dead_rank_is_an_error_on_all_others_at_once():
    printed = run_ranks(3, "kill", TANGRAM_TIMEOUT_S="30")
    assert "rank 0 saw it" in printed and "rank 2 saw it" in printed


def test_a_rank_that_never_comes_is_a_timeout():
    assert "rank 0 saw it" in run_ranks(2, "alone", TANGRAM_TIMEOUT_S="2")
