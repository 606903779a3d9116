# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What layers of Transformers call: the attention function, the mask that models make for it, and their names there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument, NotAvailable
from ..flex import flex_flash_attn_func
from ._batch_keys import BatchKeys
from ._call import LayerCall, ModelMask
from ._layer import layer_key, layer_mask
from ._mask_function import MaskFunction, mask_of
from ._narrow import NAME as _PREFIX

NAME = "tangram"
_REFUSED = ("position_bias", "cache", "block_table", "score_mod", "indices", "block_indices", "sinks")
"""What some models hand to their attention function and no mask of ours holds."""


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
    if q_length is None:  # before transformers 5
        if cache_position is None:
            raise InvalidArgument(f"{_PREFIX}: q_length or cache_position must be given (got none)")
        q_length, q_offset = cache_position.shape[0], int(cache_position[0])
    queries, keys = (int(q_offset), q_length), (kv_offset, kv_length)

    def read() -> Mask:
        if use_vmap or mask_function is None:
            raise InvalidArgument(
                f"{_PREFIX}: masks that a model combines from functions of its own cannot be read; pass tangram_mask "
                "to the model (got a custom mask function)"
            )
        return mask_of(mask_function, batch_size, queries, keys, attention_mask)

    mask = ModelMask(read, attention_mask)
    ends = sum(queries), sum(keys)
    # At once, because generate works on what a static cache gets.
    if ends[1] > ends[0] and not use_vmap and not any(s.visible(q_length - 1, kv_length - 1) for s in mask.mask.slices):
        raise InvalidArgument(
            f"{_PREFIX}: a cache must not be longer than what was seen, as static caches are, nor attention_mask than "
            f"the tokens (got {ends[1]} keys for {ends[0]} tokens)"
        )
    return mask


def _rows(states: Tensor) -> Tensor:
    """[batch, heads, length, dim] as [batch * length, heads, dim]; of one sequence without a copy."""
    return states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])


def _of_one_dtype(states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Query, key and value in autocast's dtype within autocast, as torch's own attention takes them, else in that of
    value. Rotary embeddings and norms leave query and key in float32."""
    device = states[0].device.type
    if torch.is_autocast_enabled(device):
        wanted = torch.get_autocast_dtype(device)
        return tuple(x if x.dtype == torch.float64 else x.to(wanted) for x in states)
    return tuple(x.to(states[2].dtype) for x in states)


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
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    tangram_mask: Any = None,
    tangram_key: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: query `[batch, heads, length, dim]`, key and value with their own
    heads and length; returns `[batch, length, heads, dim_v]` and no weights. States of several dtypes are cast.

    The mask is the model's, in documents of cu_seq_lens or position_ids where it knows none; or the caller's, within
    the layer's sliding_window, cu_seq_lens and padding.

    Raises InvalidArgument for what would change the result unseen: dropout, position biases, paged caches, 4D masks,
    chosen keys, padding and cu_seq_lens that cannot be honoured.
    """
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise InvalidArgument(f"{_PREFIX}: {name} is not supported (got {name})")
    if dropout != 0.0:
        raise InvalidArgument(f"{_PREFIX}: attention dropout must be 0 (got {dropout})")
    batch, heads, length, _ = query.shape
    if s_aux is not None and s_aux.numel() != heads:
        raise InvalidArgument(
            f"{_PREFIX}: s_aux must have a sink for each of the layer's {heads} heads (got {list(s_aux.shape)})"
        )
    sink = None if s_aux is None else s_aux.reshape(1, heads)
    options: dict[str, Any] = {"sink": sink, "softmax_scale": scaling, "softcap": softcap or 0.0}
    call = LayerCall(
        module=module,
        batch=batch,
        q_length=length,
        kv_length=key.shape[2],
        attention_mask=attention_mask,
        sliding_window=sliding_window,
        is_causal=is_causal,
        position_ids=position_ids,
        cu_seq_lens=(cu_seq_lens_q, cu_seq_lens_k),
    )
    if isinstance(tangram_key, BatchKeys):
        runtime_key = tangram_key.of(call)
        scale = tangram_key.scale_of_rows(module)
        query = query if scale is None else (query * scale).to(query.dtype)
    elif tangram_key is not None:
        runtime_key = layer_key(call, tangram_key)
    q, k, v = (_rows(x) for x in _of_one_dtype((query, key, value)))
    if tangram_key is not None:
        from ..distributed import calc_attn

        # Sinks are parameters: the code that reduces all other gradients over ranks reduces theirs too.
        out, _ = calc_attn(q, k, v, runtime_key, dsink_reduce="none", **options)
    else:
        out, _ = flex_flash_attn_func(q, k, v, layer_mask(call, tangram_mask), **options)
    return out.view(batch, length, heads, -1), None
