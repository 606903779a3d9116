# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The distributed functions on tensors in GPU memory: ranks are processes, one a GPU, started by torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402

CHECKS = Path(__file__).parent / "ranks" / "cuda_checks.py"
HAS_BACKEND = any(b.name == "sm90" and b.available for b in tangram.list_backends())
NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() and HAS_BACKEND else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="no Hopper GPU")]
needs_two = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two Hopper GPUs")


def run_ranks(count, what, timeout=120, **env):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    result = subprocess.run(
        [*command, str(CHECKS), what],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_MODULE_LOADING": "EAGER", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    return result.stdout


def test_one_gpu_is_a_group_too():
    run_ranks(1, "all")


@needs_two
def test_two_gpus_agree_with_dense_attention():
    run_ranks(2, "all", TANGRAM_TIMEOUT_S="20")


@pytest.mark.skipif(NUM_GPUS < 4, reason="needs four Hopper GPUs")
def test_four_gpus_agree_with_dense_attention():
    run_ranks(4, "all", TANGRAM_TIMEOUT_S="20")


@needs_two
def test_two_gpus_agree_with_dense_attention_over_nccl():
    """`transport="nccl"`, of the process: the same results by other messages."""
    assert "strategies" in run_ranks(2, "nccl", TANGRAM_TIMEOUT_S="20", NCCL_NVLS_ENABLE="0")


@needs_two
def test_two_gpus_agree_on_blocks_that_change():
    assert "blocks that change" in run_ranks(2, "blocks", TANGRAM_TIMEOUT_S="20")


@needs_two
def test_borders_of_collectives_are_read_again_or_refused():
    """NCCL counts no version of the tensors it writes: a call went on with the mask of before, and nothing told so."""
    printed = run_ranks(2, "values", NCCL_NVLS_ENABLE="0")
    assert printed.count("calls gave NaN and were refused") == 2, printed


@needs_two
@pytest.mark.parametrize("how", ["wrong", "kill", "silence"])
def test_the_failure_of_a_rank_ends_the_waits_of_the_other(how):
    assert "rank 0 saw it" in run_ranks(2, how, TANGRAM_TIMEOUT_S="4")


@needs_two
@pytest.mark.parametrize("what", ["masks", "softcaps", "rows"])
def test_ranks_whose_known_calls_differ_are_told_what_differs(what):
    """GPUs that knew their keys never compared calls: equal traffic gave wrong numbers, other traffic a timeout."""
    assert run_ranks(2, what, TANGRAM_TIMEOUT_S="20").count("saw it") == 2


def test_two_ranks_cannot_compute_where_one_has_no_gpu():
    """Ranks agree on what is missing, instead of waiting for each other."""
    program = (
        "import os, torch, torch.distributed as dist, tangram\n"
        "rank = int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo')\n"
        "key = tangram.mask_key(tangram.Mask.causal(256), 1, 1, 64)\n"
        "x = torch.zeros(128, 1, 64, dtype=torch.bfloat16, device='cpu' if rank else 'cuda')\n"
        "try:\n"
        "    tangram.calc_attn(x, x, x, key)\n"
        "except tangram.Error as error:\n"
        "    print('refused', flush=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    result = subprocess.run(
        [*command, sys.executable, "-c", program],
        env={**os.environ, "TANGRAM_TIMEOUT_S": "4"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.count("refused") == 2, (result.stdout + result.stderr)[-3000:]
