# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Borders of packed documents as ring_flash_attn's llama3 functions pass them, and those of the whole pack behind
them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidArgument
from ._fixed_rows import borders_of

_WHOLE = "_tangram_whole_pack"
"""On the cu_seqlens_q that prepare returns: (version of the tensor, borders of the whole pack, causal)."""


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """Borders of this rank's queries and of the keys that they need.

    Args:
        cu_seqlens: `[documents + 1]`, of the whole pack, whose rows are a multiple of world_size.

    Returns:
        (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice), as ring_flash_attn. The functions take
        the borders of the whole pack from this cu_seqlens_q; of a copy of it they ask all ranks in each call.
    """
    name = "llama3_flash_attn_prepare_cu_seqlens"
    total = int(cu_seqlens[-1])
    whole = borders_of(name, "cu_seqlens", cu_seqlens, total)
    if total % world_size:
        raise InvalidArgument(
            f"{name}: the rows of the pack must be a multiple of world_size; pad it by a document "
            f"(got cu_seqlens[-1]={total}, world_size={world_size})"
        )
    of_q, of_k, local = _of_rank(whole, causal, rank, total // world_size)
    cu_q, cu_k = (cu_seqlens.new_tensor(values) for values in (of_q, of_k))
    setattr(cu_q, _WHOLE, (cu_q._version, whole, causal))
    longest_q, longest_k = (max(b - a for a, b in zip(cu, cu[1:])) for cu in (of_q, of_k))
    return cu_q, cu_k, longest_q, longest_k, local


def _of_rank(whole: tuple[int, ...], causal: bool, rank: int, rows: int) -> tuple[list[int], list[int], slice]:
    begin, end = rank * rows, (rank + 1) * rows
    left, right = bisect_left(whole, begin), bisect_left(whole, end)
    if whole[left] != begin:
        left -= 1
    own = whole[left : right + 1]
    of_q = [0, *(x - begin for x in own[1:-1]), rows]
    key_end = end if causal else whole[right]
    of_k = [x - own[0] for x in (*own[:-1], key_end)]
    return of_q, of_k, slice(own[0], key_end)


def sequence_borders(
    name: str, cu_q: Tensor, cu_k: Tensor, local: slice, rows: int, causal: bool, process_group: Any, group: Any
) -> tuple[int, ...]:
    """Borders of the whole pack. They come with the cu_seqlens_q of llama3_flash_attn_prepare_cu_seqlens; of other
    tensors all ranks tell theirs, which is collective and waits."""
    version, whole, made_causal = getattr(cu_q, _WHOLE, (None, None, None))
    if whole is None or version != cu_q._version:
        whole, made_causal = _ask_ranks(name, cu_q, cu_k, local, rows, process_group, group)
        setattr(cu_q, _WHOLE, (cu_q._version, whole, made_causal))
    if whole[-1] != rows * group.size:
        raise InvalidArgument(
            f"{name}: q must be this rank's rows of the pack (got {rows} rows on {group.size} ranks, a pack of "
            f"{whole[-1]} rows)"
        )
    if made_causal is not None and made_causal != causal:
        raise InvalidArgument(
            f"{name}: causal must be as llama3_flash_attn_prepare_cu_seqlens got it (got causal={causal} after "
            f"{made_causal})"
        )
    return whole  # type: ignore[no-any-return]


def _ask_ranks(
    name: str, cu_q: Tensor, cu_k: Tensor, local: slice, rows: int, process_group: Any, group: Any
) -> tuple[tuple[int, ...], bool | None]:
    """(borders, causal; None if both are possible), by what all ranks pass."""
    told: list[Any] = [None] * group.size
    mine = (cu_q.tolist(), cu_k.tolist(), (local.start, local.stop), rows)
    dist.all_gather_object(told, mine, group=process_group)
    begins = {0, rows * group.size}
    for rank, (of_q, of_k, (start, stop), _) in enumerate(told):
        begins |= {start + x for x in of_k[:-1]} | {rank * rows + x for x in of_q[1:-1]}
        begins |= {stop} if stop != (rank + 1) * rows else set()
    whole = tuple(sorted(begins))
    fits = [
        causal
        for causal in (True, False)
        if all(
            _of_rank(whole, causal, rank, rows) == (of_q, of_k, slice(*ends)) and theirs == rows
            for rank, (of_q, of_k, ends, theirs) in enumerate(told)
        )
    ]
    if not fits:
        raise InvalidArgument(
            f"{name}: cu_seqlens_q, cu_seqlens_k and local_k_slice must be those that "
            f"llama3_flash_attn_prepare_cu_seqlens gives each rank of one pack (got {told!r:.300})"
        )
    return whole, fits[0] if len(fits) == 1 else None
