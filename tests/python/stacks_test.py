# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training stacks with Tangram on two ranks: losses and gradients are those of one process without it, or the call is
refused by name. Nearly all of them run in `make test-long`, which installs the packages."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")

import stacks  # noqa: E402
from ranks.start import run_script  # noqa: E402

LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
RANKS = Path(__file__).parent / "ranks"
long = pytest.mark.skipif(not LONG, reason="ten seconds a case, nearly all of them imports: in make test-long")


def needs(*names):
    if not stacks.has(*names):
        pytest.skip(f"not installed: {', '.join(names)} (tools/setup_stacks.sh)")


@long
def test_ring_flash_attn_within_transformers():
    pytest.importorskip("transformers")
    cases = ["llama:packed", "mistral:packed", "gpt_oss:packed", "gemma2:packed"]
    run_script(RANKS / "stack_checks.py", "ring", *cases, ranks=2)


@long
def test_deepspeed_ulysses():
    pytest.importorskip("transformers")
    needs("deepspeed")
    cases = [f"{family}:{layout}" for family in ("llama", "mistral") for layout in ("plain", "packed", "padded_left")]
    cases += ["gemma2:packed", "qwen3:padded_right", "sinks", "local"]
    run_script(RANKS / "stack_checks.py", "deepspeed", *cases, ranks=2)


@long
def test_megatron_core(tmp_path):
    needs("megatron-core")
    cases = ["plain", "packed", "learned", "yarn", "window", "sinks", "off_by_one", "prediction", "moe"]
    for ranks in (1, 2):
        run_script(RANKS / "megatron_checks.py", tmp_path, *cases, ranks=ranks)


@long
def test_megatron_core_with_tensor_and_sequence_parallelism(tmp_path):
    needs("megatron-core")
    for ranks in (1, 4):
        script = RANKS / "megatron_parallel_checks.py"
        cases = ["packed", "window", "sinks", "learned", "prediction"]
        run_script(script, "tensor", tmp_path, *cases, ranks=ranks, timeout=900)


@long
@pytest.mark.parametrize("ranks", [1, 2])
def test_megatron_core_recomputes_without_attention(ranks, tmp_path):
    needs("megatron-core")
    run_script(
        RANKS / "megatron_parallel_checks.py", "recompute", tmp_path, "selective", "uniform", "block", ranks=ranks
    )


@long
def test_torchtitan(tmp_path):
    needs("torchtitan")
    cases = ["causal", "documents", "selective", "full", "qwen3", "window", "prefix"]
    for ranks in (1, 2, 4):  # four: tensor and sequence parallelism too
        some = cases[:2] if ranks == 4 else cases
        run_script(RANKS / "titan_checks.py", tmp_path, *some, ranks=ranks, timeout=900)


def test_rows_of_diffusers_ranks():
    """The one case that needs no package."""
    run_script(RANKS / "diffusers_rows_checks.py", ranks=2)


@long
def test_diffusers():
    needs("diffusers")
    run_script(RANKS / "diffusers_checks.py")


@long
def test_diffusers_over_ranks():
    needs("diffusers")
    run_script(RANKS / "diffusers_checks.py", ranks=2)


@long
@pytest.mark.parametrize(
    ("stack", "script", "ranks"),
    [
        ("-", "ring_names", 2),
        ("deepspeed", "ulysses", 2),
        ("megatron-core", "megatron_gpt", 2),
        ("diffusers", "diffusers_video", 0),
        ("diffusers", "diffusers_video", 2),
        ("torchtitan", "torchtitan_llama", 2),
    ],
)
def test_examples(stack, script, ranks):
    pytest.importorskip("transformers")
    if stack != "-":
        needs(stack)
    path = Path(__file__).resolve().parents[2] / "examples" / "15_training_stacks" / f"{script}.py"
    run_script(RANKS / "run_example.py", stack, path, ranks=ranks, DS_ACCELERATOR="cpu")
