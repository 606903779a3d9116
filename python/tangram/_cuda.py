# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What tensors in GPU memory need besides: layouts that kernels read, ranges on the device, CUDA graphs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import InvalidArgument

_ALIGNMENT = 16  # bytes; TMA reads no other addresses and strides
HOST_DTYPES: tuple[torch.dtype, ...] = (torch.float32,)
"""Which no kernel for GPUs takes: tensors are copied to the host, and results back."""


def require_known_memory(function: str, tensor: Tensor) -> None:
    """Refuses tensors of devices that no backend computes on: of Apple, Intel and others."""
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise InvalidArgument(
            f"{function}: tensors must lie in host memory or in that of an NVIDIA GPU: move them by .cpu() "
            f"(got device={tensor.device})"
        )


def device_of(tensor: Tensor) -> int:
    """The GPU of the tensor, -1 for host memory."""
    return tensor.get_device()


def rows(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where kernels cannot read it: misaligned, scattered, or with rows on top of each other."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    stride, shape = tensor.stride(), tensor.shape
    unit = _ALIGNMENT // tensor.element_size()
    if (
        stride[2] == 1
        and stride[1] >= shape[2]
        and stride[0] >= shape[2]
        and stride[0] % unit == 0
        and stride[1] % unit == 0
        and tensor.data_ptr() % _ALIGNMENT == 0
    ):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it is not contiguous and aligned: what copy engines send."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class Place(NamedTuple):
    """What changes when torch changes a tensor, found without looking at its values."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    version: int


def place_of(ranges: Tensor) -> Place | None:
    """Where ranges lie in GPU memory, and their version. None: ranges without one, made under torch.inference_mode().

    Views of one tensor share its version, so that a new view of known ranges is known. A storage is known by its
    object, not by its address: what DLPack makes anew over the same memory begins with version 0 again. The key is
    valid while the tensor is kept.
    """
    if ranges.is_inference():
        return None
    storage = ranges.untyped_storage()._cdata
    offset: Any = ranges.storage_offset()
    return Place(storage, offset, ranges.shape, ranges.stride(), ranges.dtype, ranges._version)


def stream_of(tensor: Tensor) -> int:
    """The current stream of the tensor's device. The wrapped one of torch.cuda takes ten times as long."""
    stream: int = torch._C._cuda_getCurrentRawStream(tensor.get_device())
    return stream


def is_capturing() -> bool:
    """Whether what is put on the current stream becomes part of a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()


def require_no_capture(what: str, function: str = "flex_flash_attn_func") -> None:
    """Refuses what a CUDA graph cannot hold, before CUDA would spoil the capture."""
    if is_capturing():
        raise InvalidArgument(
            f"{function}: {what} must be seen once before a CUDA graph is captured, because the first sight "
            "copies between host and device (got what is new)"
        )


def on_host(ranges: Tensor) -> Tensor:
    """A copy of device ranges; synchronises."""
    require_no_capture("ranges in device memory")
    return ranges.detach().cpu()
