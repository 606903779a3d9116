# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What arrives with the call of a layer's attention function, and what is read of it once in a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from .._core import Mask
from .._held import Held
from ..errors import InvalidArgument
from ._narrow import NAME, NO_LIMITS, Borders, Limits, given_borders

model_masks = Held("model's mask", recent=0)


class ModelMask:
    """What a model knows of its mask in one forward pass, read when the first layer asks: with tangram_mask or
    tangram_key none does."""

    def __init__(self, read: Callable[[], Mask], padding: Tensor | None) -> None:
        self._read = read
        self.given_padding = padding
        self._known: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self.name = model_masks.add(self, weakly=True)
        """By which layers that are compiled alone name it."""

    def remember(self, name: str, source: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is read once for all layers of a forward pass: of tensors on a GPU the host would wait for each."""
        known = self._known.get(name)
        if known is None or any(a is not b for a, b in zip(known[0], source, strict=True)):
            known = self._known[name] = (source, make())
        return known[1]

    @property
    def mask(self) -> Mask:
        mask: Mask = self.remember("mask", (), self._read)
        return mask

    @property
    def padding(self) -> Tensor | None:
        """`[batch, keys]` bool, False for padding; None: there is no padding."""
        padding = self.given_padding
        if padding is None or self.remember("no padding", (), lambda: bool(padding.all())):
            return None
        return padding


@dataclass
class LayerCall:
    """What a layer hands to its attention function beside states and options."""

    module: Any
    batch: int
    q_length: int
    kv_length: int
    attention_mask: Any
    sliding_window: int | None
    is_causal: bool | None
    position_ids: Tensor | None
    cu_seq_lens: tuple[Any, Any]

    @property
    def kind(self) -> str | None:
        """The name in config.layer_types, where there is one."""
        kind = getattr(self.module, "layer_type", None)
        if isinstance(kind, str):
            return kind
        kinds = getattr(getattr(self.module, "config", None), "layer_types", None)
        index = getattr(self.module, "layer_idx", None)
        return kinds[index] if kinds and index is not None and index < len(kinds) else None

    @property
    def causal(self) -> bool:
        own = bool(getattr(self.module, "is_causal", False))
        return own if self.is_causal is None else self.is_causal

    @property
    def window(self) -> Limits:
        """Window limits. The query counts as one key: w - 1 keys before it, and after it if the layer is not causal."""
        size = self.sliding_window
        if size is None and self.kind == "sliding_attention":  # some models tell their mask alone
            size = getattr(self.module, "sliding_window", None)
            size = getattr(getattr(self.module, "config", None), "sliding_window", None) if size is None else size
        if size is None:
            return NO_LIMITS
        if size < 1:
            raise InvalidArgument(f"{NAME}: sliding_window must be positive or None (got {size})")
        return Limits(size - 1, None if self.causal else size - 1)

    @property
    def model_mask(self) -> ModelMask | None:
        mask = self.attention_mask
        if isinstance(mask, ModelMask):
            return mask
        # A graph that ended before the layer's call was read.
        return mask.outside_of_graph() if hasattr(mask, "outside_of_graph") else None

    def once(self, name: str, source: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        known = self.model_mask
        return make() if known is None else known.remember(name, source, make)

    def borders(self, rows: tuple[int, int], whose: str) -> Borders | None:
        """cu_seq_lens, which must cover so many queries and keys."""
        if all(cu is None for cu in self.cu_seq_lens):
            return None
        read = partial(given_borders, *self.cu_seq_lens, rows, whose)
        borders: Borders | None = self.once(f"cu_seq_lens {rows}", self.cu_seq_lens, read)
        return borders
