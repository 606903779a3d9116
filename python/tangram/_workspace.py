# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that one call on a GPU computes in, of torch's allocator.

So it is shared with activations, and part of a graph's own memory where one is captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Place = tuple[int, int]
"""Address and bytes."""
_NONE: tuple[None, Place] = (None, (0, 0))

# What torch.cuda.caching_allocator_alloc calls, in a third of the time of a tensor: no tensor is made around it.
_raw_alloc: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
_raw_delete: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)

# Largest workspace so far, by device. Masks that need a little less request this size, so that torch finds the same
# block for all of them and never keeps several.
_most_bytes: dict[int, int] = {}


def _rounded(num_bytes: int, device: int) -> int:
    most = _most_bytes.get(device, 0)
    if num_bytes <= most <= 2 * num_bytes:
        return most
    quarter = 1 << max(num_bytes.bit_length() - 3, 9)  # of a power of two: few different sizes
    rounded = -(-num_bytes // quarter) * quarter
    if rounded <= most <= 2 * rounded:
        return most
    _most_bytes[device] = max(rounded, most)
    return rounded


def take(num_bytes: int, tensor: Tensor, stream: int) -> tuple[Tensor | int | None, Place]:
    """Memory beside `tensor` for a call on `stream`, the current one: what release wants once it is enqueued, and
    where it lies."""
    if num_bytes == 0:
        return _NONE
    device = tensor.get_device()
    num_bytes = _rounded(num_bytes, device)
    if _raw_alloc is not None and tensor.is_cuda and _current_device() == device:
        address: int = _raw_alloc(num_bytes, stream)
        return address, (address, num_bytes)
    space = torch.empty(num_bytes, dtype=torch.uint8, device=tensor.device)
    return space, (space.data_ptr(), num_bytes)


def release(space: Tensor | int | None) -> None:
    """Later calls on the stream may have it."""
    if type(space) is int:
        _raw_delete(space)
