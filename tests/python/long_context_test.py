# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""examples/13_train_long_context: every --attention over two ranks has losses and gradients of dense attention in one
process. Runs resume to the same losses; what goes wrong is said, and nothing is lost."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import numpy as np  # noqa: E402

import tangram  # noqa: E402
from ranks.start import SERVER, run_script  # noqa: E402

# FSDP imports these, which takes longer than all else.
FSDP = ["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo"]
SERVER.set_forkserver_preload(["torch.distributed", "numpy", "tangram.distributed", *FSDP])
CHECKS = Path(__file__).parent / "ranks" / "long_context_checks.py"
FAULTS = Path(__file__).parent / "ranks" / "long_context_faults.py"
ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "13_train_long_context" / "train.py"
RUN = "--size toy --tokens 250 --steps 4 --save-every 2 --lr 1e-3 --eps 1e-4".split()
LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
LAYERS = 2
PACKS, CAUSAL, WINDOW = "--mask,packs", "--mask,causal", "--window,16,--full-every,2"
# (mask, system and options, attention passes forward: of Tangram, calls of a rival's kernel)
CASES = [
    (PACKS, "tangram", (LAYERS, 0)),
    (PACKS, "tangram,--keep,none", (2 * LAYERS, 0)),
    (PACKS, "tangram,--offload,all,--moments,host", (LAYERS, 0)),
    (PACKS, "ulysses_fa4", (0, LAYERS)),
    (PACKS, "ulysses_flex,--keep,none,--offload,inputs", (0, 2 * LAYERS)),
    (PACKS, "gather_zigzag,--offload,all", (0, 2 * LAYERS)),
    (CAUSAL, "tangram,--offload,inputs", (LAYERS, 0)),
    (CAUSAL, "torch_ring", (0, 2 * LAYERS)),
    (WINDOW, "tangram", (LAYERS, 0)),
    (WINDOW, "gather_zigzag", (0, 2 * LAYERS)),
    (WINDOW, "gather_contiguous", (0, LAYERS)),
]
MORE = [(mask, f"tangram:{name}", (LAYERS, 0)) for mask in (PACKS, CAUSAL) for name in ("ulysses", "ring", "auto")]
MORE += [(PACKS, "gather_contiguous", (0, LAYERS)), (WINDOW, "ulysses_fa4", (0, LAYERS))]
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


def test_data_memory_and_rates_count_what_there_is(monkeypatch):
    monkeypatch.syspath_prepend(TRAIN.parent)
    import data
    import memory
    import model
    import report

    for rows in (1, 7, 250, 5000):
        first, again, other = (data.batch_of(step, rows) for step in (0, 0, 1))
        assert first.borders[-1] == rows and torch.equal(first.tokens, again.tokens)
        assert rows < 200 or (first.borders != other.borders and max(np.diff(first.borders)) <= rows // 4)
        assert first.num_labels == int((first.labels != data.IGNORED).sum())
        assert first.area() == tangram.Mask.varlen(first.borders, causal=True).area
        for window in (1, 16, rows):
            assert first.area(window) == tangram.Mask.sliding_window(first.borders, (window - 1, 0)).area
    for name, shape in model.SHAPES.items():
        with torch.device("meta"):
            assert memory.parameters_of(shape) == sum(p.numel() for p in model.Model(shape).parameters()), name
    assert round(memory.parameters_of(model.SHAPES["8B"]) / 1e9, 2) == 8.19
    peaks = [
        memory.estimate(model.SHAPES["8B"], memory.Setting(131_072, 8, keep=keep, offload=offload, moments=moments))
        for keep, offload, moments in (
            ("none", "none", "fp32"),
            ("attention", "none", "bf16"),
            ("attention", "all", "host"),
        )
    ]
    kept = 36 * 131_072 * (4096 * 2 + 32 * 4)
    assert peaks[1]["attention kept"] == kept and peaks[0]["attention kept"] == 0
    assert peaks[2]["host"] > kept and peaks[2]["peak"] < peaks[0]["peak"] < peaks[1]["peak"] + 4 * 8.2e9 / 8
    toy = model.Shape(8, 2, 2, 1, 4, 16, 10)
    linear = 2 * (8 * (2 * 2 + 2) * 4 + 3 * 8 * 16) + 8 * 10
    assert report.flops_of(toy, 100, [30, 50], 12) == 6 * linear * 100 + 12 * 80 * 2 * 4


def rows_of(folder):
    with (folder / "steps.csv").open() as file:
        return list(csv.DictReader(file))


def losses_of(folder):
    return [(int(row["step"]), float(row["loss"])) for row in rows_of(folder)]


def checkpoints_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A run of two ranks, four steps, with checkpoints before steps 2 and 4."""
    folder = tmp_path_factory.mktemp("whole")
    printed = run_script(TRAIN, *RUN, "--out", folder, ranks=2)
    assert printed.count("MFU") == 0 and "tokens/s a rank" in printed and "5 documents" in printed, printed
    assert "estimated" in printed and "peak" in printed
    assert [step for step, _ in losses_of(folder)] == list(range(4))
    assert checkpoints_of(folder) == ["step_00000002", "step_00000004"]
    return folder


def before_step_2(whole_run, folder):
    """The folder as it was when the run had written its first checkpoint."""
    shutil.copytree(whole_run / "step_00000002", folder / "step_00000002")
    return folder


@pytest.mark.parametrize("ranks", [2, 0, 3] if LONG else [2, 0])
def test_runs_resume_to_the_same_losses_on_any_number_of_ranks(whole_run, tmp_path, ranks):
    """On as many ranks the same bits; on others sums are in another order. In one process attention is dense."""
    folder = before_step_2(whole_run, tmp_path)
    system = ["--attention", "dense"] if ranks == 0 else []
    printed = run_script(TRAIN, *RUN, *system, "--out", folder, "--resume", ranks=ranks)
    assert "resumed before step 2" in printed
    wanted = losses_of(whole_run)[2:]
    if ranks == 2:
        assert losses_of(folder) == wanted
    else:
        assert losses_of(folder) == [(step, pytest.approx(loss, rel=1e-5)) for step, loss in wanted]


@pytest.mark.skipif(not LONG, reason="as float32 ones, which the other tests have: make test-long runs them")
@pytest.mark.parametrize("moments", ["bf16", "host"])
def test_moments_of_other_kinds_resume_too(tmp_path, moments):
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    options = [*RUN, "--moments", moments]
    run_script(TRAIN, *options, "--out", tmp_path / "whole", ranks=2)
    before_step_2(tmp_path / "whole", tmp_path / "parts")
    run_script(TRAIN, *options, "--out", tmp_path / "parts", "--resume", ranks=2)
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")[2:]


def test_other_settings_are_refused_by_name(whole_run, tmp_path):
    folder = before_step_2(whole_run, tmp_path)
    printed = run_script(TRAIN, *RUN, "--lr", "0.5", "--out", folder, "--resume", status=1)
    assert "a run must resume with the settings it had (got lr=0.5, written with 0.001" in printed, printed


@pytest.mark.parametrize("rank", [0, 1] if LONG else [1])
def test_a_full_disk_leaves_the_checkpoint_before(whole_run, tmp_path, rank):
    printed = run_script(FAULTS, "full_disk", 4, rank, *RUN, "--out", tmp_path, ranks=2, status=1)
    assert f"a checkpoint must be written whole (got rank {rank}: " in printed, printed
    assert "File too large" in printed and "step_00000002 stays the last one: free space" in printed, printed
    assert checkpoints_of(tmp_path) == ["step_00000002"]
    run_script(TRAIN, *RUN, "--out", tmp_path, "--resume", ranks=2)
    assert losses_of(tmp_path)[-2:] == losses_of(whole_run)[2:]


def test_a_loss_that_is_not_finite_is_named_before_anything_changes(tmp_path):
    printed = run_script(FAULTS, "nan", 1, 1, *RUN, "--out", tmp_path, ranks=2, status=1)
    assert "loss and gradient must be finite (got loss=nan on rank 1, step=1)" in printed, printed
    assert all(f"rank {rank}: nothing has changed" in printed for rank in (0, 1)), printed
    assert [step for step, _ in losses_of(tmp_path)] == [0]


@pytest.mark.parametrize("rank", [0, 2] if LONG else [0])
def test_ranks_exit_with_the_name_of_one_that_was_killed(whole_run, tmp_path, rank):
    """Rank 0 also holds the store of torch.distributed."""
    status = [-signal.SIGKILL if each == rank else 17 for each in range(3)]
    printed = run_script(FAULTS, "kill", 3, rank, *RUN, "--out", tmp_path, ranks=3, status=status)
    others = [each for each in range(3) if each != rank]
    for each in others:
        assert f"train: rank {rank} is gone; rank {each} exits (in step 3)" in printed, printed
    assert checkpoints_of(tmp_path) == ["step_00000002"]
    run_script(TRAIN, *RUN, "--out", tmp_path, "--resume", ranks=2)
    assert losses_of(tmp_path)[-2:] == [
        (step, pytest.approx(loss, rel=1e-5)) for step, loss in losses_of(whole_run)[2:]
    ]


def test_systems_refuse_what_they_cannot_do_by_name():
    packs = [*RUN, "--save-every", 0]
    printed = run_script(TRAIN, *packs, "--attention", "torch_ring", ranks=2, status=1)
    assert "torch_ring knows causal masks alone, neither documents nor windows" in printed, printed
    assert "Traceback" not in printed
    printed = run_script(TRAIN, *packs, "--attention", "ulysses_fa4", ranks=3, status=1)
    assert "ulysses_fa4 needs heads that divide over the ranks (got heads=4, heads_kv=2, ranks=3)" in printed, printed
    printed = run_script(TRAIN, *packs, "--keep", "none", "--offload", "all", status=1)
    assert 'offload="all" must come with keep="attention"' in printed and "Traceback" not in printed, printed


def programs_of_the_guide():
    """The loop of the guide's page as it is after each of the steps."""
    page = (ROOT / "docs" / "guide" / "long_context_training.md").read_text()
    program = re.search(r"```py\n(.*?)```", page, flags=re.S)[1]
    programs = []
    for text in page.split("\n## ")[1:]:
        for diff in re.findall(r"```diff\n(.*?)```", text, flags=re.S):
            lines = diff.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
            assert program.count(old) == 1, f"{text.splitlines()[0]}: not once in the program: {old}"
            program = program.replace(old, new)
        programs.append(program)
    return programs


def test_the_ten_steps_of_the_guide_keep_the_losses(tmp_path):
    *programs, last = programs_of_the_guide()
    assert len(programs) == 10 and last == programs[-1]  # the page's end has no diff
    found = {}
    # Rows are dispatched from step 5 on, gradients are those of all ranks from step 8 on.
    for step in (1, 2, 3, 4, 8, 9, 10) if LONG else (1, 10):
        script = tmp_path / f"step{step}.py"
        script.write_text(programs[step - 1])
        printed = run_script(script, ranks=2 if step > 2 else 0)
        losses = dict(re.findall(r"step (\d): loss (\S+)", printed))
        found[step] = [float(losses[str(i)]) for i in range(3)]
        assert found[step] == pytest.approx(found[1], rel=1e-5), (step, found)


@pytest.mark.skipif(not LONG, reason="a minute of steps: make test-long and make soak run them")
def test_a_minute_of_steps_with_ranks_that_are_killed():
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), "--seconds", "60", "--piece", "20"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    assert "all as it must be" in result.stdout and "killed and named" in result.stdout
