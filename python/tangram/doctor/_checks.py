# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checks beside single calls: bits that repeat, a captured CUDA graph, and two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..flex import flex_flash_attn_func
from ._cases import Case, mask_case
from ._check import Outcome, attend, expected, given_mask, make_inputs, mask_buffer, too_large
from ._check import compare as compare_with_float64

_RANKS_TIMEOUT_S = 90


def guarded(name: str, check: Callable[[Outcome], None]) -> Outcome:
    """The outcome of a check, which fails with what it raises."""
    outcome = Outcome(name)
    try:
        check(outcome)
    except Exception as error:  # whatever it is belongs into the report
        outcome.failed = f"{type(error).__name__}: {error}"
    return outcome


def repeats_bits(case: Case, rows: int, device: torch.device, backend: str) -> Outcome:
    """A deterministic call and its backward pass, three times."""

    def check(outcome: Outcome) -> None:
        inputs = make_inputs(case, rows, device)
        mask = given_mask(case, inputs, backend)
        first, *others = (attend(case, inputs, mask, backend) for _ in range(3))
        for other in others:
            for name, a, b in zip(vars(first), tensors_of(first), tensors_of(other), strict=True):
                if a is not None and not torch.equal(a, b):
                    outcome.failed = f"{name} differs between two equal calls"

    return guarded(f"bits repeat: {case.name}", check)


def tensors_of(results: object) -> tuple[Tensor, ...]:
    """The tensor of each field."""
    return tuple(vars(results).values())


def replays_graph(case: Case, rows: int, device: torch.device, backend: str) -> Outcome:
    """Both passes, captured and replayed over other values; with a mask buffer over another mask, too."""

    def check(outcome: Outcome) -> None:
        inputs = make_inputs(case, rows, device)
        buffer = mask_buffer(case, inputs, backend) if case.how == "buffer" else None
        if buffer is not None:
            buffer.set(mask_case("causal", inputs.mask.rows).masks[0])
        mask = inputs.mask.masks[0] if buffer is None else buffer
        leaves = [torch.zeros_like(x).requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]

        def step() -> tuple[Tensor, ...]:
            q, k, v = leaves
            out, meta = flex_flash_attn_func(q, k, v, mask, backend=backend, return_max_logits=True)
            assert meta.max_logits is not None
            grads = torch.autograd.grad(out, leaves, inputs.dout)
            return (out.detach(), meta.lse, meta.max_logits, *grads)

        cuda: Any = torch.cuda
        side = cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            for leaf, values in zip(leaves, (inputs.q, inputs.k, inputs.v), strict=True):
                leaf.copy_(values)
        if buffer is not None:
            buffer.set(inputs.mask.masks[0])
        graph.replay()
        torch.cuda.synchronize(device)
        want = expected(case, inputs)
        outcome.errors = compare_with_float64(case, type(want)(*captured), want)
        outcome.failed = too_large(outcome.errors)

    return guarded(f"CUDA graph: {case.name}", check)


def two_ranks(on_gpus: bool, rows: int, backend: str) -> Outcome:
    """Attention over two processes, a GPU each, beside float64: program tangram.doctor.rank starts as both."""

    def check(outcome: Outcome) -> None:
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder, f"log{rank}") for rank in (0, 1)]
            ranks = []
            # Where the package lies need not be on the path of a program that starts alone.
            paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_MODULE_LOADING": "EAGER"}
            if not on_gpus:
                env |= {"OMP_NUM_THREADS": "1", "TANGRAM_NUM_THREADS": "1"}  # they share the cores
            for rank, log in enumerate(logs):
                arguments = [str(rank), str(Path(folder, "store")), "cuda" if on_gpus else "cpu", str(rows), backend]
                command = [sys.executable, "-m", "tangram.doctor.rank", *arguments]
                with log.open("wb") as out:
                    ranks.append(subprocess.Popen(command, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL))
            try:
                codes = [rank.wait(_RANKS_TIMEOUT_S) for rank in ranks]
            finally:
                for each in ranks:
                    each.kill()
                    each.wait()
            texts = [log.read_text(errors="replace") for log in logs]
        for rank, (code, text) in enumerate(zip(codes, texts, strict=True)):
            if code != 0 and not outcome.failed:
                lines = text.strip().splitlines()
                outcome.failed = f"rank {rank} ended with {code}: {' | '.join(lines[-3:])}"
        for line in texts[0].splitlines():
            if line.startswith("error "):
                _, name, error, bound = line.split()
                outcome.errors[name] = (float(error), float(bound))

    return guarded(f"two {'GPUs' if on_gpus else 'ranks'}", check)
