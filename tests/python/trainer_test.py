# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Trainer and TRL's SFTTrainer with ParallelismConfig(cp_size=2): losses, gradients, evaluation and generate are those
of one process without Tangram, or the trainer is refused by name. `make test` runs examples/14_trainer alone."""

import importlib.util
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from ranks.start import SERVER, run_script  # noqa: E402
from tangram import InvalidArgument  # noqa: E402
from tangram.integrations.accelerate import ParallelismConfig  # noqa: E402

SCRIPT = Path(__file__).parent / "ranks" / "trainer_checks.py"
SERVER.set_forkserver_preload(["torch.distributed", "tangram.distributed", "transformers.trainer", "accelerate"])
LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
CASES = [
    "trainer mistral flattened accumulate",
    "trainer mistral packed checkpoint",
    "trainer llama padded_right own_tokens",
    "trainer gemma2 padded_left accumulate",
    "trainer qwen3 padded_left",
    "trainer llama4 packed",
    "trainer gpt_oss padded_right",
    "accelerate mistral flattened",
    "accelerate qwen2 padded_right",
    "trl qwen3 flattened accumulate",
    "trl mistral padded_right",
    "trl gemma2 padded_right",
    "trl phi3 flattened",
    "trl gpt_oss padded_right",
]


def skip_without_trl(case):
    if case.startswith("trl") and (missing := [x for x in ("trl", "datasets") if importlib.util.find_spec(x) is None]):
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.mark.skipif(not LONG, reason="ten seconds a case, nearly all of them imports: make test-long runs them")
@pytest.mark.parametrize("case", CASES)
def test_training_over_ranks_is_that_of_one_process(case, tmp_path):
    skip_without_trl(case)
    for ranks in (0, 2):
        run_script(SCRIPT, tmp_path / str(ranks), *case.split(), ranks=ranks)
    alone, ours = (torch.load(tmp_path / str(ranks)) for ranks in (0, 2))
    # float32, sums in another order: errors grow from step to step.
    for figure in ("loss", "grad_norm", "eval_loss"):
        torch.testing.assert_close(torch.tensor(ours[figure]), torch.tensor(alone[figure]), rtol=1e-5, atol=1e-5)
    assert len(ours["gradients"]) == len(alone["gradients"]) == 3
    for step, wanted in zip(ours["gradients"], alone["gradients"], strict=True):
        for name, gradient in wanted.items():
            torch.testing.assert_close(step[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
    assert torch.equal(ours["text"], alone["text"])


@pytest.mark.skipif(not LONG, reason="as the others")
@pytest.mark.parametrize("kind", ["trainer", "trl"])
def test_what_trainer_would_get_wrong_is_refused_by_name(kind):
    skip_without_trl(kind)
    run_script(SCRIPT, "refusals", kind, ranks=2)


def test_sizes_that_do_not_go_together_are_refused():
    with pytest.raises(InvalidArgument, match=r"cp_backend must be 'tangram' or None.*\(got cp_backend='torch'\)"):
        ParallelismConfig(cp_size=2, cp_backend="torch")
    with pytest.raises(InvalidArgument, match=r"tp_size must be 1 beside cp_size \(got tp_size=2\)"):
        ParallelismConfig(cp_size=2, tp_size=2)
    assert ParallelismConfig(cp_size=2).cp_backend == "tangram"
