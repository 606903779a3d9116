# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Children of a fork, as loaders of training data and tests start them: they have none of their parent's threads."""

import os
import signal
import threading

import numpy as np
import pytest

import tangram
from forked import assert_passes_in_child
from tangram import planning

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def attend(rows=600):
    """Causal attention, in enough tiles for all threads of the pool."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((rows, 4, 32), dtype=np.float32) for _ in range(3))
    out, meta = tangram.flex_flash_attn_func(q, k, v, tangram.Mask.causal(rows))
    return out, meta.lse


def assert_attends(expected):
    for got, wanted in zip(attend(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def new_mask(number):
    return tangram.Mask.causal(1024 + 256 * number)


def test_a_child_computes_cpu_attention():
    expected = attend()
    for _ in range(3):
        assert_passes_in_child(lambda: assert_attends(expected))
    assert_passes_in_child(lambda: assert_passes_in_child(lambda: assert_attends(expected)))
    assert_attends(expected)


def test_a_child_that_is_forked_while_attention_runs_computes_it():
    """The thread that forks holds none of the locks; another one holds the lock of the mask and that of the pool."""
    expected = attend()
    stops = threading.Event()

    def keep_busy():
        while not stops.is_set():
            attend()

    others = [threading.Thread(target=keep_busy) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            assert_passes_in_child(lambda: assert_attends(expected))
    finally:
        stops.set()
        for other in others:
            other.join()


def test_a_child_plans_ahead():
    before = tangram.plan_async(new_mask(0), 4).result()

    def check():
        assert tangram.plan_async(new_mask(0), 4).result(timeout=50) == before
        tangram.plan_async(new_mask(1), 4).result(timeout=50)

    assert_passes_in_child(check)
    assert_passes_in_child(lambda: assert_passes_in_child(check))
    tangram.plan_async(new_mask(2), 4).result(timeout=50)


def test_a_child_that_is_forked_while_plans_are_made_plans():
    stops = threading.Event()

    def keep_planning():
        number = 0
        while not stops.is_set():
            tangram.plan(new_mask(number % 40), 8)
            tangram.plan_async(new_mask(number % 40), 4)
            number += 1

    others = [threading.Thread(target=keep_planning) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for number in range(10):
            assert_passes_in_child(lambda: tangram.plan_async(new_mask(50 + number), 4).result(timeout=50))  # noqa: B023
            assert_passes_in_child(lambda: tangram.plan(new_mask(number), 8))  # noqa: B023
    finally:
        stops.set()
        for other in others:
            other.join()


def test_what_a_parent_has_begun_fails_in_a_child_instead_of_hanging():
    goes_on = threading.Event()
    planning.in_background(goes_on.wait)
    future = tangram.plan_async(new_mask(3), 4)

    def check():
        with pytest.raises(tangram.NotAvailable, match=r"a child of a fork must call them itself"):
            future.result(timeout=50)
        tangram.plan_async(new_mask(3), 4).result(timeout=50)

    assert_passes_in_child(check)
    goes_on.set()
    future.result(timeout=50)


def test_a_child_ends_as_a_process_does():
    """What runs at its end waited for a thread that it has not."""
    tangram.plan_async(new_mask(4), 4).result()
    attend()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        import atexit

        atexit._run_exitfuncs()
        planning._cache.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_finds_caches_unlocked():
    from tangram._cache import BoundedCache

    cache = BoundedCache("masks", lambda value: 1, 1 << 20, 8)
    cache.put("a", 1)
    held, goes_on = threading.Event(), threading.Event()

    def hold():
        with cache._lock:
            held.set()
            goes_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def check():
        assert cache.get("a") is None  # may be half changed
        assert cache.put("b", 2) == 2
        assert len(cache) == 1

    assert_passes_in_child(check)
    goes_on.set()
    holder.join()
    assert cache.get("a") == 1
