# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""examples/13_train_long_context on GPUs, bfloat16: every --attention that is installed, also with offload, has losses
and gradients of dense attention on the CPU in float32."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).parent / "ranks" / "long_context_checks.py"
sys.path.insert(0, str(ROOT / "examples" / "13_train_long_context"))
HAS_BACKEND = any(b.name == "sm90" and b.available for b in tangram.list_backends())
NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() and HAS_BACKEND else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="no Hopper GPU")]
SMALL = "--size,10M,--layers,2,--tokens,1500"
PACKS, CAUSAL, WINDOW = "--mask,packs", "--mask,causal", "--window,64,--full-every,2"
SYSTEMS = ["tangram", "ulysses_fa4", "ulysses_flex", "gather_zigzag", "gather_contiguous"]
CASES = [(mask, system) for mask in (PACKS, WINDOW) for system in SYSTEMS]
CASES += [(CAUSAL, "torch_ring"), (PACKS, "tangram,--keep,none"), (PACKS, "tangram,--offload,all,--moments,host")]
CASES += [(PACKS, "tangram,--offload,inputs,--moments,bf16")]


def run(ranks, results, cases):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launch, str(CHECKS), str(results), *cases]
    result = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "4"}, capture_output=True, text=True, timeout=400
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    return torch.load(results)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_system_trains_as_dense_attention_on_the_cpu(tmp_path, ranks):
    if NUM_GPUS < ranks:
        pytest.skip(f"needs {ranks} Hopper GPUs")
    import attention

    device = torch.device("cuda")
    here = [case for case in CASES if attention.missing(case[1].split(",")[0], device) is None]
    dense = run(1, tmp_path / "dense", [f"{SMALL},{mask},--attention,dense" for mask in (PACKS, CAUSAL, WINDOW)])
    found = run(
        ranks, tmp_path / "found", [f"{SMALL},--device,cuda,{mask},--attention,{system}" for mask, system in here]
    )
    for mask, system in here:
        ours = found[f"{SMALL},--device,cuda,{mask},--attention,{system}"]
        wanted = dense[f"{SMALL},{mask},--attention,dense"]
        # bfloat16 rounds weights and activations to 2^-9; losses are means over 1,500 rows.
        for loss, of_dense in zip(ours["losses"], wanted["losses"], strict=True):
            assert abs(loss - of_dense) < 1e-2 * of_dense, (mask, system, ours["losses"], wanted["losses"])
        for name, gradient in wanted["gradients"].items():
            apart = ((ours["gradients"][name].float() - gradient).norm() / gradient.norm()).item()
            assert apart < 5e-2, (mask, system, name, apart)
