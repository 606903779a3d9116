# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The examples on GPUs; those of distributed training are processes, one a GPU, started by torchrun."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HAS_BACKEND = any(b.name == "sm90" and b.available for b in tangram.list_backends())
NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() and HAS_BACKEND else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="no Hopper GPU")]


def run(command, script, printed):
    result = subprocess.run(
        [sys.executable, *command, str(EXAMPLES / script), "--device", "cuda"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    assert printed in result.stdout


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("10_one_graph/one_graph.py", "captured once: weights agree"),
        ("11_top_k_blocks/top_k.py", "gradients agree with dense scores"),
        ("12_masks_on_the_gpu/tokens.py", "results agree"),
        ("13_prefix_trees/grpo.py", "rewards agree"),
    ],
)
def test_examples_of_one_gpu(script, printed):
    run([], script, printed)


@pytest.mark.parametrize(
    ("script", "ranks", "printed", "needs"),
    [
        ("03_multi_token_prediction/train.py", 2, "loss", None),
        ("04_hybrid_layers/hybrid.py", 2, "agree with one process", None),
        ("06_fsdp2_context_parallel/train.py", 2, "step 5: loss", "transformers"),
        ("07_video_block_causal/video.py", 2, "agrees with SDPA", None),
        ("08_tensor_parallel/train.py", 4, "gradients agree", "transformers"),
    ],
)
def test_examples_agree_with_one_process_on_gpus(script, ranks, printed, needs):
    if NUM_GPUS < ranks:
        pytest.skip(f"needs {ranks} Hopper GPUs")
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"not installed: {needs}")
    run(["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"], script, printed)
