# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of tools/soak.py: steps of examples/13_train_long_context until it is killed. Each step has a new mask, some a
rank that is late. Memory stays flat. Now and then a layer of a step is compared with dense attention."""

import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "13_train_long_context"))

import kernels
import torch
import torch.distributed as dist
import train

import tangram

CHECK_EVERY_S = float(os.environ["SOAK_CHECK_EVERY_S"])
SAVE_EVERY_S = float(os.environ["SOAK_SAVE_EVERY_S"])
SLOW_SHARE, SLOW_S = 0.2, 0.2
FLAT, FLAT_BYTES = 1.01, 8 << 20  # a percent, or a few blocks of the host's allocator
CACHE_BYTES = 1 << 20  # so that caches of keys are full, and memory flat, within a piece
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the norm; bfloat16 rounds results and gradients


def rss():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Layer:
    """q, k, v, out and their gradients of one layer in one step, as they pass."""

    def __init__(self, attend, number, count):
        self.attend, self.number, self.count, self.calls, self.seen = attend, number, count, 0, {}

    def __call__(self, q, k, v):
        out = self.attend(q, k, v)
        # Recomputations come after the forward pass and belong to the same graph.
        if self.calls == self.number:
            for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
                self.seen[name] = x.detach().clone()
                x.register_hook(lambda dx, name=name: self.seen.__setitem__(f"d{name}", dx.detach().clone()))
        self.calls += 1
        return out

    def compare(self, rows, borders):
        """On rank 0, in float32, document by document; every rank sends its rows."""
        whole = {}
        for name, x in self.seen.items():
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, (rows, x.float().cpu()))
            whole[name] = torch.zeros(borders[-1], *x.shape[1:])
            for places, part in parts:
                whole[name][places[places >= 0]] = part[places >= 0]
        if dist.get_rank() != 0:
            return {}
        dense = kernels.Products(kernels.Segments.of_documents(borders), None)
        qkv = [whole[name] for name in "qkv"]
        out, lse = dense.forward(*qkv)
        gradients = dense.backward(whole["dout"], *qkv, out, lse)
        wanted = dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True))
        return {name: ((whole[name] - x).norm() / x.norm()).item() for name, x in wanted.items()}


class SoakRun(train.Run):
    def __init__(self, arguments):
        super().__init__(arguments)
        self.random = random.Random(self.rank + int(time.time() * 1e3))
        for name in ("keys", "plans"):
            tangram.set_cache_bytes(name, CACHE_BYTES)
        self.checked = self.saved = self.begun = time.monotonic()
        self.watched, self.memory, self.num_steps, self.num_checks = None, None, 0, 0

    def prepare(self, number, timeline):
        if self.random.random() < SLOW_SHARE:
            time.sleep(self.random.random() * SLOW_S)
        batch, step = super().prepare(number, timeline)
        self.watched = None
        if self.agreed(time.monotonic() - self.checked > CHECK_EVERY_S):
            attend = step.attend[None]
            # Alike on all ranks.
            layer = random.Random(number).randrange(self.shape.layers)
            self.watched = Layer(attend, layer, self.shape.layers)
            step.attend[None] = self.watched
            self.rows, self.borders = self.system_rows(step, batch), batch.borders
            self.checked = time.monotonic()
        return batch, step

    def system_rows(self, step, batch):
        return self.system.prepare(batch, {None}).rows

    def agreed(self, of_rank):
        """What rank 0 says, so that all do the same."""
        said = [of_rank]
        dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        return said[0]

    def step(self):
        found = super().step()
        self.num_steps += 1
        if self.watched is not None:
            apart = self.watched.compare(self.rows, self.borders)
            wrong = {name: x for name, x in apart.items() if not x < BOUNDS[self.dtype]}
            if wrong:
                raise AssertionError(f"step {found.step}, layer {self.watched.number}: attention is off by {wrong}")
            self.num_checks += 1
        self.look_at_memory()
        if self.agreed(time.monotonic() - self.saved > SAVE_EVERY_S):
            self.save()
            self.saved = time.monotonic()
        if self.rank == 0:
            status = {"steps": self.num_steps, "checks": self.num_checks, "checkpoint": self.saved > self.begun}
            Path(self.arguments.out, "status.json.new").write_text(json.dumps(status))
            os.replace(Path(self.arguments.out, "status.json.new"), Path(self.arguments.out, "status.json"))
        return found

    def look_at_memory(self):
        """After a warm-up, which has a comparison and a checkpoint, the most of any step may not grow."""
        on_gpu = self.device.type == "cuda"
        now = {"host": rss()} | ({"gpu": torch.cuda.memory_allocated()} if on_gpu else {})
        warm_s = time.monotonic() - self.begun
        if warm_s < 2 * CHECK_EVERY_S:
            return
        if self.memory is None or warm_s < 3 * CHECK_EVERY_S:
            self.memory = {name: max(size, (self.memory or {}).get(name, 0)) for name, size in now.items()}
        for name, size in now.items():
            if size > max(self.memory[name] * FLAT, self.memory[name] + FLAT_BYTES):
                raise AssertionError(f"memory of the {name} grew from {self.memory[name]:,} to {size:,} bytes")


sys.exit(train.main(sys.argv[1:], SoakRun))
