# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What layers of Transformers call: the attention function, the mask that models make for it, and their names there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument, NotAvailable
from ..flex import _import_torch, flex_flash_attn_func
from ._batch_keys import BatchKeys
from ._call import LayerCall, ModelMask
from ._layer import layer_key, layer_mask, refuse_longer_keys
from ._mask_function import MaskFunction, Span, mask_of
from ._narrow import NAME as _PREFIX
from ._traced import TracedMask, traced_layer_key, traced_layer_mask, traced_mask

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
    _import_torch()  # a compiled model whose first layer does it would be compiled twice
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _mask)


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
    device: torch.device | None = None,
    **_: Any,
) -> ModelMask | TracedMask:
    """The mask of a batch whose rows lie one after the other, from the function by which transformers describes it."""
    if q_length is None:  # before transformers 5
        if cache_position is None:
            raise InvalidArgument(f"{_PREFIX}: q_length or cache_position must be given (got none)")
        q_length, q_offset, device = cache_position.shape[0], cache_position[0], cache_position.device
    if torch.compiler.is_compiling():
        function = None if use_vmap else mask_function
        return traced_mask(batch_size, (q_offset, q_length), (kv_offset, kv_length), function, attention_mask, device)
    return _model_mask(
        batch_size, (int(q_offset), q_length), (kv_offset, kv_length), mask_function, attention_mask, use_vmap
    )


def _model_mask(
    batch_size: int,
    queries: Span,
    keys: Span,
    mask_function: MaskFunction | None,
    attention_mask: Tensor | None,
    use_vmap: bool,
) -> ModelMask:
    def read() -> Mask:
        if use_vmap or mask_function is None:
            raise InvalidArgument(
                f"{_PREFIX}: masks that a model combines from functions of its own cannot be read; pass tangram_mask "
                "to the model (got a custom mask function)"
            )
        return mask_of(mask_function, batch_size, queries, keys, attention_mask)

    mask = ModelMask(read, attention_mask)
    # At once, because generate works on what a static cache gets.
    ends = sum(queries), sum(keys)
    last_query, last_key = queries[1] - 1, keys[1] - 1
    if ends[1] > ends[0] and not use_vmap and not any(s.visible(last_query, last_key) for s in mask.mask.slices):
        refuse_longer_keys(ends[1], ends[0])
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
    attention_mask: ModelMask | TracedMask | Tensor | None,
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
        choose = traced_layer_key if torch.compiler.is_compiling() else layer_key
        runtime_key = choose(call, tangram_key)
    q, k, v = (_rows(x) for x in _of_one_dtype((query, key, value)))
    if tangram_key is not None:
        from ..distributed import calc_attn

        # Sinks are parameters: the code that reduces all other gradients over ranks reduces theirs too.
        out, _ = calc_attn(q, k, v, runtime_key, dsink_reduce="none", **options)
    else:
        mask: Any = traced_layer_mask if torch.compiler.is_compiling() else layer_mask
        out, _ = flex_flash_attn_func(q, k, v, mask(call, tangram_mask), **options)
    return out.view(batch, length, heads, -1), None
