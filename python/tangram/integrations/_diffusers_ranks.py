# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of diffusers' context parallelism: each rank holds a run of the rows, of every sequence of the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._core import AttnSlice, HeadConfig, Mask, Range
from .._named import Named
from ..errors import InvalidArgument
from ._fixed_rows import fixed_key, fixed_mask, group_of
from ._mask_function import visible_runs

Shape = tuple[int, int, int, int]
"""Batch, heads, and this rank's queries and keys."""


def attention_over_ranks(
    name: str, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, causal: bool, scale: Any, config: Any
) -> tuple[Tensor, Tensor]:
    """States `[batch, rows, heads, dim]` of this rank's rows; out and lse alike.

    Args:
        attn_mask: bool, of this rank's keys alone.
        config: a ContextParallelConfig. Of its degrees only the number of ranks counts: Tangram plans what moves.
    """
    from ..distributed import calc_attn

    process_group = config._flattened_mesh.get_group()
    group = group_of(name, process_group)
    batch, rows, heads, dim = q.shape
    shape = batch, heads, rows, k.shape[1]
    try:
        _check(name, shape, attn_mask, causal, config)
    except InvalidArgument as error:
        group.refuse(-1, str(error))
        raise
    if attn_mask is not None:
        mask = _of_keys(_of_ranks(attn_mask, shape, process_group), rows)
    elif causal:
        mask = fixed_mask("contiguous", tuple(range(0, batch * rows + 1, rows)), group.size, (-1, 0))
    elif batch == 1:
        mask = Mask.full(group.size * rows)
    else:
        mask = fixed_mask("contiguous", tuple(range(0, batch * rows + 1, rows)), group.size, (-1, -1))
    key = fixed_key(name, mask, HeadConfig(heads, k.shape[2], dim, v.shape[3]), group)
    with Named(name):
        flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))
        out, meta = calc_attn(flat_q, flat_k, flat_v, key, softmax_scale=scale)
    return out.view(batch, rows, heads, -1), meta.lse.view(batch, rows, heads)


def _check(name: str, shape: Shape, attn_mask: Tensor | None, causal: bool, config: Any) -> None:
    batch, heads, rows, keys = shape
    if config.ring_anything or config.ulysses_anything:
        raise InvalidArgument(
            f"{name}: ranks must have equally many rows: pad the sequence and turn ring_anything and ulysses_anything "
            "off (got one of them)"
        )
    if rows != keys:
        raise InvalidArgument(f"{name}: a rank's queries must be as many as its keys (got {rows} and {keys})")
    if attn_mask is None:
        return
    if causal:
        raise InvalidArgument(f"{name}: is_causal must be False beside attn_mask (got True)")
    if attn_mask.dtype != torch.bool:
        raise InvalidArgument(f"{name}: attn_mask must be bool, True where a key is seen (got {attn_mask.dtype})")
    of_keys = attn_mask.dim() == 2 and attn_mask.shape == (batch, keys)
    of_cells = attn_mask.dim() == 4 and attn_mask.shape[1:] == (1, 1, keys) and attn_mask.shape[0] in (1, batch)
    if not (of_keys or of_cells):
        raise InvalidArgument(
            f"{name}: attn_mask must be of this rank's keys alone over ranks, [{batch}, {keys}] or "
            f"[{batch}, 1, 1, {keys}] (got {list(attn_mask.shape)})"
        )


def _of_ranks(attn_mask: Tensor, shape: Shape, process_group: Any) -> list[Tensor]:
    """`[batch, keys]` of each rank, on the host."""
    batch, _, _, keys = shape
    own = attn_mask.reshape(-1, keys).expand(batch, keys).to(torch.uint8).contiguous()
    whole = [torch.empty_like(own) for _ in range(dist.get_world_size(process_group))]
    dist.all_gather(whole, own, group=process_group)
    return [x.cpu().bool() for x in whole]


def _of_keys(visible: list[Tensor], rows: int) -> Mask:
    """All queries of a sequence see its visible keys. The sequence of the key is rank by rank."""
    ranks, batch = len(visible), visible[0].shape[0]
    total = ranks * batch * rows
    slices = []
    runs = [visible_runs(of_rank, batch, (0, rows)) for of_rank in visible]
    for b in range(batch):
        for of_q in range(ranks):
            q_begin = (of_q * batch + b) * rows
            for of_k in range(ranks):
                k_begin = (of_k * batch + b) * rows
                for begin, end in runs[of_k][b]:
                    slices.append(AttnSlice(Range(q_begin, q_begin + rows), Range(k_begin + begin, k_begin + end)))
    return Mask(total, total, slices)
