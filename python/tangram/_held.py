# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What compiled graphs make while they run and name by a tensor, since they hold nothing else from node to node."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .errors import InvalidArgument

_numbers = count()


def _memory_of(name: Tensor) -> Any:
    return StorageWeakRef(name.untyped_storage())  # type: ignore[no-untyped-call]


class Held:
    """Values by the number in a tensor `[1]`, int64 in host memory. A value lives as long as the memory of its tensor,
    which a graph saves for its backward pass. It lives a while longer, since hooks may have saved a copy."""

    def __init__(self, kind: str, recent: int) -> None:
        """recent: how many values stay that were added last."""
        self._kind, self._recent = kind, recent
        self._known: dict[int, tuple[Any, Any]] = {}

    def add(self, value: Any, weakly: bool = False) -> Tensor:
        """The name of the value, of which `weakly` holds no reference: then it may hold its name itself."""
        number = next(_numbers)
        name = torch.tensor([number], device="cpu")
        for old, (memory, _) in list(self._known.items())[: len(self._known) - self._recent]:
            if memory.expired():
                self._known.pop(old, None)
        self._known[number] = (_memory_of(name), weakref.ref(value) if weakly else value)
        return name

    def of(self, name: Tensor) -> Any:
        number = int(name)
        _, value = self._known.get(number, (None, None))
        value = value() if isinstance(value, weakref.ref) else value
        if value is None:
            raise InvalidArgument(
                f"tangram: the {self._kind} of a compiled graph must live until its last pass; a copy of the graph's "
                f"saved tensors lives no longer than {self._recent} others (got number {number})"
            )
        return value

    def __len__(self) -> int:
        return len(self._known)


class HeldMask:
    """A mask that a compiled graph made, as ranges of flex_flash_attn_func."""

    def __init__(self, name: Tensor) -> None:
        self.name = name


masks = Held("mask", recent=64)
