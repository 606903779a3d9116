# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Signals are heard while the library computes for seconds, or waits for a peer."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
import tangram  # noqa: E402
from ranks.start import run_script  # noqa: E402

CHECKS = Path(__file__).parent / "ranks" / "signal_checks.py"
HEARD_S = 5.0  # a second by design, on two busy cores; each call takes longer


class Stop(Exception):
    """What a handler raises."""


@contextmanager
def handled(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def stop(*_):
    raise Stop


def send_later(number, delay_s=0.5):
    sent = []

    def send():
        time.sleep(delay_s)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return sent


def operands(rows, heads, dim):
    random = np.random.default_rng(0)
    return [random.standard_normal((rows, heads, dim), dtype=np.float32) for _ in range(3)]


def attend(q, k, v, **options):
    rows = len(q)
    return tangram.flex_flash_attn_func(q, k, v, [(0, rows)], [(0, rows)], "causal", **options)[0]


@pytest.mark.parametrize(
    ("number", "handler", "kind", "backend", "rows"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt, "cpu", 131072),
        (signal.SIGALRM, stop, Stop, "cpu", 131072),
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt, "reference", 32768),
    ],
    ids=["SIGINT", "SIGALRM", "reference"],
)
def test_a_signal_is_heard_in_a_call_of_seconds(number, handler, kind, backend, rows):
    q, k, v = operands(rows, 1, 64)
    with handled(number, handler):
        sent = send_later(number)
        with pytest.raises(kind):
            attend(q, k, v, backend=backend)
    assert time.monotonic() - sent[0] < HEARD_S
    few = [x[:64] for x in (q, k, v)]  # the threads are there for the next call
    np.testing.assert_allclose(attend(*few), attend(*few, backend="reference"), atol=1e-5)


def test_a_handler_may_compute_while_a_call_waits_for_it():
    q, k, v = operands(4096, 2, 64)
    few = [x[:64] for x in (q, k, v)]
    wanted, wanted_few = attend(q, k, v), attend(*few)
    results = []
    with handled(signal.SIGALRM, lambda *_: results.append(attend(*few))):
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            out = attend(q, k, v)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    np.testing.assert_array_equal(out, wanted)
    assert results and all(np.array_equal(x, wanted_few) for x in results)


def test_a_signal_is_heard_by_a_rank_that_waits_for_its_peer(tmp_path):
    run_script(CHECKS, tmp_path, ranks=2, timeout=200, TANGRAM_TIMEOUT_S="60")
