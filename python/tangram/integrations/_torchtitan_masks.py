# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks of TorchTitan's block masks. Its own mask functions are read, since asking each cell takes minutes at 128K
tokens; others are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .._core import Mask
from .._from_masks import from_block_mask
from ..errors import InvalidArgument
from ._narrow import NO_LIMITS, Limits, narrowed

_MODULE = "torchtitan.models.attention"


def mask_of(block_mask: Any, batch: int, length: int) -> Mask:
    """The mask of `batch` sequences of `length` tokens, one after the other.

    Raises:
        InvalidArgument: masks of other lengths, and masks that differ between heads.
    """
    if tuple(block_mask.seq_lengths) != (length, length):
        raise InvalidArgument(f"block mask: it must be of {length} tokens (got {tuple(block_mask.seq_lengths)})")
    read = _read(block_mask.mask_mod, batch, length)
    if read is not None:
        return read
    asked = from_block_mask(block_mask)
    if not isinstance(asked, Mask):
        raise InvalidArgument(f"block mask: it must be alike for all heads (got masks of {len(asked)} heads)")
    return _repeated(asked, batch) if asked.seqlen_q == length else asked


def causal_mask(batch: int, length: int) -> Mask:
    result: Mask = Mask.varlen(list(range(0, batch * length + 1, length)), causal=True)
    return result


def _repeated(mask: Mask, batch: int) -> Mask:
    from .._from_masks import _in_a_row

    return _in_a_row([mask] * batch)


def _read(mask_mod: Any, batch: int, length: int) -> Mask | None:
    """None for functions that are not TorchTitan's."""
    borders, causal, limits = {*range(0, batch * length + 1, length)}, False, NO_LIMITS
    for one in _parts(mask_mod):
        kind = one.__qualname__.split(".")[0] if getattr(one, "__module__", None) == _MODULE else None
        held = _held(one)
        if kind == "get_causal_mask_mod":
            causal = True
        elif kind == "get_document_mask_mod":
            numbers = held["sequence_indices"]
            if numbers.shape != (batch, length):
                return None
            starts = torch.zeros(batch, length, dtype=torch.bool)
            starts[:, 1:] = (numbers[:, 1:] != numbers[:, :-1]).cpu()
            borders |= set(starts.flatten().nonzero().flatten().tolist())
        elif kind == "get_fixed_block_mask_mod":
            size = held["fixed_block_size"]
            borders |= {b * length + at for b in range(batch) for at in range(0, length, size)}
        elif kind == "get_sliding_window_mask_mod":
            causal, limits = True, Limits(min(held["window_size"] - 1, length if limits.left is None else limits.left))
        else:
            return None
    mask: Mask = Mask.varlen(sorted(borders), causal=causal)
    return mask if limits == NO_LIMITS else narrowed(mask, limits)


def _parts(mask_mod: Any) -> Iterator[Any]:
    """Functions that torch's and_masks put together."""
    if getattr(mask_mod, "__qualname__", "").startswith("and_masks.") and "mask_mods" in _held(mask_mod):
        for one in _held(mask_mod)["mask_mods"]:
            yield from _parts(one)
    else:
        yield mask_mod


def _held(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells))) if code and cells else {}
