# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Distributed attention over torch.distributed. Names and arguments are those of MagiAttention's functions.

A key stands for a mask, dealt out to the ranks of a context-parallel group. Every rank makes the same keys and the same
calls in the same order. `dispatch` takes this rank's rows of a tensor that all ranks hold, `calc_attn` computes on
them, `undispatch` gives the whole tensor back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _core
from ._core import AttnOptions, DispatchConfig, DistAttention, DistAttnConfig, HeadConfig, KeptKv, Mask, Plan, PlanCache
from ._prepared import Lru, backend_named
from ._torch_flex import _NAMES, _rows
from ._torch_group import TorchGroup, torch_group
from .errors import InvalidArgument, NotAvailable
from .flex import AttnForwardMeta

KEYS_PER_GROUP = 128
MaskTypes = str | int | Sequence[Any] | None
_TYPE_NAMES = {"full": 0, "causal": 1, "inv_causal": 2, "inverse_causal": 2, "bi_causal": 3}


@dataclass(eq=False)
class DistAttnRuntimeKey:
    """A mask dealt out to the ranks of a group. Equal arguments give the same object while the cache holds it."""

    plan: Plan
    group: TorchGroup
    group_or_mesh: Any
    total_seqlen_q: int
    total_seqlen_k: int
    pad_size: int
    config: DistAttnConfig
    _attention: dict[tuple[Any, ...], DistAttention] = field(default_factory=dict)
    _positions: Tensor | None = None

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def cp_size(self) -> int:
        return self.group.size

    def attention(self, dtype: torch.dtype, head_dim_v: int, backend: str | None) -> DistAttention:
        """The executor for tensors of this dtype, made at the first call, which is collective."""
        known = self._attention.get((dtype, head_dim_v, backend))
        if known is not None:
            return known
        h = self.config.heads
        heads = HeadConfig(h.num_heads_q, h.num_heads_kv, h.head_dim, head_dim_v, _NAMES[dtype])
        plan = self.plan
        if heads != h:
            config = _with(self.config, heads=heads)
            plan = _core.make_plan_after_dispatch(plan.mask, config, plan.q_dispatch, plan.k_dispatch)
        made = DistAttention(plan, self.group.group, backend_named(backend, on_gpu=False))
        self._attention[(dtype, head_dim_v, backend)] = made
        return made

    def positions(self) -> Tensor:
        if self._positions is None:
            self._positions = torch.tensor(_core.position_ids(self.plan.q_dispatch, self.rank), dtype=torch.int64)
        return self._positions


class _GroupCache:
    def __init__(self) -> None:
        self.keys: Lru[DistAttnRuntimeKey] = Lru(KEYS_PER_GROUP)
        self.plans = PlanCache(KEYS_PER_GROUP)
        self.latest: DistAttnRuntimeKey | None = None


_caches: dict[Any, _GroupCache] = {}


def _cache_of(group_or_mesh: Any) -> _GroupCache:
    cache = _caches.get(group_or_mesh)
    return cache if cache is not None else _caches.setdefault(group_or_mesh, _GroupCache())


def clear_keys() -> None:
    """Forgets all keys."""
    _caches.clear()


def _with(config: DistAttnConfig, **changes: Any) -> DistAttnConfig:
    names = ("cp_size", "heads", "dispatch", "overlap", "cost", "reduce_dtype")
    return DistAttnConfig(**{name: changes.get(name, getattr(config, name)) for name in names})


def _mask_types(types: MaskTypes, count: int) -> list[int] | None:
    if types is None:
        return None
    if isinstance(types, (str, int)):
        types = [types] * count
    result = []
    for kind in types:
        name = getattr(kind, "value", kind)
        if isinstance(name, str) and name.lower() not in _TYPE_NAMES:
            raise InvalidArgument(
                f"magi_attn_flex_key: mask types are {', '.join(_TYPE_NAMES)} or 0 to 3 (got {kind!r})"
            )
        result.append(_TYPE_NAMES[name.lower()] if isinstance(name, str) else int(name))
    return result


def _ranges(ranges: Any) -> Any:
    if isinstance(ranges, Tensor):
        return ranges.detach().cpu()
    return [(r.start, r.end) if hasattr(r, "start") else tuple(r) for r in ranges]


def _key(
    mask: Mask,
    group_or_mesh: Any,
    heads: HeadConfig,
    pad_size: int,
    config: DistAttnConfig | None,
    chunk_size: int | None,
    plan_with: Callable[[PlanCache, Mask, DistAttnConfig], Plan],
    like: object = None,
) -> DistAttnRuntimeKey:
    group = torch_group(group_or_mesh)
    cache = _cache_of(group_or_mesh)
    config = _with(config or DistAttnConfig(), cp_size=group.size, heads=heads)
    if chunk_size is not None:
        d = config.dispatch
        config = _with(config, dispatch=DispatchConfig(algorithm=d.algorithm, chunk_size=chunk_size, seed=d.seed))
    name = (mask, config, pad_size, like)
    key = cache.keys.get(name)
    if key is None:
        padded = mask.padded(mask.seqlen_q + pad_size, mask.seqlen_k + pad_size) if pad_size else mask
        plan = plan_with(cache.plans, padded, config)
        key = DistAttnRuntimeKey(plan, group, group_or_mesh, mask.seqlen_q, mask.seqlen_k, pad_size, config)
        cache.keys.put(name, key)
    cache.latest = key
    return key


def magi_attn_flex_key(
    q_ranges: Any,
    k_ranges: Any,
    attn_mask_type: MaskTypes,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int,
    cp_group_or_mesh: Any,
    *,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
) -> DistAttnRuntimeKey:
    """The key of a mask given by ranges.

    Args:
        q_ranges, k_ranges: `[n, 2]` tensors, or lists of `(begin, end)`; attn_mask_type: one name or number for all, or
            one for each range: "full" 0, "causal" 1, "inv_causal" 2, "bi_causal" 3.
        total_seqlen_q, total_seqlen_k: rows without padding. pad_size: rows to append, see compute_pad_size.
        num_heads_q, num_heads_kv: heads of this rank, that is after tensor parallelism has sharded them.
        cp_group_or_mesh: a process group, a device mesh, or None for all ranks.
        chunk_size: rows of a chunk; None lets the planner choose.
        is_same_source, is_q_permutable, is_k_permutable: accepted and without effect: queries and keys of equal length
            share one dispatch, others have their own.

    Raises:
        InvalidArgument: on wrong values, before anything is sent. Planning itself needs no communication.
    """
    q, k = _ranges(q_ranges), _ranges(k_ranges)
    mask = Mask.from_ranges(q, k, _mask_types(attn_mask_type, len(q)), total_seqlen_q, total_seqlen_k)
    heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
    return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, PlanCache.get)


def magi_attn_varlen_key(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int,
    cp_group_or_mesh: Any,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    global_window_size: int = 0,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """The key of packed documents: queries `[cu_q[i], cu_q[i+1])` see the keys of their document, all, causally or
    through a window."""
    mask = _varlen_mask(cu_seqlens_q, cu_seqlens_k, causal, window_size, global_window_size)
    heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
    return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, PlanCache.get)


def _varlen_mask(cu_q: Any, cu_k: Any, causal: bool, window: tuple[int, int], num_global: int) -> Mask:
    q, k = (c.detach().cpu() if isinstance(c, Tensor) else c for c in (cu_q, cu_k))
    typed = _core.infer_attn_mask_from_cu_seqlens(q, k, causal, window, num_global)
    return Mask.from_ranges(*typed)


def make_flex_key_for_new_mask_after_dispatch(
    q_ranges: Any,
    k_ranges: Any,
    attn_mask_type: MaskTypes,
    key_for_dispatch: DistAttnRuntimeKey,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """Another mask over rows that are dealt out already: hybrid attention. Dispatched tensors serve both keys."""
    old = key_for_dispatch
    q, k = _ranges(q_ranges), _ranges(k_ranges)
    types = _mask_types(attn_mask_type, len(q))
    return _after_dispatch(Mask.from_ranges(q, k, types, old.total_seqlen_q, old.total_seqlen_k), old, dist_attn_config)


def make_varlen_key_for_new_mask_after_dispatch(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    key_for_dispatch: DistAttnRuntimeKey,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    global_window_size: int = 0,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """The same for packed documents."""
    mask = _varlen_mask(cu_seqlens_q, cu_seqlens_k, causal, window_size, global_window_size)
    return _after_dispatch(mask, key_for_dispatch, dist_attn_config)


def _after_dispatch(mask: Mask, old: DistAttnRuntimeKey, config: DistAttnConfig | None) -> DistAttnRuntimeKey:
    if (mask.seqlen_q, mask.seqlen_k) != (old.total_seqlen_q, old.total_seqlen_k):
        raise InvalidArgument(
            "make_key_for_new_mask_after_dispatch: the mask must have the lengths that were dispatched "
            f"(got {mask.seqlen_q} x {mask.seqlen_k}, dispatched {old.total_seqlen_q} x {old.total_seqlen_k})"
        )

    def plan_with(_: PlanCache, padded: Mask, cfg: DistAttnConfig) -> Plan:
        return _core.make_plan_after_dispatch(padded, cfg, old.plan.q_dispatch, old.plan.k_dispatch)

    config = old.config if config is None else config
    return _key(mask, old.group_or_mesh, old.config.heads, old.pad_size, config, None, plan_with, old)


def get_most_recent_key(cp_group_or_mesh: Any = None) -> DistAttnRuntimeKey:
    """The key that was made last for this group."""
    key = _cache_of(cp_group_or_mesh).latest
    if key is None:
        raise InvalidArgument("get_most_recent_key: a key must have been made for this group (got none)")
    return key


def get_position_ids(key: DistAttnRuntimeKey) -> Tensor:
    """Global rows of this rank's rows, int64 `[rows]`: what rotary embeddings need. Padded rows come last."""
    return key.positions().clone()


# ---- rows between the whole tensor and the shards ----


def _as_rows(x: Tensor) -> Tensor:
    """The same bytes as [rows, 1, n] of a floating type: rows are copied, whatever they hold."""
    flat = x.contiguous().view(x.shape[0], 1, -1)
    if flat.element_size() * flat.shape[2] % 4 == 0:
        return flat.view(torch.uint8).view(torch.float32)
    if flat.element_size() * flat.shape[2] % 2 == 0:
        return flat.view(torch.uint8).view(torch.float16)
    raise InvalidArgument(
        f"tangram: a row must have an even number of bytes (got dtype={x.dtype}, shape={tuple(x.shape)})"
    )


def _move(key: DistAttnRuntimeKey, x: Tensor, wanted: Tensor, wanted_of: list[Tensor], label: str) -> Tensor:
    """Rows `wanted` (global) of what the ranks hold. `wanted_of[r]` are the rows that rank r wants. Collective."""
    if x.is_cuda:
        raise NotAvailable(f"{label}: tensors must lie in host memory (got {x.device})")
    dispatch = key.plan.q_dispatch
    chunk = dispatch.chunk_size
    owner = torch.tensor(dispatch.rank_of_chunk).repeat_interleave(chunk)
    local = torch.full((dispatch.seqlen,), -1, dtype=torch.int64)
    local[key.positions()] = torch.arange(x.shape[0])
    sends = [local[rows[owner[rows] == key.rank]] for rows in wanted_of]
    order = torch.argsort(owner[wanted], stable=True)
    counts = torch.bincount(owner[wanted], minlength=key.cp_size).tolist()
    source = _as_rows(x)
    send = source.index_select(0, torch.cat(sends))
    recv = torch.empty((wanted.shape[0], *source.shape[1:]), dtype=source.dtype)
    key.group.group.all_to_all(send, [s.shape[0] for s in sends], recv, counts, label)
    result = torch.empty((wanted.shape[0], *x.shape[1:]), dtype=x.dtype)
    _as_rows(result)[order] = recv
    return result


def _gather(key: DistAttnRuntimeKey, shard: Tensor) -> Tensor:
    everything = torch.arange(key.total_seqlen_q)
    return _move(key, shard, everything, [everything] * key.cp_size, "undispatch")


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey, pad_value: float) -> Tensor:
        ctx.key = key
        rows = key.positions()
        real = rows < key.total_seqlen_q
        shard = x.new_full((rows.shape[0], *x.shape[1:]), pad_value)
        shard[real] = x[rows[real]]
        return shard

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _gather(ctx.key, grad), None, None


class _Undispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey) -> Tensor:
        ctx.key = key
        return _gather(key, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Dispatch.apply(grad, ctx.key, 0.0), None  # type: ignore[no-untyped-call]


def dispatch(x: Tensor, key: DistAttnRuntimeKey, pad_value: float = 0.0) -> Tensor:
    """This rank's rows of `x` `[total_seqlen, ...]`, which every rank holds: `[rows of the shard, ...]`.

    Padded rows hold `pad_value`: pass the ignored label for labels. The gradient is gathered: every rank gets the
    gradient of the whole tensor. Forward sends nothing, backward is collective.
    """
    if x.shape[0] != key.total_seqlen_q:
        raise InvalidArgument(f"dispatch: x must have {key.total_seqlen_q} rows (got {tuple(x.shape)})")
    return _Dispatch.apply(x, key, pad_value)  # type: ignore[no-untyped-call,no-any-return]


def undispatch(x: Tensor, key: DistAttnRuntimeKey) -> Tensor:
    """The whole tensor `[total_seqlen, ...]` from the ranks' rows, without padding. Collective.

    Backward takes this rank's rows of the gradient: every rank is taken to compute the same loss from the whole tensor.
    """
    _check_shard("undispatch", x, key)
    return _Undispatch.apply(x, key)  # type: ignore[no-untyped-call,no-any-return]


def _check_shard(function: str, x: Tensor, key: DistAttnRuntimeKey) -> None:
    rows = key.plan.q_dispatch.rows_per_rank
    if x.ndim < 1 or x.shape[0] != rows:
        raise InvalidArgument(f"{function}: x must have the {rows} rows of a shard (got {tuple(x.shape)})")


class _Roll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey, shifts: int) -> Tensor:
        ctx.key, ctx.shifts = key, shifts
        total, size = key.total_seqlen_q, key.cp_size

        def wanted_of(rank: int) -> Tensor:
            rows = torch.tensor(_core.position_ids(key.plan.q_dispatch, rank), dtype=torch.int64)
            return torch.where(rows < total, (rows - shifts) % total, rows)

        everyone = [wanted_of(rank) for rank in range(size)]
        return _move(key, x, everyone[key.rank], everyone, "roll")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Roll.apply(grad, ctx.key, -ctx.shifts), None, None  # type: ignore[no-untyped-call]


def roll(x: Tensor, key: DistAttnRuntimeKey, shifts: int, dims: int = 0) -> Tensor:
    """torch.roll along the global sequence of a dispatched tensor: what multi-token prediction does to labels.

    Moves only the rows that change ranks. Padded rows stay where they are. Collective, differentiable.
    """
    if dims != 0:
        raise InvalidArgument(f"roll: the sequence is dimension 0 of a dispatched tensor (got dims={dims})")
    _check_shard("roll", x, key)
    return _Roll.apply(x, key, shifts)  # type: ignore[no-untyped-call,no-any-return]


# ---- attention ----


class _CalcAttn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        attention: DistAttention,
        kept: KeptKv | None,
        sink_layout: str,
        options: AttnOptions,
        out_dtype: torch.dtype | None,
        max_logits: bool,
        dsink_reduce: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=out_dtype or q.dtype)
        lse = torch.empty((q.shape[0], q.shape[1]), dtype=torch.float32)
        peaks = torch.empty(q.shape[1] if max_logits else 0, dtype=torch.float32)
        attention.forward(q, k, v, out, lse, peaks if max_logits else None, sink, sink_layout, kept, options)
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.rest = (attention, kept, sink_layout, options, dsink_reduce)
        ctx.mark_non_differentiable(lse, peaks)
        return out, lse, peaks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
        q, k, v, sink, out, lse = ctx.saved_tensors
        attention, kept, layout, options, reduce = ctx.rest
        dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype) for t in (q, k, v))
        dsink = None if sink is None else torch.empty_like(sink)
        attention.backward(q, k, v, out, lse, _rows(dout), dq, dk, dv, dsink, sink, layout, kept, reduce, options)
        return (dq, dk, dv, dsink, *[None] * 7)


def calc_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: DistAttnRuntimeKey,
    *,
    sink: Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    out_dtype: torch.dtype | None = None,
    return_max_logits: bool = False,
    dsink_reduce: Literal["none", "sum", "avg"] = "sum",
    backend: str | None = None,
) -> tuple[Tensor, AttnForwardMeta]:
    """Attention of this rank's rows to all rows that the key's mask shows them. Collective, and so is its backward.

    Args:
        q `[rows, num_heads_q, head_dim]`, k, v `[rows, num_heads_kv, head_dim(_v)]`: this rank's rows.
        sink: `[seqlen_sink, num_heads_q]` ("sh"), alike on every rank, or `[rows, seqlen_sink, num_heads_q]` ("ssh").
        dsink_reduce: how the gradient of a sink that all ranks share is combined: none, sum or avg.

    Returns:
        `(out, meta)` as flex_flash_attn_func, for this rank's rows; meta.max_logits is the maximum over all ranks.

    Raises:
        InvalidArgument: on every rank when arguments of one do not fit. Timeout, CommError: a peer is gone.
    """
    if q.is_cuda:
        raise NotAvailable(f"calc_attn: tensors must lie in host memory (got {q.device})")
    if q.dtype not in _NAMES or q.ndim != 3 or v.ndim != 3 or k.ndim != 3:
        raise InvalidArgument(
            "calc_attn: q, k and v must be [rows, heads, dim] of float32, bfloat16 or float16 "
            f"(got q={q.dtype}{tuple(q.shape)}, k={k.dtype}{tuple(k.shape)}, v={v.dtype}{tuple(v.shape)})"
        )
    attention = key.attention(q.dtype, v.shape[2], backend)
    kept = KeptKv() if key.config.overlap.keep_remote_kv and torch.is_grad_enabled() else None
    if sink is not None:
        sink = sink.to(torch.float32).contiguous()
    options = AttnOptions(softmax_scale, softcap, deterministic)
    out, lse, peaks = _CalcAttn.apply(  # type: ignore[no-untyped-call]
        _rows(q),
        _rows(k),
        _rows(v),
        sink,
        attention,
        kept,
        sink_layout,
        options,
        out_dtype,
        return_max_logits,
        dsink_reduce,
    )
    return out, AttnForwardMeta(lse, peaks if return_max_logits else None)


flex_key = magi_attn_flex_key
varlen_key = magi_attn_varlen_key
