# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a step took: time by part, rates by visible area, lines to read, a table and its drawing."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PARTS = ("planning", "fsdp", "linear", "attention", "offload", "loss", "optimiser", "other")
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bfloat16 products a second, by what the name of the device contains."""
COLOURS = ("#b07aa1", "#76b7b2", "#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#edc948", "#bab0ac")


class Timeline:
    """Divides a step into parts: each moment belongs to the part that was named last. Nothing waits.

    On a GPU events on the current stream name the moments; else the clock. A disabled one records nothing.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device, self._marks = device, [] if device is not None else None
        self._part = ""

    def switch(self, part: str) -> str:
        """From here on; returns the part before."""
        before, self._part = self._part, part
        if self._marks is not None and before != part:
            self._marks.append((part, self._now()))
        return before

    @contextlib.contextmanager
    def within(self, part: str) -> Iterator[None]:
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def through(self, x: Tensor, forward: str, backward: str) -> Tensor:
        """x. What is computed behind it is part `forward`; in the backward pass what is before it is `backward`."""
        y: Tensor = _Through.apply(x, self, forward, backward)
        return y

    def seconds(self) -> dict[str, float]:
        """By part, "step" the whole; waits for the GPU."""
        assert self._marks is not None
        self.switch("")
        found = dict.fromkeys(PARTS, 0.0)
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for (part, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            found[part] += end - begin if isinstance(end, float) else begin.elapsed_time(end) * 1e-3
        return {"step": sum(found.values()), **found}

    def _now(self) -> Any:
        if self._device is None or self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, timeline: Timeline, forward: str, backward: str) -> Tensor:
        ctx.timeline, ctx.part = timeline, backward
        timeline.switch(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        ctx.timeline.switch(ctx.part)
        return dy, None, None, None


@dataclass
class StepReport:
    """Figures of the slowest rank, but for what says otherwise."""

    step: int
    loss: float
    gradient_norm: float
    tokens: int  # of all ranks
    documents: int
    area: int
    ranks: int
    seconds: float
    tokens_per_s_per_rank: float
    tflops_per_rank: float  # linear parts 6 a weight and token, attention 12 an element of q and visible pair
    mfu: float  # of these; 0 where the peak of the device is not known
    mfu_backward_2_5: float  # attention's backward counted as 2.5 forward passes, as it computes: 14
    peak_gib: float
    estimated_gib: float
    host_gib: float  # of offloaded tensors
    parts: dict[str, float]

    def line(self) -> str:
        share = {part: f"{self.parts[part] / max(self.parts['step'], 1e-12):.0%}" for part in PARTS}
        mfu = f"  MFU {self.mfu:.1%} ({self.mfu_backward_2_5:.1%})" if self.mfu else ""
        memory = f"  peak {self.peak_gib:.2f} of {self.estimated_gib:.2f} GiB" if self.peak_gib else ""
        shown = ", ".join(f"{part} {share[part]}" for part in PARTS if self.parts[part] >= 0.005 * self.parts["step"])
        return (
            f"step {self.step}  loss {self.loss:.6f}  gradient {self.gradient_norm:.3f}  {self.seconds:.2f} s  "
            f"{self.tokens_per_s_per_rank:,.0f} tokens/s a rank  {self.tflops_per_rank:.4g} TFLOP/s{mfu}{memory}  "
            f"{self.documents} documents  {shown}"
        )


def flops_of(shape: Any, tokens: int, areas: list[int], attention: int) -> float:
    """FLOPs of forward and backward, recomputed work not counted. areas: visible pairs of each layer."""
    linear = 6 * (shape.layers * shape.layer_weights + shape.hidden * shape.vocabulary) * tokens
    return float(linear + attention * sum(areas) * shape.heads * shape.head_dim)


def peak_flops(device: torch.device) -> float:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), 0.0)


class Log:
    """steps.csv in a folder, one line a step, appended to, and steps.svg drawn from it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "steps.csv"

    def add(self, report: StepReport) -> None:
        row = {f.name: getattr(report, f.name) for f in fields(report) if f.name != "parts"}
        row |= {f"{part}_s": f"{report.parts[part]:.6f}" for part in PARTS}
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def draw(self) -> Path:
        """Loss above, time by part below; by step."""
        with self.path.open() as file:
            rows = list(csv.DictReader(file))
        path = self.path.with_suffix(".svg")
        path.write_text(_svg(rows))
        return path


def _svg(rows: list[dict[str, str]]) -> str:
    width, height, left = 720, 200, 60
    losses = [float(row["loss"]) for row in rows]
    low, high = min(losses), max(max(losses), min(losses) + 1e-9)
    at = [left + (i + 0.5) * (width - left - 10) / len(rows) for i in range(len(rows))]
    points = " ".join(f"{x:.1f},{20 + (high - y) / (high - low) * (height - 40):.1f}" for x, y in zip(at, losses))
    shapes = [
        f'<polyline points="{points}" fill="none" stroke="{COLOURS[2]}" stroke-width="2"/>',
        f'<text x="4" y="24">{high:.3f}</text><text x="4" y="{height - 16}">{low:.3f}</text>',
        f'<text x="{left}" y="12">loss</text><text x="{left}" y="{height + 12}">seconds by part</text>',
    ]
    most = max(sum(float(row[f"{part}_s"]) for part in PARTS) for row in rows) or 1.0
    step = max(1.0, (width - left - 10) / len(rows) * 0.8)
    for x, row in zip(at, rows):
        top = 2.0 * height - 20
        for part, colour in zip(PARTS, COLOURS, strict=True):
            tall = float(row[f"{part}_s"]) / most * (height - 40)
            top -= tall
            shapes.append(
                f'<rect x="{x - step / 2:.1f}" y="{top:.1f}" width="{step:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            )
    shapes.append(f'<text x="4" y="{height + 24}">{most:.3g} s</text>')
    for i, (part, colour) in enumerate(zip(PARTS, COLOURS, strict=True)):
        x = left + i * 82
        shapes.append(f'<rect x="{x}" y="{2 * height - 12}" width="10" height="10" fill="{colour}"/>')
        shapes.append(f'<text x="{x + 13}" y="{2 * height - 3}">{part}</text>')
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{2 * height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
