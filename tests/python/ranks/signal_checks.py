# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Signals in ranks that wait for a peer; signals_test.py starts the ranks. Rank 1 lets rank 0 wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import tangram

ROWS = 64
HEARD_S = 5.0  # a second by design, on two busy cores; TANGRAM_TIMEOUT_S is 60
LATE_S = 1.0


class Stop(Exception):
    """What a handler raises."""


def key_of(group=None):
    return tangram.mask_key(tangram.Mask.causal(ROWS), 2, 2, 8, group, chunk_size=8)


def step(key):
    q, k, v = (torch.randn(shape).requires_grad_() for shape in (*key.shapes, key.shapes[1]))
    out, _ = tangram.calc_attn(q, k, v, key)
    return out.sum()


def send_while_waiting(number):
    """The signal comes when the main thread is in its wait."""
    sent = []

    def send():
        time.sleep(LATE_S)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return sent


def must_be_heard(call, number, kind):
    sent = send_while_waiting(number)
    try:
        call()
    except kind:
        assert time.monotonic() - sent[0] < HEARD_S, time.monotonic() - sent[0]
    else:
        raise AssertionError("went on alone")


def must_be_closed(call, rank):
    """A clear error on both ranks, and at once."""
    begin = time.monotonic()
    try:
        call()
    except tangram.CommError as error:
        assert f"rank {rank} gave up: a signal interrupted a call" in str(error), error
        assert "make the process group anew" in str(error), error
        assert time.monotonic() - begin < HEARD_S
    else:
        raise AssertionError("the group goes on")


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_first_meeting(folder):
    group = dist.new_group([0, 1])
    heard = Path(folder, "first")
    if dist.get_rank() == 0:
        must_be_heard(lambda: key_of(group), signal.SIGINT, KeyboardInterrupt)
        heard.touch()
    else:
        wait_for(heard)
    x = torch.arange(ROWS)  # the group is usable: it meets now
    key = key_of(group)
    assert torch.equal(tangram.undispatch(tangram.dispatch(x, key), key), x)


def check_call(folder, name, number, kind):
    group = dist.new_group([0, 1])
    key = key_of(group)
    heard = Path(folder, f"{name}{number}")
    x = tangram.dispatch(torch.arange(ROWS), key)
    step(key).backward()
    loss = step(key)
    calls = {
        "forward": lambda: step(key),
        "backward": lambda: loss.backward(),
        "rows": lambda: tangram.undispatch(x, key),
    }
    if dist.get_rank() == 0:
        must_be_heard(calls[name], number, kind)
        heard.touch()
    else:
        wait_for(heard)
    if dist.get_rank() == 1:
        must_be_closed(calls[name], 0)
    must_be_closed(lambda: tangram.undispatch(x, key), 0)
    must_be_closed(lambda: step(key), 0)
    dist.barrier()
    dist.destroy_process_group(group)
    fresh = key_of(dist.new_group([0, 1]))
    assert torch.equal(tangram.undispatch(tangram.dispatch(torch.arange(ROWS), fresh), fresh), torch.arange(ROWS))


def check_handler_that_returns(folder):
    """It runs within the wait, which goes on."""
    key = key_of()
    seen = Path(folder, "seen")
    signal.signal(signal.SIGTERM, lambda *_: seen.touch())
    if dist.get_rank() == 0:
        send_while_waiting(signal.SIGTERM)
    else:
        wait_for(seen)
    step(key).backward()


def check_end_of_a_group(folder):
    """A rank that has refused its part ends its group, which waits until its peer knows."""
    group = dist.new_group([0, 1])
    key = key_of(group)
    step(key).backward()
    heard = Path(folder, "end")
    if dist.get_rank() == 0:
        try:
            q, k, v = (torch.zeros(shape) for shape in (*key.shapes, key.shapes[1]))
            tangram.calc_attn(q, k[:-1], v, key)
        except tangram.InvalidArgument:
            pass
        dist.destroy_process_group(group)
        del key

        def end():
            key_of()  # which lets go of the group that is gone
            for _ in range(100):
                time.sleep(0.1)

        must_be_heard(end, signal.SIGINT, KeyboardInterrupt)
        heard.touch()
    else:
        wait_for(heard)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this to ignore it
    folder = sys.argv[1]

    def stop(*_):
        raise Stop

    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, stop)
    dist.init_process_group("gloo")
    check_first_meeting(folder)
    check_handler_that_returns(folder)
    for name, number, kind in (
        ("forward", signal.SIGINT, KeyboardInterrupt),
        ("backward", signal.SIGINT, KeyboardInterrupt),
        ("rows", signal.SIGINT, KeyboardInterrupt),
        ("forward", signal.SIGALRM, Stop),
        ("rows", signal.SIGUSR1, Stop),
    ):
        check_call(folder, name, number, kind)
    check_end_of_a_group(folder)
    dist.barrier()
    Path(folder, f"done{dist.get_rank()}").touch()
    wait_for(Path(folder, f"done{1 - dist.get_rank()}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
