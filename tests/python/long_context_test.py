# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""examples/13_train_long_context: every --attention over two ranks has losses and gradients of dense attention in one
process; runs resume to the same losses; what goes wrong is said, and nothing is lost."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from ranks.start import run_script  # noqa: E402

CHECKS = Path(__file__).parent / "ranks" / "long_context_checks.py"
LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
LAYERS = 3
PACKS, CAUSAL, WINDOW = "--mask,packs", "--mask,causal", "--window,16,--full-every,3"
# (mask, system and options, attention passes forward: of Tangram, calls of a rival's kernel)
CASES = [
    (PACKS, "tangram", (LAYERS, 0)),
    (PACKS, "tangram,--keep,none", (2 * LAYERS, 0)),
    (PACKS, "tangram,--offload,all,--moments,host", (LAYERS, 0)),
    (PACKS, "ulysses_fa4", (0, LAYERS)),
    (PACKS, "ulysses_flex,--keep,none,--offload,inputs", (0, 2 * LAYERS)),
    (PACKS, "gather_zigzag,--offload,all", (0, 2 * LAYERS)),
    (PACKS, "gather_contiguous", (0, LAYERS)),
    (CAUSAL, "tangram,--offload,inputs", (LAYERS, 0)),
    (CAUSAL, "torch_ring", (0, 2 * LAYERS)),
    (WINDOW, "tangram", (LAYERS, 0)),
    (WINDOW, "ulysses_fa4", (0, LAYERS)),
    (WINDOW, "gather_zigzag", (0, 2 * LAYERS)),
    (WINDOW, "gather_contiguous", (0, LAYERS)),
]
MORE = [(mask, f"tangram:{name}", (LAYERS, 0)) for mask in (PACKS, CAUSAL) for name in ("ulysses", "ring", "auto")]
MORE += [(mask, f"{name},--offload,all", None) for mask in (PACKS, WINDOW) for name in ("tangram", "ulysses_flex")]


def case_of(mask, system):
    return f"{mask},--attention,{system}"


def test_every_system_trains_as_dense_attention_in_one_process(tmp_path):
    cases = CASES + (MORE if LONG else [])
    run_script(CHECKS, tmp_path / "dense", *(case_of(mask, "dense") for mask in (PACKS, CAUSAL, WINDOW)))
    dense = torch.load(tmp_path / "dense")
    for ranks in (2, 4) if LONG else (2,):
        of_ranks = [case for case in cases if ranks == 2 or "ulysses_f" not in case[1]]
        run_script(CHECKS, tmp_path / "ranks", *(case_of(*case[:2]) for case in of_ranks), ranks=ranks)
        found = torch.load(tmp_path / "ranks")
        for mask, system, passes in of_ranks:
            ours, wanted = found[case_of(mask, system)], dense[case_of(mask, "dense")]
            assert passes is None or ours["passes"] == passes, (mask, system, ours["passes"])
            # float32; sums of ranks are in another order than those of one process.
            torch.testing.assert_close(
                torch.tensor(ours["losses"]), torch.tensor(wanted["losses"]), rtol=1e-5, atol=0, msg=f"{mask} {system}"
            )
            assert len(ours["gradients"]) == len(wanted["gradients"]) == 8 * LAYERS + 3
            for name, gradient in wanted["gradients"].items():
                apart = (ours["gradients"][name] - gradient).norm() / gradient.norm()
                assert apart < 1e-5, (mask, system, name, apart)
