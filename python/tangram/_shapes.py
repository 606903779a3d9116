# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Which shapes are attention, for arrays of any library."""

from __future__ import annotations

from typing import Any

from .errors import InvalidArgument


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Refuses shapes that are no attention, naming them."""
    if len(q) != 3 or len(k) != 3 or len(v) != 3:
        hint = '; pass layout="bshd" for batches [batch, rows, heads, dim]' if len(q) == 4 else ""
        raise InvalidArgument(
            f"flex_flash_attn_func: q, k and v must have shape [rows, heads, dim]{hint} "
            f"(got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )
    if k[0] != v[0] or k[1] != v[1] or q[2] != k[2] or k[1] == 0 or q[1] % k[1] != 0:
        raise InvalidArgument(
            "flex_flash_attn_func: k and v must have equal rows and heads, q and k equal dims, and the heads of q must "
            f"be a multiple of those of k (got q={tuple(q)}, k={tuple(k)}, v={tuple(v)})"
        )


def check_indices(function: str, indices: Any, q: Any, k: Any) -> None:
    """Refuses lists of keys of another shape or dtype than `q` and `k`, shapes that are attention, want."""
    shape = tuple(getattr(indices, "shape", ()))
    dtype = str(getattr(indices, "dtype", type(indices).__name__)).removeprefix("torch.")
    if len(shape) != 3 or shape[:2] != (q[0], k[1]) or dtype not in ("int32", "int64"):
        raise InvalidArgument(
            f"{function}: indices must be int32 or int64 [rows of q, K/V heads, topk] = [{q[0]}, {k[1]}, topk] "
            f"(got {dtype}{list(shape)})"
        )
