# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func of the published API, with the keys of sparse attention by their indices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .. import _settings
from .. import flex as tangram_flex
from .. import tokens as tangram_tokens
from .._backends import gpu_backends
from .._core import Mask
from .._runs import RunsToSlices
from .._shapes import IN_A_ROW, check_indices, check_keys, check_shapes, check_tensor_of_indices
from .._torch_tokens import refusal
from ..errors import InvalidArgument
from ..flex import AttnForwardMeta
from ._dense import cells_of, dense_attention
from ._enums import AttnMaskType, AttnSinkLayout
from ._key import env, typed_mask
from ._orders import Function, by_name
from ._ranges import AttnRanges

_NAME = "flex_flash_attn_func"
_TUNING = ("disable_fwd_atomic_reduction", "auto_range_merge", "ref_block_size")
_OF_1_0 = ("softmax_scale", "softcap", "deterministic", "sm_margin", *_TUNING)
"""Positional there after sink."""
_BESIDE_INDICES = {"q_block_size": (None, 1), "k_block_size": (None, 1), "sparse_load": (None, False)}
"""What these may be beside index_attn_indices."""
IndexValues = Literal["tokens", "rows"]
"""Meaning of index_attn_indices: tokens (rows of k), as from 1.1.2 on, or rows of k and its heads, token * heads of k +
head, as up to 1.1.1."""


def masks_of_indices(indices: Tensor, seqlen_k: int) -> list[Mask]:
    """A mask for each K/V head.

    Args:
        indices: `[seqlen_q, num_heads_kv, n]` of int32: rows of keys that the query sees, each once, -1 for none.
    """
    import numpy as np

    listed = indices.detach().cpu().numpy().astype(np.int64)
    check_keys(_NAME, "index_attn_indices", listed, seqlen_k)
    masks = []
    for head in range(listed.shape[1]):
        runs = RunsToSlices(np, _NAME)
        for row in range(listed.shape[0]):
            keys = np.sort(listed[row, head])
            keys = keys[keys >= 0]
            jumps = np.diff(keys)
            if (jumps == 0).any():
                raise InvalidArgument(
                    f"{_NAME}: index_attn_indices must name a key once, or it counts twice (got key "
                    f"{keys[:-1][jumps == 0][0]} twice for query {row}, K/V head {head})"
                )
            breaks = np.flatnonzero(jumps > 1)
            begin = np.concatenate([keys[:1], keys[breaks + 1]])
            end = np.concatenate([keys[breaks], keys[-1:]]) + 1
            runs.add(begin, end)
        masks.append(runs.mask(seqlen_k, listed[:, head].size))
    return masks


def _check_tensors(q: Any, k: Any, v: Any) -> None:
    if not all(isinstance(x, Tensor) for x in (q, k, v)):
        kinds = ", ".join(type(x).__name__ for x in (q, k, v))
        raise InvalidArgument(
            f"{_NAME}: q, k and v must be torch tensors; tangram.flex_flash_attn_func takes arrays (got {kinds})"
        )
    check_shapes(q.shape, k.shape, v.shape, IN_A_ROW)


def _check_indexed(q: Tensor, k: Tensor, indices: Any, ranges: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuses what does not go with index_attn_indices: ranges, and other values than these of options."""
    beside = [name for name, value in ranges.items() if value is not None]
    beside += [f"{name}={value!r:.40}" for name, value in options.items() if value not in _BESIDE_INDICES[name]]
    if beside:
        raise InvalidArgument(
            f"{_NAME}: index_attn_indices stand for the mask alone, by single rows (got {', '.join(beside)} beside "
            "them)"
        )
    check_tensor_of_indices(_NAME, "index_attn_indices", indices)
    check_indices(_NAME, "index_attn_indices", indices, q.shape, k.shape)
    if indices.device.type not in ("cpu", q.device.type):
        raise InvalidArgument(
            f"{_NAME}: index_attn_indices must lie where q does, or on the host (got q on {q.device}, "
            f"index_attn_indices on {indices.device})"
        )


def _as_tokens(indices: Tensor, heads: int, values: IndexValues | None) -> Tensor:
    """Lists of rows of k, whatever they name."""
    if values not in (None, "tokens", "rows"):
        raise InvalidArgument(
            f"{_NAME}: index_attn_values must be 'tokens' or 'rows' (got index_attn_values={values!r})"
        )
    if heads == 1 or values == "tokens":
        return indices
    if values is None:
        raise InvalidArgument(
            f"{_NAME}: with several K/V heads index_attn_values must say what index_attn_indices name: 'tokens', rows "
            "of k as from 1.1.2 on, or 'rows', token * heads + head, as up to 1.1.1 "
            f"(got index_attn_values=None, {heads} heads)"
        )
    of_head = torch.arange(heads, dtype=indices.dtype, device=indices.device)[None, :, None]
    wrong = (indices >= 0) & (indices % heads != of_head)
    if bool(wrong.any()):
        query, head, place = (int(at[0]) for at in wrong.nonzero(as_tuple=True))
        raise InvalidArgument(
            f"{_NAME}: with index_attn_values='rows' a key must be token * {heads} + head "
            f"(got key {int(indices[query, head, place])} for query {query}, K/V head {head})"
        )
    return torch.where(indices >= 0, indices.div(heads, rounding_mode="floor"), indices)


def _dense(
    qkv: tuple[Tensor, Tensor, Tensor], mask: Any, sink: tuple[Tensor | None, str], scale: tuple[float | None, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, max_logits) of float64 tensors; mask: masks of head groups, or ranges and types."""
    q, k, v = qkv
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidArgument(f"{_NAME}: q, k and v must have one dtype (got {q.dtype}, {k.dtype} and {v.dtype})")
    if isinstance(mask[0], Mask) or (isinstance(mask[0], list) and mask[0] and isinstance(mask[0][0], Mask)):
        masks = [mask[0]] if isinstance(mask[0], Mask) else mask[0]
    else:
        kinds = [0] * len(mask[0]) if mask[2] is None else list(map(int, mask[2]))
        types = [AttnMaskType.from_int_type(kind) for kind in kinds]
        masks = [typed_mask(_NAME, (mask[0], mask[1]), types, (q.shape[0], k.shape[0]))[3]]
    return dense_attention(_NAME, qkv, [cells_of(each) for each in masks], *sink, *scale)


def _mask_of(indices: Tensor, seqlen_k: int) -> Any:
    masks = masks_of_indices(indices, seqlen_k)
    return masks[0] if all(mask == masks[0] for mask in masks) else masks


def _stays_on_gpu(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> bool:
    """Whether kernels take such lists as they are."""
    tensors = (q, k, v, indices)
    if not all(x.is_cuda and x.ndim == 3 for x in tensors) or q.dtype not in (torch.bfloat16, torch.float16):
        return False
    backend = env.backend or _settings.chosen.backend
    return backend in (None, *gpu_backends()) and not refusal(q, k, v, indices, backend)


def _after_types(values: Sequence[Any]) -> Sequence[str]:
    """The names of 1.0 after attn_type_map; sink_layout stands behind sink in some versions, and a number tells those
    without a sink, where softmax_scale comes first."""
    has_layout = len(values) > 1 and isinstance(values[1], str)
    before_sinks = isinstance(values[0], (int, float))
    sinks = () if before_sinks else ("sink", "sink_layout") if has_layout else ("sink",)
    return (*sinks, *_OF_1_0)


def _in_the_order_of_1_0(function: Function) -> Function:
    """Names what stands by position after attn_type_map, so that what is given by keyword beside it counts too."""
    parameters = inspect.signature(function).parameters.values()
    own = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    first = own[: own.index("attn_type_map") + 1]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(first):
            return function(*args, **kwargs)
        return function(**by_name(_NAME, own, [*first, *_after_types(args[len(first) :])], args, kwargs))

    return call  # type: ignore[return-value]


@_in_the_order_of_1_0
def flex_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_ranges: Any = None,
    k_ranges: Any = None,
    attn_type_map: Any = None,
    *of_1_0: Any,
    index_attn_indices: Tensor | None = None,
    index_attn_values: IndexValues | None = None,
    q_block_size: int = 1,
    k_block_size: int = 1,
    sink: Tensor | None = None,
    sink_layout: AttnSinkLayout = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    disable_fwd_atomic_reduction: bool = False,
    disable_bwd_dkv_atomic_reduction: bool = False,
    disable_bwd_dq_atomic_reduction: bool = False,
    ref_block_size: tuple[int, int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    auto_range_merge: bool = False,
    range_merge: bool = False,
    swap_ab: bool = False,
    pack_gqa: bool = False,
    cat_gqa: bool = False,
    sparse_load: bool = False,
    block_sparse: bool = False,
    index_attn: bool = False,
    swap_bwd_qk_loop: bool | None = None,
    profile_mode: bool = False,
    return_max_logits: bool = False,
) -> tuple[Tensor, AttnForwardMeta]:
    """Attention on one device over ranges, or over the keys that index_attn_indices names.

    What follows attn_type_map goes by keyword, as in 1.1, or by position, as in 1.0: sink, (sink_layout,)
    softmax_scale, softcap, deterministic, sm_margin. Each may be given once.

    Args:
        index_attn_indices: instead of ranges `[rows of q, K/V heads, n]` int32: rows of keys that a query sees, each
            once, -1 for none. On a GPU bfloat16 and float16 of head_dim 128 without sink, softcap and return_max_logits
            go to tangram.token_attn_func, whose kernels read them. Other tensors are read on the host, which
            synchronises, and make a slice for each run of keys: slow. q_block_size and k_block_size are 1 then, and
            have no effect beside ranges; sparse_load is False then.
        index_attn_values: of several K/V heads what index_attn_indices name, which the published versions do not agree
            on: "tokens", rows of k, as from 1.1.2 on; "rows", token * heads + head, as up to 1.1.1 (checked, which
            synchronises). Without effect of one head.
        disable_fwd_atomic_reduction, disable_bwd_dkv_atomic_reduction, disable_bwd_dq_atomic_reduction,
            ref_block_size, max_seqlen_q, max_seqlen_k, auto_range_merge, range_merge, swap_ab, pack_gqa, cat_gqa,
            sparse_load, block_sparse, index_attn, swap_bwd_qk_loop, profile_mode: choose and tune kernels there, and
            have no effect here.
        The others as of tangram.flex_flash_attn_func. float64 tensors are taken under MAGI_ATTENTION_SDPA_BACKEND=1,
            with lse and max_logits in float64.
    """
    _check_tensors(q, k, v)
    if sink_layout not in ("sh", "ssh"):
        raise InvalidArgument(
            f"{_NAME}: sink_layout must be 'sh' or 'ssh', sinks have no values (got sink_layout={sink_layout!r})"
        )
    if index_attn_indices is not None:
        ranges = {"q_ranges": q_ranges, "k_ranges": k_ranges, "attn_type_map": attn_type_map}
        options = {"q_block_size": q_block_size, "k_block_size": k_block_size, "sparse_load": sparse_load}
        _check_indexed(q, k, index_attn_indices, ranges, options)
    elif q_ranges is None or k_ranges is None:
        raise InvalidArgument(
            f"{_NAME}: needs q_ranges and k_ranges, or index_attn_indices (got q_ranges="
            f"{type(q_ranges).__name__}, k_ranges={type(k_ranges).__name__})"
        )
    dtype = q.dtype
    if env.precision is not None:
        wanted: torch.dtype = getattr(torch, env.precision)
        q, k, v = (x.to(wanted) for x in (q, k, v))
    is_dense = q.dtype == torch.float64 and env.backend == "reference"
    if index_attn_indices is not None:
        index_attn_indices = _as_tokens(index_attn_indices, k.shape[1], index_attn_values)
        fixed = deterministic or env.deterministic or _settings.chosen.deterministic
        plain = sink is None and softcap == 0 and not return_max_logits
        if plain and _stays_on_gpu(q, k, v, index_attn_indices):
            out, meta = tangram_tokens.token_attn_func(
                q, k, v, index_attn_indices, softmax_scale=softmax_scale, deterministic=fixed, sm_margin=sm_margin
            )
            return out.to(dtype), meta
        q_ranges = _mask_of(index_attn_indices, k.shape[0])
    if is_dense:
        mask = (_listed(q_ranges), _listed(k_ranges), attn_type_map)
        out, lse, max_logits = _dense((q, k, v), mask, (sink, sink_layout), (softmax_scale, softcap))
        return out.to(dtype), AttnForwardMeta(lse, max_logits if return_max_logits else None)
    out, meta = tangram_flex.flex_flash_attn_func(
        q,
        k,
        v,
        _listed(q_ranges),
        _listed(k_ranges),
        attn_type_map,
        sink=sink,
        sink_layout=sink_layout,
        softmax_scale=softmax_scale,
        softcap=softcap,
        deterministic=deterministic or env.deterministic,
        sm_margin=sm_margin,
        return_max_logits=return_max_logits,
        backend=env.backend,
    )
    return out.to(dtype), meta


def _listed(ranges: Any) -> Any:
    return ranges.to_naive_ranges() if isinstance(ranges, AttnRanges) else ranges
