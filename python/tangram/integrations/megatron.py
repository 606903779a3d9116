# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: a layer spec whose core attention is Tangram's, and context parallelism over the rows it dispatches.

    model = GPTModel(config, layer_spec(normalization="RMSNorm"), ...)   # or layer_spec(spec_of_your_own)
    cp = ContextParallel(model)                                          # over Megatron's context-parallel group
    losses = model(**cp.dispatch(tokens, labels, loss_mask, cu_seqlens=cu_seqlens))

    keep_attention()                                                     # if config.recompute_granularity is set

Every rank of the group passes the whole batch. Documents need no padding. Windows, sinks and multi-token prediction
hold; masks of one's own are dispatch(..., mask=tangram.Mask).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import HeadConfig, Mask
from ..errors import InvalidArgument
from ._fixed_rows import borders_of
from ._megatron_attention import CoreAttention, SequenceParams, layer_spec
from ._megatron_recompute import keep_attention
from ._megatron_roll import install_roll

__all__ = ["ContextParallel", "CoreAttention", "SequenceParams", "keep_attention", "layer_spec"]
_NAME = "ContextParallel"


class ContextParallel:
    """Context parallelism of GPTModels of layer_spec: dispatch gives what their forward takes."""

    def __init__(self, model: Any, cp_group: Any = None) -> None:
        """Changes the rotary embeddings of the model, to be those of the rows that a rank has.

        Args:
            model: a GPTModel, or what wraps one; or a list of them, of a virtual pipeline.
            cp_group: None: that of megatron.core.parallel_state.

        Raises:
            InvalidArgument: for what would be computed otherwise: other attention, multi-latent attention, linear
                attention, mrope, qk-clip, a group of another size than context_parallel_size.
        """
        from .._torch_group import torch_group

        if cp_group is None:
            from megatron.core import parallel_state  # type: ignore[import-not-found,import-untyped,unused-ignore]

            cp_group = parallel_state.get_context_parallel_group()
        models = [part for one in (model if isinstance(model, (list, tuple)) else [model]) for part in _gpt_models(one)]
        if not models:
            raise InvalidArgument(f"{_NAME}: model must be or hold a GPTModel (got {type(model).__name__})")
        self.group = torch_group(cp_group)
        self._process_group = cp_group
        self.config = models[0].config
        for each in models:
            _check(each, self.group.size)
            _by_position(each)
        if self.config.mtp_num_layers:
            install_roll()

    def dispatch(
        self,
        tokens: Tensor,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        cu_seqlens: Any = None,
        mask: Mask | None = None,
    ) -> dict[str, Any]:
        """This rank's rows, as arguments of GPTModel.forward, of a batch that all ranks hold. On each pipeline stage.

        Args:
            tokens: `[batch, seqlen]`. labels: of each token that of the next one, as Megatron's data sets have them.
            loss_mask: None: all tokens count. Rows that are appended never do.
            position_ids: None: they start again in each document.
            cu_seqlens: borders of packed documents in the rows of the batch, one after the other.
            mask: a tangram.Mask of those rows, in place of causal attention within documents.

        Returns:
            input_ids, position_ids, labels and loss_mask `[1, rows]`, attention_mask=None, packed_seq_params. Losses
            `[1, rows]` are of these rows: their sum over the ranks is that of the batch, as with
            calculate_per_token_loss=True.
        """
        from .._rows import dispatch

        if tokens.dim() != 2:
            raise self._refused(f"tokens must be [batch, seqlen] (got {list(tokens.shape)})")
        for name, value in (("labels", labels), ("loss_mask", loss_mask), ("position_ids", position_ids)):
            if value is not None and value.shape != tokens.shape:
                raise self._refused(f"{name} must be {list(tokens.shape)} (got {list(value.shape)})")
        params = self._params(tokens, position_ids, cu_seqlens, mask)
        key = params.key

        def own(x: Tensor, pad_value: float = 0) -> Tensor:
            return dispatch(x.flatten(), key, pad_value)[None]

        counted = torch.ones_like(tokens, dtype=torch.float32) if loss_mask is None else loss_mask
        given = {"input_ids": own(tokens), "position_ids": params.positions[None], "attention_mask": None}
        given |= {"packed_seq_params": params, "loss_mask": own(counted)}
        if labels is not None:
            given["labels"] = own(labels)
        if self.config.num_moe_experts and key.rows("q").num_real < params.positions.numel():
            given["padding_mask"] = own(torch.zeros_like(tokens, dtype=torch.bool), True)
        return given

    def _refused(self, reason: str) -> InvalidArgument:
        """All ranks get the same batch, so all refuse it; a rank that does not is told instead of left waiting."""
        self.group.refuse(-1, f"{_NAME}.dispatch: {reason}")
        return InvalidArgument(f"{_NAME}.dispatch: {reason}")

    def _params(self, tokens: Tensor, position_ids: Tensor | None, cu_seqlens: Any, mask: Mask | None) -> Any:
        from .._core import DistAttnConfig
        from .._keys import key_of_heads
        from .._rows import dispatch

        batch, length = tokens.shape
        total = batch * length
        try:
            given = () if cu_seqlens is None else borders_of(f"{_NAME}.dispatch", "cu_seqlens", cu_seqlens, total)
            if mask is not None and (not isinstance(mask, Mask) or (mask.seqlen_q, mask.seqlen_k) != (total, total)):
                raise InvalidArgument(
                    f"{_NAME}.dispatch: mask must be a tangram.Mask of the {total} rows of the batch (got {mask!r:.60})"
                )
        except InvalidArgument as error:
            self.group.refuse(-1, str(error))
            raise
        borders = sorted({*range(0, total + 1, length), *given})
        begins = torch.zeros(total, dtype=torch.long)
        begins[borders[:-1]] = torch.tensor(borders[:-1])
        positions = torch.arange(total) - begins.cummax(0).values
        longest = int(positions.max() if position_ids is None else position_ids.max()) + 1
        if position_ids is not None:
            positions = position_ids.flatten()
        last = torch.zeros(total, dtype=torch.bool)
        last[[border - 1 for border in borders[1:]]] = True
        chosen = Mask.varlen(borders, causal=True) if mask is None else mask
        key = key_of_heads(chosen, _heads(self.config), self._process_group, None, DistAttnConfig())
        rows, tp = key.sizes["q"][1], self.config.tensor_model_parallel_size
        if self.config.sequence_parallel and rows % tp:
            raise self._refused(
                f"each rank's rows must be a multiple of tensor_model_parallel_size with sequence_parallel; pad the "
                f"batch (got {rows} rows, {tp})"
            )
        return SequenceParams(
            qkv_format="sbhd",
            max_seqlen_q=rows,
            max_seqlen_kv=rows,
            cp_group=self._process_group,
            key=key,
            positions=dispatch(positions.to(tokens.device), key),
            longest=longest,
            last_of_document=dispatch(last.to(tokens.device), key, True),
            is_causal=mask is None,
        )


def _heads(config: Any) -> HeadConfig:
    """Heads of this rank, after tensor parallelism."""
    tp = config.tensor_model_parallel_size
    groups = config.num_query_groups or config.num_attention_heads
    return HeadConfig(config.num_attention_heads // tp, max(groups // tp, 1), config.kv_channels, config.kv_channels)


def _gpt_models(model: Any) -> list[Any]:
    return [part for part in model.modules() if hasattr(part, "decoder") and hasattr(part, "position_embedding_type")]


def _check(model: Any, cp_size: int) -> None:
    config = model.config
    if config.context_parallel_size != cp_size:
        raise InvalidArgument(
            f"{_NAME}: config.context_parallel_size must be the size of the group "
            f"(got {config.context_parallel_size} and {cp_size})"
        )
    kinds = ("rope", "yarn", "none", "learned_absolute")
    if model.position_embedding_type not in kinds:
        raise InvalidArgument(
            f"{_NAME}: position_embedding_type must be one of {', '.join(kinds)} "
            f"(got {model.position_embedding_type!r})"
        )
    for name in ("multi_latent_attention", "qk_clip", "experimental_attention_variant", "linear_attention_type"):
        if getattr(config, name, None):
            raise InvalidArgument(f"{_NAME}: {name} must be off (got {name}={getattr(config, name)!r})")
    others = [
        f"{name} of {type(part.core_attention).__name__}"
        for name, part in model.named_modules()
        if hasattr(part, "core_attention") and not isinstance(part.core_attention, CoreAttention)
    ]
    if others or not any(isinstance(part, CoreAttention) for part in model.modules()):
        raise InvalidArgument(
            f"{_NAME}: every layer must be of layer_spec (got {others[0] if others else 'no core attention'})"
        )


def _by_position(model: Any) -> None:
    """The rotary embedding of the rows that a rank has, where Megatron slices that of a zigzag."""
    rotary = getattr(model, "rotary_pos_emb", None)
    if rotary is None or hasattr(rotary, "_tangram_by_position"):
        return
    length_of, forward = rotary.get_rotary_seq_len, rotary.forward

    def get_rotary_seq_len(*args: Any, **kwargs: Any) -> Any:
        params = next((x for x in (*args, *kwargs.values()) if isinstance(x, SequenceParams)), None)
        return length_of(*args, **kwargs) if params is None else params

    def by_position(max_seq_len: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(max_seq_len, SequenceParams):
            if model.config.context_parallel_size > 1:
                raise InvalidArgument(
                    f"{_NAME}: batches must come from ContextParallel.dispatch, whose packed_seq_params every pipeline "
                    f"stage passes (got none, context_parallel_size={model.config.context_parallel_size})"
                )
            return forward(max_seq_len, *args, **kwargs)
        made = rotary.get_emb(max_seq_len.longest)
        if isinstance(made, tuple):  # yarn, and its factor
            return made[0][max_seq_len.positions.to(made[0].device)], *made[1:]
        return made[max_seq_len.positions.to(made.device)]

    rotary.get_rotary_seq_len, rotary.forward = get_rotary_seq_len, by_position
    rotary._tangram_by_position = True
