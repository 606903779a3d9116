# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Core attention of Megatron-Core's layers, and the layer spec that has it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    get_gpt_layer_local_spec,
)
from megatron.core.packed_seq_params import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    PackedSeqParams,
)
from megatron.core.transformer.dot_product_attention import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    DotProductAttention,
)
from megatron.core.transformer.enums import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    AttnMaskType,
)
from megatron.core.transformer.module import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    MegatronModule,
)
from megatron.core.transformer.utils import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    is_layer_window_attention,
)
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument
from ..flex import flex_flash_attn_func
from ._fixed_rows import borders_of
from ._narrow import NO_LIMITS, Limits, narrowed, narrowed_key
from ._versions import warn_of_untested

_NAME = "tangram.integrations.megatron.CoreAttention"
_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)
warn_of_untested("megatron-core")


@dataclass
class SequenceParams(PackedSeqParams):  # type: ignore[misc,unused-ignore]
    """What ContextParallel.dispatch made of a batch. Megatron hands it to every layer, and to layers that it
    recomputes."""

    key: Any = None
    positions: Any = None
    """`[rows]`, of this rank's rows in their documents."""
    longest: int = 0
    """Positions of the whole batch."""
    last_of_document: Any = None
    """`[rows]` bool: no row follows in the document, or the row is appended."""
    is_causal: bool = True
    """Whether the mask is causal attention within documents, and not the caller's."""


class CoreAttention(DotProductAttention):  # type: ignore[misc,unused-ignore]
    """Attention of Tangram: over the ranks of a group to batches of ContextParallel.dispatch, else on this rank's rows.

    Raises InvalidArgument by name for what would change unseen: dropout, biases, mask tensors, cross attention.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        """cp_comm_type: has no effect: Tangram plans what moves."""
        MegatronModule.__init__(self, config=config)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        if dropout:
            raise InvalidArgument(f"{_NAME}: attention_dropout must be 0 (got {dropout})")
        if attention_type != "self":
            raise InvalidArgument(f"{_NAME}: attention must be self-attention (got {attention_type!r})")
        self.config = config
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale
        self.tp_group = None if pg_collection is None else pg_collection.tp
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        left, right = config.window_size if windowed else (-1, -1)
        self.limits = Limits(None if left < 0 else left, None if right < 0 else right)
        self.softmax_offset = self._sinks(config)

    def _sinks(self, config: Any) -> Any:
        """`[heads of this rank]`: a key without value that each row sees."""
        if config.softmax_type == "vanilla":
            return None
        if config.softmax_type not in ("off-by-one", "learnable"):
            raise InvalidArgument(
                f"{_NAME}: softmax_type must be vanilla, off-by-one or learnable (got {config.softmax_type!r})"
            )
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        heads = config.num_attention_heads // config.tensor_model_parallel_size
        offset = torch.zeros(heads, device=device, dtype=config.params_dtype)
        if config.softmax_type == "off-by-one":
            return offset
        parameter = torch.nn.Parameter(offset)
        if config.perform_initialization:
            config.init_method(parameter.data)
        return parameter

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """query `[rows, batch, heads, dim]`, or `[rows, heads, dim]` of packed documents; returns heads and dims of a
        row in one dimension."""
        for name, given in (("attention_mask", attention_mask), ("attention_bias", attention_bias)):
            if given is not None:
                raise InvalidArgument(
                    f"{_NAME}: {name} must be None; pass mask=tangram.Mask to ContextParallel.dispatch "
                    f"(got {list(given.shape)})"
                )
        kind = attn_mask_type or self.attn_mask_type
        sink = None if self.softmax_offset is None else self.softmax_offset.float()[None]
        options: dict[str, Any] = {"softmax_scale": self.softmax_scale, "sink": sink}
        if isinstance(packed_seq_params, SequenceParams):
            return self._over_ranks(query, key, value, kind, packed_seq_params, options)
        if self.config.context_parallel_size > 1:
            raise InvalidArgument(
                f"{_NAME}: batches must come from ContextParallel.dispatch, whose packed_seq_params every pipeline "
                f"stage passes (got {type(packed_seq_params).__name__}, "
                f"context_parallel_size={self.config.context_parallel_size})"
            )
        return self._alone(query, key, value, kind, packed_seq_params, options)

    def _over_ranks(self, q: Tensor, k: Tensor, v: Tensor, kind: Any, params: Any, options: dict[str, Any]) -> Tensor:
        from ..distributed import calc_attn

        if params.is_causal and kind not in _CAUSAL:
            raise InvalidArgument(
                f"{_NAME}: attn_mask_type must be causal; pass mask=tangram.Mask to ContextParallel.dispatch for "
                f"others (got {kind})"
            )
        if q.dim() != 4 or q.shape[1] != 1:
            raise InvalidArgument(f"{_NAME}: dispatched rows must be [rows, 1, heads, dim] (got {list(q.shape)})")
        runtime_key = params.key if self.limits == NO_LIMITS else narrowed_key(params.key, self.limits)
        # Sinks are parameters: the code that reduces all other gradients over ranks reduces theirs too.
        q, k, v = (x.squeeze(1) for x in (q, k, v))
        out, _ = calc_attn(q, k, v, runtime_key, dsink_reduce="none", **options)
        return out.flatten(1)[:, None]

    def _alone(self, q: Tensor, k: Tensor, v: Tensor, kind: Any, params: Any, options: dict[str, Any]) -> Tensor:
        causal = kind in _CAUSAL
        if params is not None and params.qkv_format == "thd":
            if params.cu_seqlens_q_padded is not None or params.cu_seqlens_kv_padded is not None:
                raise InvalidArgument(
                    f"{_NAME}: cu_seqlens_q_padded must be None, documents need no padding (got some)"
                )
            rows, rows_k = (x.shape[0] for x in (q, k))
            of_q = borders_of(_NAME, "cu_seqlens_q", params.cu_seqlens_q, rows)
            of_k = borders_of(_NAME, "cu_seqlens_kv", params.cu_seqlens_kv, rows_k)
            out, _ = flex_flash_attn_func(q, k, v, self._narrowed(of_q, of_k, causal), **options)
            return out.flatten(1)[:, None] if q.dim() == 4 else out.flatten(1)
        batch = q.shape[1]
        of_q, of_k = (tuple(range(0, x.shape[0] * batch + 1, x.shape[0])) for x in (q, k))
        flat_q, flat_k, flat_v = (x.transpose(0, 1).flatten(0, 1) for x in (q, k, v))
        out, _ = flex_flash_attn_func(flat_q, flat_k, flat_v, self._narrowed(of_q, of_k, causal), **options)
        return out.view(batch, q.shape[0], -1).transpose(0, 1).contiguous()

    def _narrowed(self, of_q: tuple[int, ...], of_k: tuple[int, ...], causal: bool) -> Mask:
        if of_q != of_k and self.limits != NO_LIMITS:
            raise InvalidArgument(f"{_NAME}: window_size must be None beside keys of other rows (got {self.limits})")
        mask: Mask = Mask.varlen(list(of_q), list(of_k), causal)
        return mask if self.limits == NO_LIMITS else narrowed(mask, self.limits)


def layer_spec(spec: Any = None, **kwargs: Any) -> Any:
    """A copy of a layer spec, or of a block of them, whose core attention is Tangram's.

    Args:
        spec: None: get_gpt_layer_local_spec(**kwargs), which needs no Transformer Engine.
    """
    if spec is not None and kwargs:
        raise InvalidArgument(
            f"layer_spec: arguments must be those of a spec or of one to be made (got {list(kwargs)})"
        )
    made = get_gpt_layer_local_spec(**kwargs) if spec is None else copy.deepcopy(spec)
    if _replace(made) == 0:
        raise InvalidArgument(f"layer_spec: spec must have a layer with core_attention (got {type(spec).__name__})")
    return made


def _replace(part: Any) -> int:
    if isinstance(part, (list, tuple)):
        return sum(map(_replace, part))
    count = 0
    for name, value in list(getattr(part, "__dict__", {}).items()):
        if name == "core_attention":
            part.core_attention = CoreAttention
            count += 1
        elif name in ("submodules", "self_attention", "layer_specs", "mtp_model_layer", "transformer_layer"):
            count += _replace(value)
    return count
