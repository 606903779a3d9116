# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Which shapes are attention, for arrays of any library."""

from __future__ import annotations

from typing import Any

from .errors import InvalidArgument

_BY_LAYOUT = 'pass layout="bshd" for batches [batch, rows, heads, dim]'
IN_A_ROW = "lay the sequences of a batch one after the other"


def check_shapes(q: Any, k: Any, v: Any, of_batches: str = _BY_LAYOUT) -> None:
    """Refuses shapes that are no attention, naming them; `of_batches`: what to do with a batch."""
    if len(q) != 3 or len(k) != 3 or len(v) != 3:
        hint = f"; {of_batches}" if len(q) == 4 else ""
        raise InvalidArgument(
            f"flex_flash_attn_func: q, k and v must have shape [rows, heads, dim]{hint} "
            f"(got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )
    if k[0] != v[0] or k[1] != v[1] or q[2] != k[2] or k[1] == 0 or q[1] % k[1] != 0:
        raise InvalidArgument(
            "flex_flash_attn_func: k and v must have equal rows and heads, q and k equal dims, and the heads of q must "
            f"be a multiple of those of k (got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )


def dtype_remedy(*dtypes: Any) -> str:
    """What to do about tensors of several dtypes, which come from autocast as a rule; nothing if they have one."""
    if all(dtype == dtypes[0] for dtype in dtypes):
        return ""
    return (
        ": nothing is cast, and torch.autocast leaves q and k of rotary embeddings and norms in float32, so pass "
        "q.to(v.dtype) and k.to(v.dtype)"
    )


def check_indices(function: str, name: str, indices: Any, q: Any, k: Any) -> None:
    """Refuses lists of keys of another shape or dtype than `q` and `k`, shapes that are attention, want."""
    shape = tuple(getattr(indices, "shape", ()))
    dtype = str(getattr(indices, "dtype", type(indices).__name__)).removeprefix("torch.")
    if len(shape) != 3 or shape[:2] != (q[0], k[1]) or dtype not in ("int32", "int64"):
        raise InvalidArgument(
            f"{function}: {name} must be int32 or int64 [rows of q, K/V heads, topk] = [{q[0]}, {k[1]}, topk] "
            f"(got {dtype}{list(shape) if hasattr(indices, 'shape') else ''})"
        )


def check_tensor_of_indices(function: str, name: str, indices: Any) -> None:
    """Refuses what is no tensor of torch, where q is one."""
    if not hasattr(indices, "data_ptr"):
        hint = "; torch.from_numpy takes it" if hasattr(indices, "__array_interface__") else ""
        raise InvalidArgument(f"{function}: {name} must be a tensor, as q is{hint} (got {type(indices).__name__})")


def check_keys(function: str, name: str, lists: Any, num_keys: int) -> None:
    """Refuses lists, an array of check_indices, that name other keys than rows of k."""
    outside = (lists < -1) | (lists >= num_keys)
    if outside.any():
        query, head, place = (int(index[0]) for index in outside.nonzero())
        raise InvalidArgument(
            f"{function}: {name} must name rows of k, or -1 for none "
            f"(got key {lists[query, head, place]} for query {query}, K/V head {head})"
        )
