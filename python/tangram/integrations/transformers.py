# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""HuggingFace Transformers: `register()`, then `attn_implementation="tangram"` in any model of its attention interface.

Batches, padding on either side, packed documents (position ids that start again), sliding and chunked layers, caches of
`generate`, softcap and sinks keep their meaning. `model(..., tangram_mask=mask)` gives a mask of one's own, and
`model(..., tangram_key=key)` computes context-parallel on the rows that `tangram.dispatch` gave this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument, NotAvailable
from ..flex import flex_flash_attn_func
from ._mask_function import MaskFunction, mask_of

NAME = "tangram"


def register(name: str = NAME) -> None:
    """Makes `attn_implementation=name` known to transformers. Calling it again changes nothing.

    Raises NotAvailable when transformers is missing or older than its attention interface (4.57).
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise NotAvailable(
            f"tangram.integrations.transformers.register: transformers 4.57 or later must be there (got {error})"
        ) from None
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _mask)


class ModelMask:
    """What a model knows of its mask, read when the first layer asks: with tangram_mask or tangram_key none does."""

    def __init__(self, read: Callable[[], Mask]) -> None:
        self._read = read

    @cached_property
    def mask(self) -> Mask:
        return self._read()


@torch.compiler.disable  # type: ignore[misc]
def _mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    cache_position: Tensor | None = None,
    **_: Any,
) -> ModelMask:
    """The mask of a batch whose rows lie one after the other, from the function by which transformers describes it."""
    if use_vmap or mask_function is None:
        raise InvalidArgument(
            "attn_implementation='tangram': masks that a model combines from functions of its own cannot be read; pass "
            "tangram_mask to the model (got a custom mask function)"
        )
    if q_length is None:  # before transformers 5
        if cache_position is None:
            raise InvalidArgument("attn_implementation='tangram': q_length or cache_position must be given (got none)")
        q_length, q_offset = cache_position.shape[0], int(cache_position[0])
    queries, keys = (int(q_offset), q_length), (kv_offset, kv_length)
    mask = ModelMask(partial(mask_of, mask_function, batch_size, queries, keys, attention_mask))
    ends = sum(queries), sum(keys)
    if ends[1] > ends[0] and not any(s.visible(q_length - 1, kv_length - 1) for s in mask.mask.slices):
        raise InvalidArgument(
            "attn_implementation='tangram': a cache must not be longer than what was seen, as static caches are "
            f"(got {ends[1]} keys for {ends[0]} tokens)"
        )
    return mask


def _of_layer(value: Any, module: Any) -> Any:
    """One value for all layers, or a mapping from the names in config.layer_types."""
    if not isinstance(value, Mapping):
        return value
    kind = getattr(module, "layer_type", None) or module.config.layer_types[module.layer_idx]
    if kind not in value:
        raise InvalidArgument(
            f"attn_implementation='tangram': a mapping must have every layer type (got {sorted(value)}, layer {kind!r})"
        )
    return value[kind]


def _without_mask(module: Any, q_length: int, kv_length: int, batch: int) -> Mask:
    """The mask of a layer to which its model gave none: what the layer says of itself."""
    causal = bool(getattr(module, "is_causal", False))
    if causal and q_length not in (1, kv_length):
        raise InvalidArgument(
            "attn_implementation='tangram': a causal layer without a mask must have as many queries as keys "
            f"(got {q_length} and {kv_length})"
        )
    cu_q, cu_k = ([length * i for i in range(batch + 1)] for length in (q_length, kv_length))
    return Mask.varlen(cu_q, cu_k, causal)


def _rows(states: Tensor) -> Tensor:
    """[batch, heads, length, dim] as [batch * length, heads, dim]; of one sequence without a copy."""
    return states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    tangram_mask: Any = None,
    tangram_key: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: query `[batch, heads, length, dim]`, key and value with their own
    heads and length; returns `[batch, length, heads, dim_v]` and no weights.

    Raises InvalidArgument for what would change the result unseen: dropout, position biases, paged caches, 4D masks.
    """
    for name in ("position_bias", "cache"):
        if kwargs.get(name) is not None:
            raise InvalidArgument(f"attn_implementation='tangram': {name} is not supported (got {name})")
    if dropout != 0.0:
        raise InvalidArgument(f"attn_implementation='tangram': attention dropout must be 0 (got {dropout})")
    batch, heads, length, _ = query.shape
    sink = None if s_aux is None else s_aux.reshape(1, heads)
    options: dict[str, Any] = {"sink": sink, "softmax_scale": scaling, "softcap": softcap or 0.0}
    q, k, v = _rows(query), _rows(key), _rows(value)
    if tangram_key is not None:
        from ..distributed import calc_attn

        if batch != 1:
            raise InvalidArgument(
                f"attn_implementation='tangram': with tangram_key the batch is one packed sequence (got batch={batch})"
            )
        # Sinks are parameters: the code that reduces all other gradients over ranks reduces theirs too.
        out, _ = calc_attn(q, k, v, _of_layer(tangram_key, module), dsink_reduce="none", **options)
    else:
        mask: object
        if tangram_mask is not None:
            mask = _of_layer(tangram_mask, module)
        elif attention_mask is None:
            mask = _without_mask(module, length, key.shape[2], batch)
        else:
            mask = attention_mask.mask if isinstance(attention_mask, ModelMask) else attention_mask
        if not isinstance(mask, Mask):
            raise InvalidArgument(
                "attn_implementation='tangram': masks of scores cannot be read; pass a tangram.Mask as tangram_mask "
                f"(got {type(mask).__name__})"
            )
        out, _ = flex_flash_attn_func(q, k, v, mask, **options)
    return out.view(batch, length, heads, -1), None
