# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over keys that are named one by one: what an indexer has chosen for each query."""

from __future__ import annotations

from typing import Any

from . import _core, _settings
from ._backends import backend_named, gpu_backends
from ._core import AttnOptions, HeadConfig
from ._named import Named
from ._shapes import IN_A_ROW, check_indices, check_keys, check_shapes
from .errors import InvalidArgument
from .flex import AttnForwardMeta

_NAME = "token_attn_func"
_DTYPES = ("float32", "bfloat16", "float16")


def token_attn_func(
    q: Any,
    k: Any,
    v: Any,
    indices: Any,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    backend: str | None = None,
) -> tuple[Any, AttnForwardMeta]:
    """Attention of `q` `[seqlen_q, num_heads_q, head_dim]` to those rows of `k`, `v` that `indices` names.

    Query i sees, with the query heads of K/V head g, the rows `indices[i, g]` of `k[:, g]` and `v[:, g]`. So dynamic
    sparse attention attends to what it has chosen: with one K/V head for 64 or 128 query heads, or in groups of them.
    Tensors of torch (with gradients) or arrays of NumPy (without).

    On a Hopper GPU kernels read the lists (bfloat16 and float16, head_dim 128) and the host does not wait. A CUDA graph
    may hold the call: each replay reads the lists of that time. The GPU finds a list that names a key twice or is
    invalid: its query sees nothing. The next call once the host knows, or `check_token_errors`, raises. On the host
    calls raise at once, and compute in float64, slowly.

        indices = scores.topk(2048, dim=-1).indices.int()  # [rows, 1, 2048]
        out, meta = tangram.token_attn_func(q, k, v, indices)

    Args:
        indices: `[seqlen_q, num_heads_kv, topk]` of int32 (int64 is converted), in any order, each key once; -1,
            anywhere, for none.
        softmax_scale: None means `1 / sqrt(head_dim)`. sm_margin: multiprocessors to leave free.
        deterministic: gradients are bitwise equal from run to run; on a GPU with up to about 1 GB more memory, and in
            more time.
        backend: None takes the best for the device; "reference" computes on the host.

    Returns:
        `(out, meta)`: out like q, zero for queries without keys; meta.lse, not differentiable, -inf there.

    Raises:
        InvalidArgument: shapes, dtypes or devices that do not fit, refused lists. NotAvailable.
    """
    backend = backend or _settings.chosen.backend
    deterministic = deterministic or _settings.chosen.deterministic
    if hasattr(q, "data_ptr"):
        from ._torch_tokens import attend

        out, lse = attend(q, k, v, indices, (softmax_scale, 0.0, deterministic, sm_margin), backend)
        return out, AttnForwardMeta(lse)
    with Named(_NAME):
        options = AttnOptions(softmax_scale, 0.0, deterministic, sm_margin)
    return _attend_numpy(q, k, v, indices, options, backend)


def _attend_numpy(
    q: Any, k: Any, v: Any, indices: Any, options: AttnOptions, backend: str | None
) -> tuple[Any, AttnForwardMeta]:
    import numpy as np

    q, k, v, indices = (np.asarray(x) for x in (q, k, v, indices))
    if q.dtype.name not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise InvalidArgument(
            f"{_NAME}: q, k and v must share one dtype of {', '.join(_DTYPES)} "
            f"(got q={q.dtype}, k={k.dtype}, v={v.dtype})"
        )
    with Named(_NAME):
        check_shapes(q.shape, k.shape, v.shape, IN_A_ROW)
    check_indices(_NAME, "indices", indices, q.shape, k.shape)
    check_keys(_NAME, "indices", indices, k.shape[0])
    lists = np.ascontiguousarray(indices, np.int32)
    with Named(_NAME):
        heads = HeadConfig(q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.dtype.name)
        calls = _core.TokenAttention(
            backend_named(backend, on_gpu=False), (q.shape[0], k.shape[0]), heads, lists.shape[2]
        )
        out = np.empty((*q.shape[:2], v.shape[2]), q.dtype)
        lse = np.empty(q.shape[:2], np.float32)
        q, k, v = (np.ascontiguousarray(x) for x in (q, k, v))
        calls.forward(q, k, v, lists.ctypes.data, out, lse, options)
    return out, AttnForwardMeta(lse)


def check_token_errors(device: int = -1) -> None:
    """Raises InvalidArgument, once, for lists that a GPU (-1: the current one) has refused, as far as the host knows.
    Synchronize a stream first to include all work put on it. Does nothing where there is no such GPU."""
    with Named("check_token_errors"):
        for name in gpu_backends():
            _core.check_token_errors(backend_named(name, True, device))
