# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rates of a device beside PyTorch's attention: what a first report of a card shows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..flex import flex_flash_attn_func
from ._cases import document_borders, mask_case


@dataclass
class Rate:
    """TFLOP/s of visible cells: 4 * area * heads * dim forward, 2.5 times as many backward."""

    mask: str
    dim: int
    rows: int
    what: str
    """tangram, sdpa (PyTorch) or flex (PyTorch's compiled FlexAttention)."""
    forward: float | None = None
    backward: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _seconds(step: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median of single calls, after two that are not counted."""
    times: list[float] = []
    cuda: Any = torch.cuda
    for i in range(repeats + 2):
        if device.type == "cuda":
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            passed = begin.elapsed_time(end) / 1e3
        else:
            started = time.perf_counter()
            step()
            passed = time.perf_counter() - started
        if i >= 2:
            times.append(passed)
    return statistics.median(times)


def _measure(
    rate: Rate, attend: Callable[[], Tensor], leaves: list[Tensor], flops: float, device: torch.device
) -> Rate:
    repeats = 7 if device.type == "cuda" else 2

    def forward() -> None:
        with torch.no_grad():
            attend()

    try:
        rate.forward = flops / _seconds(forward, device, repeats) / 1e12
        out = attend()
        dout = torch.randn_like(out)
        seconds = _seconds(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), device, repeats)
        rate.backward = 2.5 * flops / seconds / 1e12
    except Exception as error:  # PyTorch may lack the kernel; a missing rate is no failure
        rate.note = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]
    return rate


def _leaves(rows: int, heads: tuple[int, int], dim: int, device: torch.device) -> list[Tensor]:
    shapes = [(rows, heads[0], dim), (rows, heads[1], dim), (rows, heads[1], dim)]
    return [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for shape in shapes]


def _flex(leaves: list[Tensor], rows: int, name: str) -> Callable[[], Tensor]:
    """FlexAttention over the cells of the mask, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    cells = mask_case(name, rows).cells[0]
    if name == "documents":
        device = leaves[0].device
        borders = torch.tensor(document_borders(rows)[1:-1], device=device)
        document = torch.bucketize(torch.arange(rows, device=device), borders, right=True)

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (document[i] == document[j]) & (j <= i)
    else:

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return cells(i, j)

    blocks = create_block_mask(seen, None, None, rows, rows, device=leaves[0].device.type)
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(*(x.transpose(0, 1)[None] for x in leaves), block_mask=blocks, enable_gqa=True)


def rates(device: torch.device, backend: str, rows: int, deadline: float) -> Iterator[Rate]:
    """Ends early at `deadline`, of time.monotonic(): FlexAttention, which takes long to compile, comes last."""
    heads = (16, 16) if device.type == "cuda" else (2, 2)
    for dim in (64, 128) if device.type == "cuda" else (64,):
        leaves = _leaves(rows, heads, dim, device)
        for name in ("causal", "full", "documents", "window"):
            mask: Mask = mask_case(name, rows).masks[0]
            flops = 4.0 * mask.area * heads[0] * dim
            if time.monotonic() > deadline:
                return

            def ours(mask: Mask = mask, leaves: list[Tensor] = leaves) -> Tensor:
                q, k, v = leaves
                out: Tensor = flex_flash_attn_func(q, k, v, mask, backend=backend)[0]
                return out

            yield _measure(Rate(name, dim, rows, "tangram"), ours, leaves, flops, device)
            if name in ("causal", "full"):

                def sdpa(causal: bool = name == "causal", leaves: list[Tensor] = leaves) -> Tensor:
                    q, k, v = (x.transpose(0, 1)[None] for x in leaves)
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

                yield _measure(Rate(name, dim, rows, "sdpa"), sdpa, leaves, flops, device)
    if device.type != "cuda":
        return
    leaves = _leaves(rows, heads, 128, device)
    for name in ("documents", "window"):
        flops = 4.0 * mask_case(name, rows).masks[0].area * heads[0] * 128
        rate = Rate(name, 128, rows, "flex")
        if time.monotonic() > deadline:
            rate.note = "not measured: no time left"
            yield rate
            continue
        try:
            yield _measure(rate, _flex(leaves, rows, name), leaves, flops, device)
        except Exception as error:  # as in _measure
            rate.note = f"{type(error).__name__}: {error}"[:200]
            yield rate


def table(measured: list[Rate]) -> str:
    """Masks and dims by rows, what was measured by columns."""
    lines = [f"  {'mask':<10} {'dim':>4}  {'forward TFLOP/s':<38}  backward TFLOP/s"]
    for mask, dim in dict.fromkeys((rate.mask, rate.dim) for rate in measured):
        row = [rate for rate in measured if (rate.mask, rate.dim) == (mask, dim)]
        cells = []
        for of_pass in ("forward", "backward"):
            values = [(rate.what, getattr(rate, of_pass)) for rate in row]
            cells.append(
                ", ".join(f"{what} {'–' if value is None else format(value, '.3g')}" for what, value in values)
            )
        lines.append(f"  {mask:<10} {dim:>4}  {cells[0]:<38}  {cells[1]}")
    notes = dict.fromkeys(f"  {rate.what}: {rate.note}" for rate in measured if rate.note)
    return "\n".join([*lines, *notes])
