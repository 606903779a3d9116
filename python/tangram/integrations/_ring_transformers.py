# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""ring_flash_attn.adapters.hf_adapter: Transformers' flash_attention_2 over the rows that each rank of a group holds.

Every rank passes its run of the pack, position ids among it. Windows are those of Transformers: ring_flash_attn shows
one key more on each side, or none of it where the rank's rows are fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .._core import HeadConfig
from ..errors import InvalidArgument
from ._fixed_rows import fixed_key, fixed_mask, group_of
from ._ring_borders import llama3_flash_attn_prepare_cu_seqlens, sequence_borders

IMPLEMENTATION = "tangram_ring"
"""Another name of the attention, for models on machines without flash-attn: Transformers refuses flash_attention_2."""
DATA_PARAMS: dict[str, Any] = {}
"""What llama3_flash_attn_prepare_cu_seqlens gave for the batch at hand."""
RING_ATTN_SWITCH = True
_NAME = "update_ring_flash_attn_params"


def use_ring_attn(flag: bool) -> None:
    """Whether layers attend over the ranks; if not, as they did before substitute_hf_flash_attn."""
    global RING_ATTN_SWITCH
    RING_ATTN_SWITCH = flag


def update_ring_flash_attn_params(cu_seqlens: Tensor, process_group: Any) -> None:
    """Borders of the pack that the next forward and backward pass compute. With borders in GPU memory the host waits.

    Args:
        cu_seqlens: `[documents + 1]` of the whole pack, alike on all ranks.
        process_group: that of substitute_hf_flash_attn.
    """
    group = group_of(_NAME, process_group)
    found = llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, True, group.rank, group.size)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
    DATA_PARAMS.update(zip(names, found))


def _key(process_group: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The key of the batch at hand, of states `[1, heads, rows, dim]`."""
    if not DATA_PARAMS:
        raise InvalidArgument(
            f"substitute_hf_flash_attn: {_NAME} must be called before each batch (got a layer without it)"
        )
    group = group_of("substitute_hf_flash_attn", process_group)
    of_q, of_k, rows = DATA_PARAMS["cu_seqlens_q"], DATA_PARAMS["cu_seqlens_k"], DATA_PARAMS["local_k_slice"]
    borders = sequence_borders(_NAME, of_q, of_k, rows, q.shape[2], True, process_group, group)
    mask = fixed_mask("sequence", borders, group.size, (-1, 0))
    heads = HeadConfig(q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    return fixed_key("substitute_hf_flash_attn", mask, heads, group)


def _forward(process_group: Any, before: Callable[..., Any] | None) -> Callable[..., Any]:
    from ._attention import attention

    def ring_attention_forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> Any:
        if not RING_ATTN_SWITCH:
            if before is None:
                raise InvalidArgument(
                    f"use_ring_attn: it must be True for attn_implementation={IMPLEMENTATION!r} (got False)"
                )
            return before(module, query, key, value, attention_mask, **kwargs)
        if query.shape[0] != 1:
            raise InvalidArgument(
                f"substitute_hf_flash_attn: the batch must be one pack of documents (got batch={query.shape[0]})"
            )
        if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
            raise InvalidArgument(
                "substitute_hf_flash_attn: layers must be causal; pass tangram_key to others (got is_causal=False)"
            )
        for name in ("tangram_key", "tangram_mask"):
            if kwargs.get(name) is not None:
                raise InvalidArgument(
                    f"substitute_hf_flash_attn: {name} is for attn_implementation='tangram' (got {name})"
                )
        runtime_key = _key(process_group, query, key, value)
        return attention(module, query, key, value, attention_mask, tangram_key=runtime_key, **kwargs)

    return ring_attention_forward


def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int = 1) -> None:
    """Layers of attn_implementation="flash_attention_2", and of "tangram_ring", attend over the ranks of a group.

    Args:
        process_group: its ranks hold equally many rows of the pack, in order.
        heads_k_stride: has no effect: rows are exchanged, of all heads at once.

    Raises:
        NotAvailable: no Transformers 4.57 or later. A layer raises InvalidArgument for dropout, batches of several
            sequences, 2D masks that hide rows, and windows and sinks of wrong values.
    """
    from ._attention import _mask, register
    from ._versions import warn_of_untested

    register()
    warn_of_untested("transformers")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    group_of("substitute_hf_flash_attn", process_group)  # collective, the first time
    known = ALL_ATTENTION_FUNCTIONS.get("flash_attention_2")
    before = getattr(known, "_tangram_before", known)
    forward: Any = _forward(process_group, before)
    forward._tangram_before = before
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = forward  # what is set so comes before what is registered
    AttentionInterface.register(IMPLEMENTATION, _forward(process_group, None))
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)


def create_ring_flash_attention_forward(process_group: Any, heads_k_stride: int = 1) -> list[Callable[..., Tensor]]:
    """Functions in the place of Transformers' _flash_attention_forward: states `[1, rows, heads, dim]`, in and out."""
    from types import SimpleNamespace

    forward = _forward(process_group, None)

    def _flash_attention_forward(
        query_states: Tensor,
        key_states: Tensor,
        value_states: Tensor,
        attention_mask: Any,
        query_length: int,
        is_causal: bool,
        dropout: float = 0.0,
        position_ids: Tensor | None = None,
        softmax_scale: float | None = None,
        sliding_window: int | None = None,
        use_top_left_mask: bool = False,
        softcap: float | None = None,
        deterministic: bool | None = None,
        cu_seq_lens_q: Any = None,
        cu_seq_lens_k: Any = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        target_dtype: Any = None,
        attn_implementation: str | None = None,
        **kwargs: Any,
    ) -> Tensor:
        states = (x.transpose(1, 2) for x in (query_states, key_states, value_states))
        out: Tensor
        out, _ = forward(
            SimpleNamespace(is_causal=is_causal),
            *states,
            attention_mask,
            scaling=softmax_scale,
            dropout=dropout,
            softcap=softcap,
            sliding_window=sliding_window,
            cu_seq_lens_q=cu_seq_lens_q,
            cu_seq_lens_k=cu_seq_lens_k,
            **kwargs,
        )
        return out

    return [_flash_attention_forward] * 4


__all__ = [
    "DATA_PARAMS",
    "create_ring_flash_attention_forward",
    "llama3_flash_attn_prepare_cu_seqlens",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
    "use_ring_attn",
]
