# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runs examples/13_train_long_context/train.py until a rank has a fault in a step; long_context_test.py looks at what
is said and left. Usage: long_context_faults.py none|nan|full_disk|kill STEP RANK ARGUMENTS..."""

import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "13_train_long_context"))

import torch
import train

FAULT, STEP, RANK = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SMALL_FILE = 4096  # bytes: a shard has more, the log of a rank has fewer


class FaultyRun(train.Run):
    @property
    def is_now(self):
        return self.next_step == STEP and self.rank == RANK

    def backward(self, batch, step):
        part = super().backward(batch, step)
        if FAULT == "kill" and self.is_now:
            os.kill(os.getpid(), signal.SIGKILL)
        return part * float("nan") if FAULT == "nan" and self.is_now else part

    def save(self):
        if FAULT == "full_disk" and self.is_now:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE, SMALL_FILE))
        return super().save()

    def step(self):
        before = [p.to_local().clone() for p in self.model.parameters()]
        try:
            return super().step()
        except FloatingPointError:
            after = [p.to_local() for p in self.model.parameters()]
            if all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) and self.optimiser.count == STEP:
                print(f"rank {self.rank}: nothing has changed", flush=True)
            raise


sys.exit(train.main(sys.argv[4:], FaultyRun))
