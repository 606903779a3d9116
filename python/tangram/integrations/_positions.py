# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings whose frequencies depend on the longest position of the batch, which one rank alone may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_BY_LENGTH = ("longrope", "dynamic")


class WholePositions:
    """Shows the last position of the whole batch to such embeddings of a model, beside those of this rank's rows."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._last: Tensor | None = None
        for module in model.modules():
            types = getattr(module, "rope_type", None)
            if any(kind in _BY_LENGTH for kind in (types.values() if isinstance(types, dict) else [types])):
                module.register_forward_pre_hook(self._append, with_kwargs=True)
                module.register_forward_hook(self._remove)

    def __deepcopy__(self, memo: object) -> WholePositions:
        return self

    @contextmanager
    def of(self, positions: Tensor) -> Iterator[None]:
        self._last = positions.max().view(1, 1)
        try:
            yield
        finally:
            self._last = None

    def _append(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._last is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": torch.cat([kwargs["position_ids"], self._last], 1)}
        return (args[0], torch.cat([args[1], self._last], 1), *args[2:]), kwargs

    def _remove(self, module: Any, args: tuple[Any, ...], output: Any) -> Any:
        if self._last is None:
            return None
        return tuple(x[:, :-1] for x in output) if isinstance(output, tuple) else output[:, :-1]
