# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What layers keep between forward and backward: their input, of attention `out` and `lse`, on the GPU or the host.

Everything else is computed again. Copies to the host and back run on a stream of their own beside the layers.
Forward, at most two are under way; backward, a layer's tensors come back while the layer behind it computes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attention import OPERATORS, RIVAL
from data import Refused
from report import Timeline
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import tangram

KEEPS = ("none", "attention")
OFFLOADS = ("none", "inputs", "all")
COPIES_UNDER_WAY = 2
_of_thread = threading.local()


class Offload:
    """Host buffers by (layer, number of the tensor), pinned, allocated once and used again by each step.

    Tensors leave in the order of layers and come back in the reverse one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.timeline = device, Timeline()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers: dict[tuple[int, int], Tensor] = {}
        self._counts: dict[int, int] = {}
        self._leaving: deque[tuple[Any, Tensor]] = deque()
        self._coming: dict[tuple[int, int], tuple[Any, Tensor]] = {}
        self._shapes: dict[tuple[int, int], torch.Size] = {}

    @property
    def host_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def begin_step(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._counts.clear()
        self._coming.clear()

    def save(self, layer: int, tensor: Tensor) -> tuple[int, int]:
        """Begins to copy; the caller drops the tensor."""
        place = (layer, self._counts.get(layer, 0))
        self._counts[layer] = place[1] + 1
        self._shapes[place] = tensor.shape
        room = self._buffers.get(place)
        if room is None or room.dtype != tensor.dtype or room.numel() < tensor.numel():
            # Shards of rivals differ from step to step by a few rows.
            size = tensor.numel() + tensor.numel() // 64
            room = torch.empty(size, dtype=tensor.dtype, pin_memory=self.stream is not None)
            self._buffers[place] = room
        room = room[: tensor.numel()].view(tensor.shape)
        if self.stream is None:
            room.copy_(tensor)
            return place
        if len(self._leaving) == COPIES_UNDER_WAY:
            done, _ = self._leaving.popleft()  # its memory is free once this stream has waited
            with self.timeline.within("offload"):
                torch.cuda.current_stream().wait_event(done)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            room.copy_(tensor, non_blocking=True)
            self._leaving.append((self.stream.record_event(), tensor))
        return place

    def load(self, place: tuple[int, int]) -> Tensor:
        """The tensor on the device; those of the layer before it start to come."""
        if self._leaving:
            self._drain()
        arrived, tensor = self._coming.pop(place, None) or self._fetch(place)
        if arrived is not None:
            with self.timeline.within("offload"):
                torch.cuda.current_stream().wait_event(arrived)
        layer = place[0] - 1
        for number in range(self._counts.get(layer, 0)):
            if (layer, number) not in self._coming:
                self._coming[layer, number] = self._fetch((layer, number))
        if place[1] == self._counts[place[0]] - 1:
            self._counts[place[0]] = 0  # all of this layer is back: nothing fetches it again
        return tensor

    def _fetch(self, place: tuple[int, int]) -> tuple[Any, Tensor]:
        shape = self._shapes[place]
        room = self._buffers[place][: shape.numel()].view(shape)
        tensor = torch.empty(shape, dtype=room.dtype, device=self.device)
        if self.stream is None:
            return None, tensor.copy_(room)
        self.stream.wait_stream(torch.cuda.current_stream())  # which may still read what this memory held
        with torch.cuda.stream(self.stream):
            tensor.copy_(room, non_blocking=True)
            return self.stream.record_event(), tensor

    def _drain(self) -> None:
        for done, _ in self._leaving:
            torch.cuda.current_stream().wait_event(done)
        self._leaving.clear()


class Keeper:
    """Checkpoints layers: what is kept, and where."""

    def __init__(self, keep: str, offload: str, device: torch.device) -> None:
        if keep not in KEEPS or offload not in OFFLOADS:
            raise Refused(f"Keeper: keep must be of {KEEPS}, offload of {OFFLOADS} (got {keep!r}, {offload!r})")
        if offload == "all" and keep == "none":
            raise Refused('Keeper: offload="all" must come with keep="attention" (got keep="none")')
        self.keeps_attention, self.where = keep == "attention", offload
        self.offload = Offload(device) if offload != "none" else None
        self._policy = tangram.checkpoint_policy([RIVAL])

    def begin_step(self, timeline: Timeline) -> None:
        if self.offload is not None:
            self.offload.begin_step(timeline)

    def checkpoint(self, function: Callable[..., Tensor], x: Tensor, step: Any, layer: int) -> Tensor:
        with self._inputs(x, layer):
            y: Tensor = checkpoint(
                function,
                x,
                step,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=functools.partial(self._contexts, layer),
            )
        return y

    @staticmethod
    def is_recomputing() -> bool:
        return getattr(_of_thread, "recomputes", False)

    def _inputs(self, x: Tensor, layer: int) -> Any:
        """A checkpoint saves its input by the hooks that are set where it is called."""
        offload = self.offload
        if offload is None:
            return contextlib.nullcontext()

        def pack(tensor: Tensor) -> Any:
            return offload.save(layer, tensor.detach()) if tensor.shape == x.shape else tensor

        def unpack(packed: Any) -> Tensor:
            return packed if isinstance(packed, Tensor) else offload.load(packed)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _contexts(self, layer: int) -> tuple[Any, Any]:
        forward: Any = contextlib.nullcontext()
        again: Any = contextlib.nullcontext()
        if self.keeps_attention and self.where == "all":
            kept: deque[Any] = deque()
            forward, again = _Keep(self.offload, layer, kept), _Recall(self.offload, kept)
        elif self.keeps_attention:
            forward, again = self._policy()
        return forward, _recomputing(again)


@contextlib.contextmanager
def _recomputing(within: Any) -> Iterator[None]:
    _of_thread.recomputes = True
    try:
        with within:
            yield
    finally:
        _of_thread.recomputes = False


class _Keep(TorchDispatchMode):
    """Sends the results of attention to the host."""

    def __init__(self, offload: Offload | None, layer: int, kept: deque[Any]) -> None:
        super().__init__()
        self.offload, self.layer, self.kept = offload, layer, kept

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operator(*args, **(kwargs or {}))
        if operator in OPERATORS:
            self.kept.append(tree_map_only(Tensor, lambda x: self.offload.save(self.layer, x.detach()), results))
        return results


class _Recall(TorchDispatchMode):
    """Takes them back in place of a second pass."""

    def __init__(self, offload: Offload | None, kept: deque[Any]) -> None:
        super().__init__()
        self.offload, self.kept = offload, kept

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator not in OPERATORS:
            return operator(*args, **(kwargs or {}))
        return type(self.kept[0])(self.offload.load(place) for place in self.kept.popleft())
