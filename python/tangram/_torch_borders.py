# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Borders of packed sequences: what they may be, and an operator that checks them in graphs of torch.compile, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .errors import InvalidArgument

Borders = tuple[int, ...]


def checked_borders(function: str, name: str, cu_seqlens: Any, total: int) -> Borders:
    """Borders in host memory as integers."""
    if isinstance(cu_seqlens, Tensor):
        if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise InvalidArgument(
                f"{function}: {name} must be int32 [documents + 1] (got {cu_seqlens.dtype}{list(cu_seqlens.shape)})"
            )
        cu_seqlens = cu_seqlens.tolist()
    borders = tuple(int(border) for border in cu_seqlens)
    if not borders or borders[0] != 0 or borders[-1] != total or any(a > b for a, b in zip(borders, borders[1:])):
        raise InvalidArgument(
            f"{function}: {name} must rise from 0 to the {total} rows of its tensor "
            f"(got {name}={list(borders[:8])}, {len(borders)} values)"
        )
    return borders


def longest_of(borders: Borders) -> int:
    return max((b - a for a, b in zip(borders, borders[1:])), default=0)


def check_longest(function: str, name: str, given: Any, longest: int) -> None:
    if given is not None and int(given) < longest:
        raise InvalidArgument(
            f"{function}: {name} must be at least the longest sequence, {longest} (got {name}={int(given)})"
        )


torch.library.define(
    "tangram::ranges_of_borders",
    "(Tensor borders, SymInt total, SymInt most, str function, str name, str name_of_most) -> Tensor",
)


@torch.library.impl("tangram::ranges_of_borders", "CompositeExplicitAutograd")
def _ranges_of_borders(borders: Tensor, total: int, most: int, function: str, name: str, name_of_most: str) -> Tensor:
    values = checked_borders(function, name, borders, total)
    check_longest(function, name_of_most, None if most < 0 else most, longest_of(values))
    return torch.stack([borders[:-1], borders[1:]], 1).to(torch.int32)


@torch.library.register_fake("tangram::ranges_of_borders")  # type: ignore[misc]
def _fake_ranges_of_borders(borders: Tensor, *_: Any) -> Tensor:
    return borders.new_empty((borders.shape[0] - 1, 2), dtype=torch.int32)


def ranges_of_borders(borders: Tensor, total: int, most: Any, names: tuple[str, str, str]) -> Tensor:
    """Documents of a compiled graph, `[documents, 2]` int32 where the borders lie; reading borders in GPU memory
    synchronises. Refuses when it runs what calls outside of graphs refuse.

    Args:
        total: rows of their tensor. most: what max_seqlen says, if it is an integer. names: of the function, of the
            borders and of `most`.
    """
    made: Tensor = torch.ops.tangram.ranges_of_borders(borders, total, most if isinstance(most, int) else -1, *names)
    return made
