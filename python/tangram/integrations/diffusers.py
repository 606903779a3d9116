# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Diffusers: the attention backend "tangram", in one process and over the ranks of diffusers' context parallelism.

register()
model.set_attention_backend("tangram")
model.enable_parallelism(config=ContextParallelConfig(ring_degree=8))    # over ranks
"""

from __future__ import annotations

from typing import Any

import diffusers.models.attention_dispatch as _theirs  # type: ignore[import-not-found,import-untyped,unused-ignore]
import torch
from torch import Tensor

from .._core import OPEN_MIN_DIAG, AttnSlice, Mask, Range
from .._from_masks import from_dense
from .._named import Named
from ..errors import InvalidArgument
from ..flex import flex_flash_attn_func
from ._diffusers_ranks import attention_over_ranks
from ._mask_function import visible_runs
from ._versions import warn_of_untested

__all__ = ["NAME", "register"]
NAME = "tangram"
_NAME = "attention backend 'tangram'"
_MADE = "_tangram_mask"
"""On a mask tensor: (its version, shapes, what was made of it)."""


def register() -> None:
    """Makes the backend known to set_attention_backend and attention_backend. Calling it again changes nothing."""
    names = _theirs.AttentionBackendName
    if NAME not in names._value2member_map_:
        # The registry takes members of an Enum alone, which is closed to others.
        member = str.__new__(names, NAME)
        member._name_, member._value_ = "TANGRAM", NAME
        names._member_map_["TANGRAM"] = names._value2member_map_[NAME] = member
        names._member_names_.append("TANGRAM")
    warn_of_untested("diffusers")
    _theirs._AttentionBackendRegistry.register(names(NAME), supports_context_parallel=True)(_attention)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    window_size: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    block_mask: Any = None,
    score_mod: Any = None,
    _parallel_config: Any = None,
) -> Any:
    """States `[batch, rows, heads, dim]`, over ranks those of a rank's rows.

    Diffusers drops arguments that are not named here, so what models may pass is named, to be refused. Rows without a
    visible key give 0, which are NaN with PyTorch's own attention."""
    refused = {"window_size": window_size, "softcap": softcap, "sinks": sinks, "block_mask": block_mask}
    for name, given in {**refused, "score_mod": score_mod}.items():
        if given not in (None, 0.0, (-1, -1)):
            raise InvalidArgument(f"{_NAME}: {name} is not supported; pass attn_mask (got {name}={given!r:.60})")
    if dropout_p:
        raise InvalidArgument(f"{_NAME}: dropout_p must be 0 (got {dropout_p})")
    if query.shape[2] != key.shape[2] and not enable_gqa:
        raise InvalidArgument(
            f"{_NAME}: enable_gqa must be True for fewer key heads (got {query.shape[2]} and {key.shape[2]})"
        )
    over_ranks = None if _parallel_config is None else _parallel_config.context_parallel_config
    if over_ranks is not None and over_ranks._world_size > 1:
        result = attention_over_ranks(_NAME, query, key, value, attn_mask, is_causal, scale, over_ranks)
        return result if return_lse else result[0]
    batch, rows = query.shape[:2]
    mask = _mask(attn_mask, is_causal, (batch, query.shape[2], rows, key.shape[1]))
    with Named(_NAME):
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))
        out, meta = flex_flash_attn_func(q, k, v, mask, softmax_scale=scale)
    out = out.view(batch, rows, *out.shape[1:])
    return (out, meta.lse.view(batch, rows, -1)) if return_lse else out


def _mask(attn_mask: Tensor | None, is_causal: bool, shape: tuple[int, int, int, int]) -> Any:
    """shape: batch, heads, queries and keys."""
    batch, _, rows, keys = shape
    if attn_mask is None:
        ranges = [(Range(b * rows, (b + 1) * rows), Range(b * keys, (b + 1) * keys)) for b in range(batch)]
        if not is_causal:
            return Mask(batch * rows, batch * keys, [AttnSlice(*each) for each in ranges])
        slices = [AttnSlice(q, k, OPEN_MIN_DIAG, k.begin - q.begin) for q, k in ranges]
        return Mask(batch * rows, batch * keys, slices)
    if is_causal:
        raise InvalidArgument(f"{_NAME}: is_causal must be False beside attn_mask (got True)")
    if attn_mask.dtype != torch.bool:
        raise InvalidArgument(
            f"{_NAME}: attn_mask must be bool, True where a query sees a key; `attn_mask == 0` of additive masks "
            f"without biases (got {attn_mask.dtype})"
        )
    version, made_for, made = getattr(attn_mask, _MADE, (None, None, None))
    if (version, made_for) != (attn_mask._version, shape):
        made = _made(attn_mask, shape)
        setattr(attn_mask, _MADE, (attn_mask._version, shape, made))
    return made


def _made(attn_mask: Tensor, shape: tuple[int, int, int, int]) -> Any:
    batch, heads, rows, keys = shape
    if attn_mask.dim() == 2 and attn_mask.shape == (batch, keys):
        attn_mask = attn_mask[:, None, None]  # as diffusers reads it
    cells = attn_mask[(None,) * (4 - attn_mask.dim())]
    if any(n not in (1, size) for n, size in zip(cells.shape, shape)) or cells.shape[3] != keys:
        raise InvalidArgument(
            f"{_NAME}: attn_mask must be [batch, keys], or broadcast to {list(shape)} (got {list(attn_mask.shape)})"
        )
    if cells.shape[1] == cells.shape[2] == 1:  # of keys alone: without a mask of all cells
        visible = cells[:, 0, 0].expand(batch, keys)
        slices = [
            AttnSlice(Range(b * rows, (b + 1) * rows), Range(b * keys + begin, b * keys + end))
            for b, runs in enumerate(visible_runs(visible, batch, (0, keys)))
            for begin, end in runs
        ]
        return Mask(batch * rows, batch * keys, slices)
    return from_dense(cells.expand(batch, cells.shape[1] if cells.shape[1] == 1 else heads, rows, keys))
