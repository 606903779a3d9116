# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""`tangram doctor` of the package: what it says of machines, and that its checks see what is wrong."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tangram  # noqa: E402
from ranks.start import run_script  # noqa: E402
from reference import attention  # noqa: E402
from tangram import _backends, _core  # noqa: E402
from tangram.doctor import _check, _checks, _machine, _reference, _run, rank  # noqa: E402
from tangram.doctor.__main__ import main, program  # noqa: E402
from tangram.doctor._cases import BASIC_MASKS, Case, all_cases, mask_case  # noqa: E402

CPU = torch.device("cpu")


def test_it_says_what_is_here_and_what_is_used(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "✓ cpu" in printed and "TANGRAM_TIMEOUT_S" in printed
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [info["name"] for info in found["backends"]] == [info.name for info in tangram.list_backends()]
    assert found["gpus"] == [] or found["gpus"][0]["backend"] in ("sm90", "sm80", "")


def test_it_says_which_backend_each_gpu_gets_and_what_overrides_it(monkeypatch, capsys):
    gpu = {
        "device": 1,
        "name": "L40S",
        "compute_capability": (8, 9),
        "backend": "sm80",
        "reason": "machine code for 8.0",
    }
    monkeypatch.setattr(_machine, "list_gpus", lambda: [SimpleNamespace(**gpu)])
    monkeypatch.setenv("TANGRAM_SM80_SHARED_KB", "99")
    tangram.configure(backend="reference")
    try:
        assert main([]) == 0
    finally:
        tangram.configure(backend=None)
    printed = capsys.readouterr().out
    assert "gpu 1: L40S, compute capability 8.9: sm80 (machine code for 8.0)" in printed
    assert "backend reference, by tangram.configure" in printed and "TANGRAM_SM80_SHARED_KB=99" in printed


def test_gpus_of_others_are_named_and_refused_in_words(monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert main([]) == 0
    printed = capsys.readouterr().out
    for name in ("AMD GPUs", "ROCm 6.2", "Intel GPUs (xpu)", "Apple chip (mps)"):
        assert name in printed
    assert "no backend computes there; masks, plans and ranks on the CPU work" in printed
    if not _backends.gpu_backends():
        with pytest.raises(tangram.NotAvailable, match="none on AMD GPUs .torch is for ROCm 6.2.: compute on the CPU"):
            _backends.default_backend(True)
    q = torch.randn(8, 2, 16)
    assert tangram.flex_flash_attn_func(q, q, q, tangram.Mask.causal(8))[0].shape == q.shape
    assert tangram.plan(tangram.Mask.causal(1024), cp_size=4).cp_size == 4


def test_tensors_of_devices_without_a_backend_are_refused_in_words():
    for device in ("mps", "xpu"):
        with FakeTensorMode():
            elsewhere = torch.empty(8, 2, 16, device=device)
            with pytest.raises(tangram.InvalidArgument, match=rf"move them by \.cpu\(\) \(got device={device}:0"):
                tangram.flex_flash_attn_func(elsewhere, elsewhere, elsewhere, tangram.Mask.causal(8))


def test_each_gpu_has_a_default_of_its_own(monkeypatch):
    """The name that the first GPU got was used on all others."""
    infos = {0: "sm90", 1: "sm80"}

    def listed(device=-1):
        names = [infos.get(device, ""), "cpu"]
        all_names = ("sm90", "sm80", "cpu")
        return [SimpleNamespace(name=n, on_gpu=n != "cpu", available=n in names, detail="") for n in all_names]

    monkeypatch.setattr(_backends, "list_backends", listed)
    monkeypatch.setattr(_backends, "_default_names", {})
    monkeypatch.setattr(_backends, "_backends", {})
    monkeypatch.setattr(_backends, "Backend", lambda name, device: (name, device))
    assert [_backends.backend_named(None, True, device) for device in (0, 1, 0)] == [
        ("sm90", 0),
        ("sm80", 1),
        ("sm90", 0),
    ]
    assert _backends.backend_named(None, False)[0] == "cpu"


def test_its_reference_agrees_with_that_of_the_tests():
    for mask in BASIC_MASKS:
        case = Case(mask, mask, torch.float32, (16, 8), softcap=3.0, sink="ssh")
        inputs = _check.make_inputs(case, 64, CPU)
        got = _check.expected(case, inputs)
        for head in range(case.heads[0]):  # whose cells differ
            of = [x[:, h : h + 1] for x, h in ((inputs.q, head), (inputs.k, head // 2), (inputs.v, head // 2))]
            sink, dout = inputs.sink[:, :, head : head + 1], inputs.dout[:, head : head + 1]
            want = attention(*of, inputs.cells[head].numpy(), softcap=3.0, sink=sink, dout=dout)
            assert torch.allclose(got.out[:, head], torch.from_numpy(want.out[:, 0]), atol=1e-9)
            assert torch.allclose(got.lse[:, head], torch.from_numpy(want.lse[:, 0]), atol=1e-9)
            assert torch.allclose(got.dq[:, head], torch.from_numpy(want.dq[:, 0]), atol=1e-9)
            assert torch.allclose(got.dsink[..., head], torch.from_numpy(want.dsink[..., 0]), atol=1e-9)


@pytest.mark.parametrize("name", [*BASIC_MASKS, "long keys", "blocks of 16", "blocks of 64"])
def test_the_cells_of_its_masks_are_those_of_the_masks(name):
    """Predicates count as many cells as the library does."""
    case = mask_case(name, 128)
    heads = len(case.cells)
    assert case.visible(heads, CPU).sum((1, 2)).tolist() == [mask.area for mask in case.masks]


@pytest.fixture
def few_cases(monkeypatch):
    """A sample of all kinds, so that a run takes a second."""
    cases = [*all_cases()][::7] + [case for case in all_cases() if case.how == "tokens"]
    monkeypatch.setattr(_run, "all_cases", lambda: cases)
    return cases


def test_a_run_passes_and_reports(few_cases, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert main(["--run", "--no-ranks", "--backend", "cpu", "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert " passed, 0 failed, 0 refused" in printed and "attach it to an issue of the project" in printed
    assert re.search(r"causal +64  tangram [\d.e-]+, sdpa [\d.e-]+ ", printed)
    found = json.loads(report.read_text())
    assert found["passed"] and found["backend"] == "cpu" and found["machine"]["tangram"] == tangram.__version__
    assert {case.name for case in few_cases} < {case["name"] for case in found["cases"]}
    errors = found["cases"][0]["errors"]
    assert set(errors) == {"out", "lse", "max_logits", "dq", "dk", "dv"}
    assert all(0 < of["error"] <= of["bound"] for of in errors.values())
    assert {rate["what"] for rate in found["rates"]} == {"tangram", "sdpa"}


def wrong_gradients(monkeypatch):
    right = _check.attend

    def attend(case, *rest):
        results = right(case, *rest)
        if case.dims == (256, 256):
            results.dk[3] += 1
        return results

    monkeypatch.setattr(_check, "attend", attend)


def test_a_wrong_result_is_reported_by_its_case(few_cases, monkeypatch, tmp_path, capsys):
    wrong_gradients(monkeypatch)
    report = tmp_path / "report.json"
    assert main(["--run", "--no-ranks", "--backend", "cpu", "--report", str(report)]) == 1
    printed = capsys.readouterr().out
    failed = [case for case in json.loads(report.read_text())["cases"] if case["status"] == "failed"]
    assert failed and all("dim 256" in case["name"] and case["why"].startswith("dk ") for case in failed)
    for case in failed:
        assert f"FAILED {case['name']}: dk " in printed


def test_errors_of_calls_nan_and_refusals_are_told_apart(monkeypatch):
    def raises(error):
        def attend(*_):
            raise error

        monkeypatch.setattr(_check, "attend", attend)

    case, optional = Case("one"), Case("two", may_refuse=True)
    raises(tangram.InvalidArgument("no such kernel"))
    assert _check.run_case(case, 64, CPU, "cpu").failed == "InvalidArgument: no such kernel"
    assert _check.run_case(optional, 64, CPU, "cpu").refused == "no such kernel"
    raises(RuntimeError("CUDA error"))
    assert _check.run_case(optional, 64, CPU, "cpu").failed == "RuntimeError: CUDA error"
    assert _check.too_large({"out": (float("nan"), 1.0), "dq": (0.5, 1.0)}) == "out nan > 1"


def test_bits_that_do_not_repeat_are_reported(monkeypatch):
    case = Case("documents", "documents", dims=(64, 64), deterministic=True)
    assert _checks.repeats_bits(case, 64, CPU, "cpu").status == "passed"
    calls = []

    def attend(*_):
        calls.append(0)
        zeros = [torch.zeros(2) for _ in range(6)]
        zeros[3] += len(calls)
        return _reference.Results(*zeros)

    monkeypatch.setattr(_checks, "attend", attend)
    assert _checks.repeats_bits(case, 64, CPU, "cpu").failed == "dq differs between two equal calls"


def test_two_ranks_agree_with_float64(tmp_path):
    """Ranks are processes of the tests, which have imported torch."""
    script = tmp_path / "one.py"
    script.write_text(
        "import os, sys\nfrom tangram.doctor.rank import main\n"
        "sys.exit(main([os.environ['RANK'], sys.argv[1], 'cpu', '64', 'cpu']))\n"
    )
    printed = run_script(script, tmp_path / "store", ranks=2, timeout=120, TANGRAM_TIMEOUT_S="60")
    names = [line.split()[1] for line in printed.splitlines() if line.startswith("error ")]
    assert names == ["out", "lse", "dq", "dk", "dv"] * 2


def test_a_rank_that_fails_is_a_failed_check(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    assert _checks.two_ranks(False, 64, "cpu").failed == "rank 0 ended with 1: "
    assert Path(rank.__file__).stem == "rank"


def test_arguments_that_do_not_go_together(monkeypatch, capsys, tmp_path):
    assert main(["--report", "x"]) == 2 and main(["--run", "--json"]) == 2
    assert main(["--run", "--report", str(tmp_path / "missing" / "x")]) == 2
    assert main(["--run", "--backend", "tpu"]) == 2
    assert "one of sm90, sm80, cpu, reference" in capsys.readouterr().err
    if not _core.list_gpus():
        assert main(["--run", "--backend", "sm80"]) == 3
        assert capsys.readouterr().err.startswith("tangram: ")
    monkeypatch.setattr(sys, "argv", ["tangram", "plan"])
    assert program() == 2 and "the package has the verb doctor alone" in capsys.readouterr().err
