# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks that others describe otherwise: dense boolean ones, BlockMask of FlexAttention, blocks for groups of heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._batches import shifted
from ._core import Mask
from ._named import Named
from ._runs import RunsToSlices
from .errors import InvalidArgument, NotAvailable


def _numpy(function: str) -> Any:
    try:
        import numpy
    except ModuleNotFoundError:
        raise NotAvailable(f"tangram.{function}: needs NumPy (pip install numpy)") from None
    return numpy


def _runs_of_rows(np: Any, rows: Any) -> Iterator[tuple[Any, Any]]:
    """(begins, ends) of the runs of True in each row of a boolean array."""
    edges = np.zeros((rows.shape[0], rows.shape[1] + 2), np.int8)
    edges[:, 1:-1] = rows
    change = np.diff(edges, axis=1)
    at, begin = np.nonzero(change == 1)
    end = np.nonzero(change == -1)[1]
    borders = np.searchsorted(at, np.arange(rows.shape[0] + 1))
    for i in range(rows.shape[0]):
        yield begin[borders[i] : borders[i + 1]], end[borders[i] : borders[i + 1]]


def _in_a_row(masks: list[Mask]) -> Mask:
    """Mask of sequences that lie one after the other and do not see each other."""
    if len(masks) == 1:
        return masks[0]
    slices, q_shift, k_shift = [], 0, 0
    for mask in masks:
        slices += shifted(mask, q_shift, k_shift)
        q_shift, k_shift = q_shift + mask.seqlen_q, k_shift + mask.seqlen_k
    return Mask(q_shift, k_shift, slices)


def _of_heads(masks: list[Mask]) -> Mask | list[Mask]:
    return masks[0] if all(mask == masks[0] for mask in masks) else masks


def masks_from_block_indices(
    seqlen_q: int, seqlen_k: int, block_q: int, block_k: int, indices: Any, *, causal: bool = False
) -> list[Mask]:
    """The key blocks that each query block sees, chosen for each head group, as dynamic sparse attention does. Returns
    one mask per group: a list that can be passed wherever a mask is.

    Args:
        seqlen_q, seqlen_k: rows; blocks at the end may be shorter.
        block_q, block_k: rows of a block.
        indices: integers `[groups, query blocks, n]`: a NumPy array, a torch tensor (copied to the host) or lists. -1
            follows the indices of a query block that sees fewer than n, or its list ends. Group g is of K/V heads `[g *
            heads_kv / groups, (g + 1) * heads_kv / groups)` and their query heads.
        causal: cuts the blocks besides, bottom-right aligned.

    Raises:
        InvalidArgument: another shape or dtype; an index out of range, twice in a query block, or behind a -1.
    """
    groups = indices
    if not isinstance(indices, (list, tuple)):
        groups = _numpy("masks_from_block_indices").asarray(
            indices.detach().cpu() if hasattr(indices, "detach") else indices
        )
        if groups.ndim != 3 or groups.shape[0] == 0 or groups.dtype.kind not in "iu":
            raise InvalidArgument(
                "masks_from_block_indices: indices must be integers [groups, query blocks, n]; those of all heads are "
                f"Mask.from_block_indices (got {tuple(groups.shape)} of {groups.dtype})"
            )
    if len(groups) == 0:
        raise InvalidArgument("masks_from_block_indices: indices must be of one group at least (got none)")
    masks = []
    for number, group in enumerate(groups):
        with Named("masks_from_block_indices"):
            try:
                masks.append(Mask.from_block_indices(seqlen_q, seqlen_k, block_q, block_k, group, causal=causal))
            except InvalidArgument as error:  # what was given ends the text, in parentheses
                raise InvalidArgument(f"{str(error)[:-1]} of group {number})") from None
    return masks


def from_dense(mask: Any, *, max_slices: int | None = None) -> Mask | list[Mask]:
    """A dense boolean mask, True where a query sees a key, as few slices.

    Args:
        mask: `[seqlen_q, seqlen_k]`, or `[batch, heads, seqlen_q, seqlen_k]` of a batch whose sequences lie one after
            the other. A bool NumPy array or torch tensor, which is copied to the host.
        max_slices: how many are taken; None: 1,024, or as many as hold 256 visible cells on average.

    Returns:
        A Mask; where heads see different cells a list of masks, one for each, which stands for a mask wherever one is
        taken.

    Raises:
        InvalidArgument: another shape or dtype; a mask too irregular, with how irregular it is.
    """
    np = _numpy("from_dense")
    cells = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    if cells.dtype != np.bool_:
        raise InvalidArgument(
            f"from_dense: mask must be boolean, True where a query sees a key; a mask of additive values is "
            f"`mask == 0` (got {cells.dtype})"
        )
    if cells.ndim not in (2, 4) or 0 in cells.shape[:-2]:
        raise InvalidArgument(
            "from_dense: mask must have shape [seqlen_q, seqlen_k] or [batch, heads, seqlen_q, seqlen_k] "
            f"(got {tuple(cells.shape)})"
        )
    cells = cells.reshape(1, 1, *cells.shape) if cells.ndim == 2 else cells

    def of(rows: Any) -> Mask:
        runs = RunsToSlices(np, "from_dense")
        for begin, end in _runs_of_rows(np, rows):
            runs.add(begin, end)
        return runs.mask(rows.shape[1], max_slices)

    batch, heads = cells.shape[:2]
    return _of_heads([_in_a_row([of(cells[b, h]) for b in range(batch)]) for h in range(heads)])


def from_block_mask(block_mask: Any, *, max_slices: int | None = None) -> Mask | list[Mask]:
    """A BlockMask of torch.nn.attention.flex_attention as few slices.

    Full blocks are taken whole. In other blocks mask_mod is evaluated for every cell, so that the result has the cells
    of the function, not of the blocks. At most a row of blocks is dense at a time.

    Args:
        block_mask: with batch and heads of any number. A score_mod is not part of it.
        max_slices: as of from_dense.

    Returns:
        As from_dense: sequences of a batch lie one after the other. A block mask of batch 1 is for one sequence;
        flex_flash_attn_func takes it for each with layout="bshd".

    Raises:
        InvalidArgument: no BlockMask; a mask too irregular, with how irregular it is.
    """
    np = _numpy("from_block_mask")
    wanted = ("kv_num_blocks", "kv_indices", "BLOCK_SIZE", "mask_mod", "seq_lengths")
    missing = [name for name in wanted if not hasattr(block_mask, name)]
    if missing:
        raise InvalidArgument(
            "from_block_mask: block_mask must be a BlockMask of torch.nn.attention.flex_attention; from_dense takes "
            f"tensors (got {type(block_mask).__name__} without {', '.join(missing)})"
        )
    batch, heads = block_mask.kv_num_blocks.shape[:2]

    def of(b: int, h: int) -> Mask:
        runs = RunsToSlices(np, "from_block_mask")
        for strip in _strips(block_mask, b, h):
            for begin, end in _runs_of_rows(np, strip):
                runs.add(begin, end)
        return runs.mask(block_mask.seq_lengths[1], max_slices)

    return _of_heads([_in_a_row([of(b, h) for b in range(batch)]) for h in range(heads)])


def _strips(block_mask: Any, b: int, h: int) -> Iterator[Any]:
    """Dense cells `[rows of a block, seqlen_k]` of one block of queries after the other, as NumPy arrays."""
    import torch

    seqlen_q, seqlen_k = block_mask.seq_lengths
    size_q, size_k = block_mask.BLOCK_SIZE
    device = block_mask.kv_indices.device

    def listed(counts: Any, indices: Any) -> list[list[int]]:
        if counts is None:
            return [[]] * -(-seqlen_q // size_q)
        return [row[:n] for n, row in zip(counts[b, h].tolist(), indices[b, h].tolist(), strict=True)]

    partial = listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    ask = torch.vmap(torch.vmap(block_mask.mask_mod, (None, None, None, 0)), (None, None, 0, None))
    at = [torch.tensor(i, device=device) for i in (b, h)]
    for i in range(-(-seqlen_q // size_q)):
        rows = torch.arange(i * size_q, min((i + 1) * size_q, seqlen_q), device=device)
        cells = torch.zeros((rows.shape[0], seqlen_k), dtype=torch.bool)
        for j in full[i] if i < len(full) else []:
            cells[:, j * size_k : (j + 1) * size_k] = True
        some = sorted(partial[i]) if i < len(partial) else []
        if some:
            keys = torch.cat([torch.arange(j * size_k, min((j + 1) * size_k, seqlen_k), device=device) for j in some])
            cells[:, keys.cpu()] = ask(*at, rows, keys).to("cpu", torch.bool)
        yield cells.numpy()
