# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of borders and ranges: what stands for their values when a mask is looked up.

A version does not tell whether values are unchanged: collectives of torch.distributed, kernels, and arrays that share
the memory write without a new version. So a tensor in host memory is known by its values, which takes a microsecond.
Values in GPU memory cannot be read unless the host waits. There a tensor is known by its place and version, and every
call compares its values on the GPU. If they have changed, the results become NaN, and the next call raises.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor

from . import _core, _cuda
from ._cache import BoundedCache
from .errors import InvalidArgument

_by_place: list[BoundedCache[Any]] = []
_of_graphs: set[Watched] = set()
"""Which captured CUDA graphs read: it is not known when they end."""


def forget_when_changed(cache: BoundedCache[Any]) -> None:
    """Registers a cache whose keys hold places of tensors in GPU memory."""
    _by_place.append(cache)


def values_of(tensor: Tensor) -> Hashable:
    """What a tensor in host memory holds."""
    if type(tensor) is not Tensor:  # whose memory may be elsewhere
        return (tensor.dtype, tensor.shape, tuple(tensor.flatten().tolist()))
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    # Not nbytes, at which torch.compile fails if it traces this frame, where it begins anew below a graph break.
    num_bytes = tensor.numel() * tensor.element_size()
    return (tensor.dtype, tensor.shape, string_at(tensor.data_ptr(), num_bytes))


def named(tensor: Tensor, device: int) -> tuple[Tensor, Hashable]:
    """The tensor, and what stands for its values in a call on GPU `device` (-1: the host).

    A tensor in the memory of that GPU stays there and is named by its place; the call must watch it. All others are in
    host memory then: what lies elsewhere is copied, which synchronises.
    """
    if device >= 0 and tensor.get_device() == device:
        place = _cuda.place_of(tensor)
        if place is not None:
            return tensor, place
    if tensor.device.type != "cpu":
        tensor = _cuda.on_host(tensor)
    return tensor, values_of(tensor)


def bytes_of_storages(tensors: Iterable[Tensor]) -> int:
    """What lives as long as these tensors do: of a view all of its storage, once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class Watched:
    """Tensors in the memory of one GPU that the host has read once, beside copies of what it has read."""

    def __init__(self, tensors: dict[_cuda.Place, Tensor]) -> None:
        """Refused while a CUDA graph is captured."""
        _cuda.require_no_capture("ranges in device memory")
        self._now = tensors
        self._copies = {
            place: tensor.detach().clone(memory_format=torch.contiguous_format) for place, tensor in tensors.items()
        }
        first = next(iter(tensors.values()))
        self._device = _cuda.device_of(first)
        self._stream = _cuda.stream_of(first)
        self._comparison: _core.WatchedValues | None = None
        if all(tensor.is_contiguous() for tensor in tensors.values()):
            self._comparison = self._compare_to()
        self.num_bytes = sum(copy.nbytes for copy in self._copies.values()) + bytes_of_storages(tensors.values())

    def has(self, name: Hashable) -> bool:
        return name in self._now

    def values(self, place: Hashable) -> Tensor:
        """What was read of the tensor of that place; synchronises."""
        return self._copies[place].cpu()  # type: ignore[index]

    def poison_if_changed(self, *results: Tensor | None) -> None:
        """Behind a call on the current stream: if a tensor does not hold what was read, the results become NaN."""
        tensors = (*self._now.values(), *self._copies.values())
        stream = _cuda.stream_of(tensors[0])
        if _cuda.is_capturing():
            _of_graphs.add(self)
        elif stream != self._stream:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._device))
        comparison = self._comparison or self._compare_to()
        comparison.poison_if_changed([(r.data_ptr(), r.nbytes) for r in results if r is not None], stream)

    def _compare_to(self) -> _core.WatchedValues:
        self._dense = [tensor.contiguous() for tensor in self._now.values()]  # a copy lives until the next call's
        pairs = zip(self._dense, self._copies.values(), strict=True)
        return _core.WatchedValues([(now.data_ptr(), copy.data_ptr(), now.nbytes) for now, copy in pairs], self._device)


def watch(function: str, named_tensors: Iterable[tuple[Any, Hashable]]) -> Watched | None:
    """Watches the tensors that are named by their places, to be read now."""
    tensors = {name: tensor for tensor, name in named_tensors if isinstance(name, _cuda.Place)}
    if not tensors:
        return None
    raise_if_changed(function)
    return Watched(tensors)


def raise_if_changed(function: str) -> None:
    """Raises if a comparison has found other values, as far as the host knows by now. Then tensors are read anew."""
    if not _core.take_changed_values():
        return
    for cache in _by_place:
        cache.clear()
    raise InvalidArgument(
        f"{function}: ranges and cu_seqlens in GPU memory must keep their values while their version stays (got other "
        "values than were read, in an earlier call, whose results are NaN). Collectives, kernels and DLPack write "
        "without a new version: pass a copy, x.clone(), after each write, or take a MaskBuffer, which reads on the GPU"
    )
