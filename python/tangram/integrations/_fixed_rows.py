# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runtime keys of rows that stay on the ranks where another library put them.

The sequence of such a key is the rows of rank 0, then those of rank 1, and so on. A sequential dispatch of it moves no
row. Its mask says what is visible between these places, out of positions in the documents.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, DispatchConfig, DistAttnConfig, HeadConfig, Mask, Range
from ..errors import InvalidArgument

Layout = Literal["contiguous", "zigzag", "stripe", "sequence"]
"""Which rows of each document a rank has: one run, two runs that mirror each other, or every W-th row. "sequence": one
run of all documents together, wherever their borders lie."""
Window = tuple[int, int]
"""Keys before and after a query, -1: all."""
BALANCE_TO_WARN_OF = 1.25


class _Rows(NamedTuple):
    """Rows of one document that lie one after the other on a rank."""

    begin: int
    """In the sequence of the key."""
    position: int
    """Position of the first row in its document."""
    length: int


def _documents(layout: Layout, borders: tuple[int, ...], ranks: int) -> Iterator[tuple[int, list[_Rows]]]:
    """The distance of a rank's neighbouring rows, and the rows of all ranks, document by document."""
    if layout == "sequence":
        for begin, end in zip(borders, borders[1:]):
            yield 1, [_Rows(begin, 0, end - begin)]
        return
    total = borders[-1]
    for begin, end in zip(borders, borders[1:]):
        length = end - begin
        places = [rank * total + begin for rank in range(ranks)]
        if layout == "contiguous":
            yield 1, [_Rows(place, rank * length, length) for rank, place in enumerate(places)]
        elif layout == "stripe":
            yield ranks, [_Rows(place, rank, length) for rank, place in enumerate(places)]
        else:
            half = length // 2
            early = [_Rows(place, rank * half, half) for rank, place in enumerate(places)]
            late = [_Rows(place + half, (2 * ranks - 1 - rank) * half, half) for rank, place in enumerate(places)]
            yield 1, early + late


@lru_cache(64)
def fixed_mask(layout: Layout, borders: tuple[int, ...], ranks: int, window: Window) -> Mask:
    """borders: cu_seqlens of one rank's rows; of all rows where the layout is "sequence"."""
    left, right = window
    slices = []
    for step, rows in _documents(layout, borders, ranks):
        for q in rows:
            for k in rows:
                away = k.position - q.position
                low = OPEN_MIN_DIAG if left < 0 else -((left + away) // step)  # rounded up
                high = OPEN_MAX_DIAG if right < 0 else (right - away) // step
                if q.length == 0 or low > k.length - 1 or high < 1 - q.length:
                    continue
                shift = k.begin - q.begin
                q_range, k_range = Range(q.begin, q.begin + q.length), Range(k.begin, k.begin + k.length)
                least, most = low if left < 0 else low + shift, high if right < 0 else high + shift
                slices.append(AttnSlice(q_range, k_range, least, most))
    total = borders[-1] * (1 if layout == "sequence" else ranks)
    return Mask(total, total, slices)


def group_of(name: str, process_group: Any) -> Any:
    """The TorchGroup of a process group, whose ranks must have the numbers that they have there."""
    import torch.distributed as dist

    from .._torch_group import torch_group

    group = torch_group(process_group)
    theirs = dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group)
    if list(group.ranks) != list(theirs):
        raise InvalidArgument(
            f"{name}: the ranks of a group must lie node by node, since their rows stay where they are; make the group "
            f"of ranks in this order: {list(group.ranks)} (got {list(theirs)})"
        )
    return group


def fixed_key(name: str, mask: Mask, heads: HeadConfig, group: Any) -> Any:
    """The key of `mask`, whose sequence the ranks of a TorchGroup hold in order. Warns once of unequal work."""
    from .._keys import key_of_heads

    config = DistAttnConfig(dispatch=DispatchConfig("sequential", mask.seqlen_q // group.size))
    key = key_of_heads(mask, heads, group, 0, config)
    if key.plan.balance > BALANCE_TO_WARN_OF:
        _warn_of_balance(name, key.plan.balance)
    return key


_warned: set[str] = set()


def _warn_of_balance(name: str, balance: float) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name}: the ranks' rows should be equal work, as those of tangram.dispatch are "
            f"(got {balance:.2f} times the mean on one rank)",
            stacklevel=4,
        )


def borders_of(name: str, argument: str, cu_seqlens: Any, rows: int) -> tuple[int, ...]:
    """cu_seqlens as numbers, from 0 to `rows`. Of a tensor in GPU memory the host waits."""
    values = tuple(int(x) for x in (cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens))
    if len(values) < 2 or values[0] != 0 or values[-1] != rows or any(a > b for a, b in zip(values, values[1:])):
        raise InvalidArgument(
            f"{name}: {argument} must rise from 0 to the {rows} rows (got {argument}={str(list(values)):.80})"
        )
    return values
