# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors of callers as NumPy arrays, and results back to where the caller's tensors are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument

Array = Any
"""A NumPy array in signatures: its dtypes are not worth the generic parameters."""
Device = Any
"""Where results go: a device of torch, or None for NumPy arrays."""
MAX_ROWS = 2**31 - 1
"""Row numbers fit into 32 bits, as kernels read them."""


def is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def device_of(value: Any) -> Device:
    return value.device if is_tensor(value) else None


def on_host(value: Any) -> Any:
    """Values of a tensor in host memory, without a copy if they are there; other values unchanged."""
    if not is_tensor(value):
        return value
    value = value.detach().cpu()
    if str(value.dtype) == "torch.bfloat16":  # unknown to NumPy
        value = value.float()
    return value.numpy()


def placed(array: Array, device: Device) -> Any:
    if device is None:
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def integers(function: str, name: str, value: Any, ndim: int = 1) -> Array:
    """An array of integers of the given rank, in the dtype that the caller chose."""
    try:
        array = np.asarray(on_host(value))
    except (ValueError, OverflowError) as error:  # a ragged list, a number beyond 64 bits
        raise InvalidArgument(f"{function}: {name} must be integers of 64 bits, {ndim}-dimensional ({error})") from None
    if array.size == 0 and array.ndim == ndim and not hasattr(value, "dtype"):
        return array.astype(np.int64)  # an empty list
    if array.dtype.kind not in "iu" or array.ndim != ndim:
        raise InvalidArgument(
            f"{function}: {name} must be {ndim}-dimensional and of an integer dtype "
            f"(got {name} of {array.dtype}, shape={list(array.shape)})"
        )
    return array


def row_counts(function: str, name: str, value: Any) -> Array:
    """Lengths, int64: none negative, their sum at most MAX_ROWS."""
    array = integers(function, name, value)
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0:
            at = int(array.argmin())
            raise InvalidArgument(f"{function}: {name} must not be negative (got {name}[{at}]={low})")
        total = high if high > MAX_ROWS else int(array.sum(dtype=np.int64))
        if total > MAX_ROWS:
            raise InvalidArgument(
                f"{function}: {name} must add up to at most {MAX_ROWS} rows; make several trees (got {total})"
            )
    return array.astype(np.int64)


def concatenated(function: str, name: str, given: Any, cu_seqlens: Any) -> tuple[Array, Array, Device]:
    """Sequences one after the other, their lengths, and where results go.

    given: a list of one-dimensional arrays, tensors or lists of integers; with cu_seqlens one such array.
    """
    if cu_seqlens is not None:
        flat = integers(function, name, given)
        borders = integers(function, "cu_seqlens", cu_seqlens).astype(np.int64)
        if borders.size == 0 or borders[0] != 0 or borders[-1] != flat.size or (np.diff(borders) < 0).any():
            raise InvalidArgument(
                f"{function}: cu_seqlens must rise from 0 to the {flat.size} {name} (got {borders.tolist()!s:.80})"
            )
        return flat, np.diff(borders), device_of(given)
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise InvalidArgument(
            f"{function}: {name} must be a list of sequences, or one array with cu_seqlens= "
            f"(got {type(given).__name__})"
        )
    tensors = [is_tensor(one) for one in given]
    if given and all(tensors) and any(one.device.type != "cpu" for one in given):
        import torch

        if len({one.device for one in given}) == 1 and all(one.dim() == 1 for one in given):
            flat = integers(function, name, torch.cat(list(given)))  # one copy to the host, not one a sequence
            return flat, np.array([len(one) for one in given], np.int64), given[0].device
    parts = [integers(function, f"{name}[{i}]", one) for i, one in enumerate(given)]
    lengths = np.array([part.size for part in parts], np.int64)
    dtypes = {part.dtype for part in parts if part.size}
    if len(dtypes) > 1 and np.result_type(*dtypes).kind not in "iu":
        raise InvalidArgument(
            f"{function}: {name} must share an integer dtype (got {', '.join(sorted(map(str, dtypes)))})"
        )
    filled = [part for part in parts if part.size] or parts[:1]
    flat = np.concatenate(filled) if filled else np.empty(0, np.int64)
    return flat, lengths, given[0].device if given and all(tensors) else None


def ranges(begins: Array, lengths: Array) -> Array:
    """The numbers of `[begin, begin + length)`, one range after the other."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if ends.size else 0
    if _are_long(lengths, total):
        return np.concatenate([np.arange(b, b + n) for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)])
    return np.arange(total) + np.repeat(begins - (ends - lengths), lengths)


def picked(values: Array, begins: Array, lengths: Array) -> Array:
    """`values[ranges(begins, lengths)]`."""
    if _are_long(lengths, int(lengths.sum())):
        return np.concatenate([values[b : b + n] for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)])
    return values[ranges(begins, lengths)]


def _are_long(lengths: Array, total: int) -> bool:
    """So that a Python step for each range takes less than an addition for each number."""
    return 0 < int(lengths.size) <= total >> 6
