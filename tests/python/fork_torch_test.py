# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of torch's DataLoader, other processes of multiprocessing, and children of ranks."""

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not hasattr(os, "fork"):
    pytest.skip("this system has no fork", allow_module_level=True)

import tangram  # noqa: E402
from forked import assert_passes_in_child  # noqa: E402
from ranks.start import run_script  # noqa: E402
from tangram.flash_attn import flash_attn_func  # noqa: E402

IS_LONG = os.environ.get("TANGRAM_TEST_LONG") == "1"
STARTS = ["fork", "forkserver", "spawn"]
CHECKS = Path(__file__).parent / "ranks" / "fork_checks.py"


def step(seed=0, rows=300):
    """Results of both passes, of single-threaded operations of torch."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, rows, 4, 16, generator=generator).requires_grad_() for _ in range(3))
    out = flash_attn_func(q, k, v, causal=True)
    out.sum().backward()
    return [x.detach().clone() for x in (out, q.grad, k.grad, v.grad)]


class PlannedMasks(torch.utils.data.Dataset):
    """Plans the mask of each sample, and attends to it."""

    def __len__(self):
        return 6

    def __getitem__(self, number):
        mask = tangram.Mask.varlen([0, 100 + 8 * number, 512], causal=True)
        plan = tangram.plan_async(mask, 2).result(timeout=50)
        assert plan == tangram.plan(mask, 2)
        return number, torch.stack([x.sum() for x in step(number)])


def test_a_child_computes_gradients():
    expected = step()

    def check():
        for got, wanted in zip(step(), expected, strict=True):
            assert torch.equal(got, wanted)

    assert_passes_in_child(check)
    stops = threading.Event()

    def keep_busy():
        while not stops.is_set():
            step()

    other = threading.Thread(target=keep_busy)
    other.start()
    try:
        for _ in range(5):
            assert_passes_in_child(check)
    finally:
        stops.set()
        other.join()
    check()


@pytest.mark.parametrize("start", STARTS if IS_LONG else STARTS[:1])  # each of the other workers imports torch
def test_workers_of_a_data_loader_plan_and_attend(start):
    expected = {number: sums for number, sums in (PlannedMasks()[i] for i in range(6))}  # and so the parent has threads
    loader = torch.utils.data.DataLoader(
        PlannedMasks(), batch_size=None, num_workers=2, multiprocessing_context=start, timeout=100
    )
    for epoch in range(2):
        samples = dict(loader)
        assert samples.keys() == expected.keys(), epoch
        for number, sums in samples.items():
            torch.testing.assert_close(sums, expected[number], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", STARTS if IS_LONG else STARTS[:1])
def test_processes_of_multiprocessing_attend(start):
    expected = [x.sum() for x in step(3)]
    with multiprocessing.get_context(start).Pool(2) as pool:
        for got in pool.map_async(step, [3, 3, 3]).get(timeout=100):
            torch.testing.assert_close([x.sum() for x in got], expected, rtol=1e-6, atol=1e-6)


def test_children_of_ranks_plan_but_do_not_use_the_group():
    run_script(CHECKS, ranks=2, timeout=300)
