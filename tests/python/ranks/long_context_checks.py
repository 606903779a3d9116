# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Losses, gradients and attention passes of examples/13_train_long_context, of cases one after the other in one process
group; long_context_test.py compares them. Usage: long_context_checks.py RESULTS CASE..., a case is words of train.py
joined by commas."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "13_train_long_context"))

import kernels
import torch
import torch.distributed as dist
import train

import tangram

STEPS = 3 if os.environ.get("TANGRAM_TEST_LONG", "0") != "0" else 2
COMMON = "--size toy --tokens 250 --chunk-rows 48 --loss-rows 40 --steps 3 --lr 1e-3 --eps 1e-4".split()


def counted(method):
    def count(*args):
        counted.calls += 1
        return method(*args)

    return count


def measure(case):
    run = train.Run(train.parser().parse_args([*COMMON, *case.split(",")]))
    counted.calls = 0
    gradients = {}
    norm = run.optimiser.gradient_norm

    def seen():
        """Gradients of the first step."""
        if not gradients:
            gradients.update((name, p.grad.full_tensor().cpu().clone()) for name, p in run.model.named_parameters())
        return norm()

    run.optimiser.gradient_norm = seen
    with tangram.meter() as meter:
        losses = [run.step().loss]
    passes = (meter.report().num_forward, counted.calls)
    losses += [run.step().loss for _ in range(STEPS - 1)]
    return {"losses": losses, "gradients": gradients, "passes": passes}


def main():
    results, *cases = sys.argv[1:]
    kernels.Products.forward = counted(kernels.Products.forward)
    train.start("cuda" if "cuda" in cases[0] else "cpu")
    found = {case: measure(case) for case in cases}
    if dist.get_rank() == 0:
        torch.save(found, results)
    dist.barrier()
    dist.destroy_process_group()


main()
