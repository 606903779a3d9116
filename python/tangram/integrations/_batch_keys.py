# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The masks of a whole batch as transformers describes them, and the runtime keys of its layers over one dispatch.

A layer's mask is that of one process: _layer.py is asked with the lengths, positions and padding of the whole batch.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .._core import HeadConfig, Mask
from ..errors import InvalidArgument
from ._call import LayerCall, ModelMask
from ._layer import caller_layer_mask, model_layer_mask

NAME = "context_parallel"


def masks_of_config(config: Any, batch: int, length: int, padding: Tensor | None, positions: Tensor | None) -> Any:
    """What transformers makes of a batch `[batch, length]` for this config: a ModelMask, or one by layer type."""
    from transformers.masking_utils import create_masks_for_generate

    empty = torch.empty(batch, length, 1, device=None if positions is None else positions.device)
    given = {"config": config, "attention_mask": padding, "past_key_values": None, "position_ids": positions}
    names = inspect.signature(create_masks_for_generate).parameters
    given["inputs_embeds" if "inputs_embeds" in names else "input_embeds"] = empty
    if "cache_position" in names:  # before transformers 5
        given["cache_position"] = torch.arange(length, device=empty.device)
    if "cache" in names:  # since 5.24
        given["cache"] = given.pop("past_key_values")
    masks = create_masks_for_generate(**given)
    values = list(masks.values()) if isinstance(masks, dict) else [masks]
    if not values or not all(isinstance(mask, ModelMask) for mask in values):
        raise InvalidArgument(
            f"{NAME}: the layers must be of full, sliding or chunked attention "
            f"(got layer_types={sorted(set(getattr(config, 'layer_types', None) or ()))})"
        )
    return masks


def heads_of_config(config: Any) -> HeadConfig:
    heads, hidden = config.num_attention_heads, config.hidden_size
    heads_kv = getattr(config, "num_key_value_heads", None) or heads
    dim = getattr(config, "head_dim", None) or hidden // heads
    return HeadConfig(heads, heads_kv, dim, dim)


class Batch:
    """The whole batch, which all ranks hold: `sequences` of `length` tokens, one after the other."""

    def __init__(
        self, config: Any, padding: Tensor | None, positions: Tensor, borders: tuple[Any, Any], given: Any = None
    ) -> None:
        """positions: `[sequences, length]`. borders: cu_seq_lens_q and _k of all sequences. given: tangram_mask."""
        self.config = config
        self.sequences, self.length = positions.shape
        self.positions = positions
        self.given = given
        self._borders = borders
        self._masks = masks_of_config(config, self.sequences, self.length, padding, positions)

    def mask(self, call: LayerCall) -> Mask:
        """What the layer of this call sees in one process."""
        whole = replace(
            call,
            batch=self.sequences,
            q_length=self.length,
            kv_length=self.length,
            attention_mask=_of_kind(self._masks, call),
            position_ids=self.positions,
            cu_seq_lens=self._borders,
        )
        return model_layer_mask(whole) if self.given is None else caller_layer_mask(whole, self.given)

    def largest(self) -> Mask:
        """Largest of the masks of all layers, alike on all ranks: transformers lists layer types in the order of a
        set."""
        kinds = sorted(self._masks) if isinstance(self._masks, dict) else [None]
        masks = []
        for kind in kinds:
            layer = SimpleNamespace(layer_type=kind, is_causal=True, config=self.config)
            call = LayerCall(layer, 1, 1, 1, None, None, None, None, (None, None))
            masks.append(self.mask(call))
        return max(masks, key=lambda mask: mask.area)  # the first of equals


class BatchKeys:
    """What a model gets as tangram_key: layers ask it for the key of their mask."""

    def __init__(self, batch: Batch, mask: Mask, key: Any, checked: set[Any]) -> None:
        """key: of `mask`, which shards the rows. checked: layer types whose masks were compared already."""
        self.batch = batch
        self.key = key
        self._mask = mask
        self._checked = checked
        self._known: dict[Any, Any] = {}

    @torch.compiler.disable  # type: ignore[misc]
    def of(self, call: LayerCall) -> Any:
        name = (call.kind, call.sliding_window, call.is_causal, getattr(call.module, "is_causal", None))
        if self.batch.given is None and call.kind not in self._checked:
            self._compare(call)
            self._checked.add(call.kind)
        if name not in self._known:
            mask = self.batch.mask(call)
            self._known[name] = self.key if mask == self._mask else self._plan(mask)
        return self._known[name]

    @property
    def num_layer_masks(self) -> int:
        """Number of kinds of layers that called the attention function."""
        return len(self._known)

    def _plan(self, mask: Mask) -> Any:
        from .._keys import make_mask_key_after_dispatch

        return make_mask_key_after_dispatch(mask, self.key)

    def _compare(self, call: LayerCall) -> None:
        """The model's own mask for this rank's rows, taken as one sequence, must be what its config says. Then its mask
        of the whole batch is known too, without the model making it."""
        rows = call.q_length
        ones = torch.ones(1, rows, dtype=torch.bool, device=self.batch.positions.device)
        wanted = _of_kind(masks_of_config(self.batch.config, 1, rows, ones, None), call)
        if call.model_mask is None or call.model_mask.mask != wanted.mask:
            raise InvalidArgument(
                f"{NAME}: a layer's mask must be the one that the config describes; pass tangram_mask for others "
                f"(got another one for layers of {call.kind or 'its one kind'})"
            )

    def scale_of_rows(self, module: Any) -> Tensor | None:
        """Query factors of Llama 4 layers without rotary embedding: such layers count this rank's rows from 0 instead
        of the sequence's. `[1, 1, rows, 1]`."""
        if not getattr(module, "attn_temperature_tuning", False) or getattr(module, "use_rope", True):
            return None
        from .._rows import get_position_ids

        rows = get_position_ids(self.key, device=self.batch.positions.device)
        right: Tensor
        made: Tensor
        right, made = (
            torch.log1p(torch.floor((x.float() + 1.0) / module.floor_scale)) * module.attn_scale + 1.0
            for x in (rows % self.batch.length, torch.arange(len(rows), device=rows.device))
        )
        return (right / made)[None, None, :, None]


def _of_kind(masks: Any, call: LayerCall) -> ModelMask:
    if not isinstance(masks, dict):
        return masks  # type: ignore[no-any-return]
    if call.kind not in masks:
        raise InvalidArgument(
            f"{NAME}: every layer must be of a type in config.layer_types (got {call.kind!r} of {sorted(masks)})"
        )
    return masks[call.kind]  # type: ignore[no-any-return]
