# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Times calls on a GPU beside each other: in turns of random order, so that all meet the same clocks."""

import random
import statistics
import time

import torch

TURN_MS = 12.0  # long enough that an event pair costs nothing, short enough that turns meet the same clocks
WARM_S = 0.4  # a GPU that has rested, or done light work, runs at up to a fifth more than its lasting clock


def elapsed_ms(function, count):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def take_turns(functions, rounds):
    """Median milliseconds of each of the named functions."""
    for function in functions.values():
        elapsed_ms(function, 2)  # the first calls of a process load kernels
    counts = {name: max(1, int(TURN_MS / max(1e-3, elapsed_ms(f, 2)))) for name, f in functions.items()}
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_S:
        for name, function in functions.items():
            elapsed_ms(function, counts[name])
    times = {name: [] for name in functions}
    order = list(functions)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(elapsed_ms(functions[name], counts[name]))
    return {name: statistics.median(t) for name, t in times.items()}
