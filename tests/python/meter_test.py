# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.meter: what it counts, and that it waits for nothing."""

import time
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import InvalidArgument, Mask, _meter, flex_flash_attn_func  # noqa: E402


def operands(rows=64):
    return [torch.randn(rows, n, 16).requires_grad_() for n in (4, 2, 2)]


def test_passes_and_their_time_are_measured():
    inputs = operands(512)
    mask = Mask.causal(512)
    with tangram.meter() as step:
        begun = time.perf_counter()
        out, _ = flex_flash_attn_func(*inputs, mask)
        flex_flash_attn_func(*inputs, mask)
        between = time.perf_counter()
        out.sum().backward()
        ended = time.perf_counter()
    assert step.ready
    report = step.report()
    assert (report.num_forward, report.num_backward, report.num_captured) == (2, 1, 0)
    assert 0 < report.forward_s < between - begun and 0 < report.backward_s < ended - between
    assert report.attention_s == report.forward_s + report.backward_s < report.total_s
    assert report.waited_s == 0 and 0 < report.planning_s < between - begun  # the mask is new
    assert step.report() is report
    for word in ("step", "attention", "2 forward, 1 backward passes", "waits", "planning"):
        assert word in str(report) and word in str(step)
    flex_flash_attn_func(*inputs, mask)  # outside
    assert step.report().num_forward == 2 and _meter.current is None


def test_a_known_mask_is_hardly_planned():
    inputs, mask = operands(), Mask.varlen([*range(65)])
    times = []
    for _ in range(2):
        with tangram.meter() as step:
            flex_flash_attn_func(*inputs, mask)
        times.append(step.report().planning_s)
    assert times[1] < times[0]


def test_a_block_that_raises_ends():
    with pytest.raises(ZeroDivisionError), tangram.meter() as step:
        flex_flash_attn_func(*operands(), Mask.causal(64))
        raise ZeroDivisionError
    assert _meter.current is None and step.report().num_forward == 1


def test_blocks_do_not_nest_and_are_read_behind():
    with tangram.meter() as step:
        with pytest.raises(InvalidArgument, match="meter: report must come after the block"):
            step.report()
        with pytest.raises(InvalidArgument, match="meter: one block at a time is measured"):
            tangram.meter().__enter__()
    with pytest.raises(InvalidArgument, match="meter: each block needs a meter of its own"):
        step.__enter__()


class Event:
    """Event of a GPU that has done nothing yet."""

    clock = 0.0
    waits = 0

    def __init__(self, enable_timing):
        assert enable_timing
        self.at = None

    def record(self, stream):
        Event.clock += 2.0
        self.at = Event.clock

    def query(self):
        return Event.waits > 0

    def synchronize(self):
        Event.waits += 1

    def elapsed_time(self, other):
        return other.at - self.at


class OnGpu:
    is_cuda, device = True, "cuda:0"


def test_a_block_on_a_gpu_waits_for_nothing():
    Event.clock, Event.waits = 0.0, 0
    with (
        patch.object(torch.cuda, "Event", Event),
        patch.object(torch.cuda, "is_initialized", lambda: True),
        patch.object(torch.cuda, "current_stream", lambda device: None),
        patch.object(torch.cuda, "current_device", lambda: 0),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
    ):
        with tangram.meter() as step:
            for kind in ("forward", "backward", "backward"):
                _meter.begin(kind, OnGpu()).end(object())
            with patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
                assert _meter.begin("forward", OnGpu()) is None
        assert Event.waits == 0 and not step.ready and Event.waits == 0
        report = step.report()
    assert Event.waits > 0 and step.ready
    assert (report.forward_s, report.backward_s, report.total_s) == (2e-3, 4e-3, 14e-3)
    assert report.waited_s is None and "waits" not in str(report)
    assert report.num_captured == 1 and "captured by CUDA graphs" in str(report)
