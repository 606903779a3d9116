# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of distributed attention: a mask, planned for the ranks of a group, and what was derived from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from operator import index
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from . import _core, _cuda
from ._core import (
    Backend,
    Dispatch,
    DistAttention,
    DistAttnConfig,
    HeadConfig,
    Mask,
    Plan,
    PlanCache,
)
from ._prepared import Lru, backend_named
from ._torch_flex import _NAMES
from ._torch_group import TorchGroup, known_group, known_groups, torch_group
from ._values import changed
from .errors import Error, InvalidArgument
from .planning import background

KEYS_PER_GROUP = 128
KEYS_ON_GPU = 8
"""Keys of a group that hold GPU memory. All ranks use the same keys, so all let go of the same ones."""
_STRATEGY = ("strategy", "head_ranks", "inner_ring", "head_chunks", "document_rows")
MaskTypes = str | int | Sequence[Any] | None
PadSize = int | tuple[int, int]
Side = Literal["q", "k"]
_TYPE_NAMES = {"full": 0, "causal": 1, "inv_causal": 2, "inverse_causal": 2, "bi_causal": 3}


class Rows:
    """How the rows of the queries, or those of the keys, are dealt to the ranks."""

    def __init__(self, dispatch: Dispatch, total: int, rank: int) -> None:
        self.dispatch = dispatch
        self.total = total  # without padding
        self.cp_size = dispatch.cp_size
        self.per_rank = dispatch.rows_per_rank
        self.positions = self.positions_of(rank)
        self.is_real = self.positions < total
        self.real_positions = self.positions[self.is_real]
        self.num_real = self.real_positions.shape[0]
        assert bool(self.is_real[: self.num_real].all()), "padded rows come last"
        self.derived: dict[Any, Any] = {}  # tables of the functions that move rows
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def at(self, name: str, device: torch.device) -> Tensor:
        """`positions`, `is_real` or `real_positions` in the memory of `device`."""
        return on_device(self, name, device, self._copies)

    def positions_of(self, rank: int) -> Tensor:
        return torch.tensor(_core.position_ids(self.dispatch, rank), dtype=torch.int64)


def on_device(
    tables: object, name: str, device: torch.device, copies: dict[tuple[str, torch.device], Tensor]
) -> Tensor:
    """The attribute of `tables` in the memory of `device`, copied there once."""
    table: Tensor = getattr(tables, name)
    if table.device == device:
        return table
    copy = copies.get((name, device))
    if copy is None:
        if device.type == "cuda":
            _cuda.require_no_capture("the rows of a key", "tangram")
        copy = copies.setdefault((name, device), table.to(device))
    return copy


@dataclass(eq=False, repr=False)
class DistAttnRuntimeKey:
    """A mask dealt out to the ranks of a group. Equal arguments give the same object while the cache holds it."""

    plan: Plan
    group: TorchGroup
    group_or_mesh: Any
    total_seqlen_q: int
    total_seqlen_k: int
    pad_size: PadSize
    """Rows appended to the queries and keys, or (to the queries, to the keys)."""
    config: DistAttnConfig
    _attention: dict[tuple[Any, ...], DistAttention] = field(default_factory=dict)
    _rows: dict[Side, Rows] = field(default_factory=dict)
    handle: int = field(default_factory=count().__next__)
    """By which compiled graphs name the key while it lives."""

    def __post_init__(self) -> None:
        _keys_by_handle[self.handle] = self
        heads, plan = self.config.heads, self.plan
        self.shapes = (
            (plan.q_dispatch.rows_per_rank, heads.num_heads_q, heads.head_dim),
            (plan.k_dispatch.rows_per_rank, heads.num_heads_kv, heads.head_dim),
        )
        """Of q and of k on this rank."""
        self.sizes: dict[str, tuple[int, int]] = {
            "q": (self.total_seqlen_q, self.shapes[0][0]),
            "k": (self.total_seqlen_k, self.shapes[1][0]),
        }
        """By side: rows without padding, and rows of a shard."""
        self.exchanges_heads = plan.exchanges_heads

    def __repr__(self) -> str:
        return (
            f"DistAttnRuntimeKey(rank={self.rank}, cp_size={self.cp_size}, total_seqlen_q={self.total_seqlen_q}, "
            f"total_seqlen_k={self.total_seqlen_k}, pad_size={self.pad_size}, plan={self.plan!r})"
        )

    def __deepcopy__(self, memo: object) -> DistAttnRuntimeKey:
        return self  # it never changes, and a model that holds it may be copied

    def __reduce__(self) -> Any:
        raise TypeError("a DistAttnRuntimeKey belongs to its process group: make it anew from its mask")

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def cp_size(self) -> int:
        return self.group.size

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys share one dispatch: their sequences have equal length."""
        return self.plan.mask.seqlen_q == self.plan.mask.seqlen_k

    def attention(
        self, dtype: torch.dtype, head_dim_v: int, backend: str | None, device: int, keeps: bool = False
    ) -> DistAttention:
        """The executor for tensors of this dtype on that GPU (-1: host memory), made at the first call: collective.

        keeps: whether a pass on a GPU keeps remote K/V. In host memory the same executor does both.
        """
        name = (dtype, head_dim_v, backend, device, keeps and device >= 0)
        known = self._attention.get(name)
        if known is not None:
            return known
        if device < 0:
            return self._attention.setdefault(name, self._make_attention(*name))
        on_gpu = _cache_of(self.group).on_gpu
        known = on_gpu.get((self.handle, *name))
        if known is None:
            known = on_gpu.put((self.handle, *name), self._make_attention(*name))
        elif _cuda.is_capturing():
            self._attention[name] = known  # the graph writes to its memory as long as it is replayed
        return known

    def _make_attention(
        self, dtype: torch.dtype, head_dim_v: int, backend: str | None, device: int, keeps: bool
    ) -> DistAttention:
        plan, overlap = self.plan, self.config.overlap
        h = self.config.heads
        heads = HeadConfig(h.num_heads_q, h.num_heads_kv, h.head_dim, head_dim_v, _NAMES[dtype])
        if device >= 0:
            _cuda.require_no_capture("a key", "calc_attn")
            overlap = changed(overlap, keep_remote_kv=keeps)
        if heads != h or overlap != self.config.overlap:
            chosen = {name: getattr(plan.config, name) for name in _STRATEGY}  # not to choose anew
            config = changed(self.config, heads=heads, overlap=overlap, **chosen)
            plan = _core.make_plan_after_dispatch(plan.mask, config, plan.q_dispatch, plan.k_dispatch)
        if device < 0:
            return DistAttention(plan, self.group.group, self._backend(backend, device))
        on_gpus = self.group.on_device(device)
        return DistAttention(plan, on_gpus, self._backend(backend, device))

    def _backend(self, name: str | None, device: int) -> Backend:
        try:
            return backend_named(name, device >= 0, device)
        except Error as error:
            if self.group.size > 1:  # the peers are about to compare plans
                self.group.group.refuse(str(error))
            raise

    def rows(self, side: Side) -> Rows:
        known = self._rows.get(side)
        if known is not None:
            return known
        if side not in ("q", "k"):
            raise InvalidArgument(f"tangram: side must be 'q' or 'k' (got {side!r})")
        if self.is_self_attention and side == "k":
            return self._rows.setdefault("k", self.rows("q"))
        dispatch = self.plan.q_dispatch if side == "q" else self.plan.k_dispatch
        total = self.total_seqlen_q if side == "q" else self.total_seqlen_k
        return self._rows.setdefault(side, Rows(dispatch, total, self.rank))


_keys_by_handle: WeakValueDictionary[int, DistAttnRuntimeKey] = WeakValueDictionary()


def key_of_handle(handle: int) -> DistAttnRuntimeKey:
    key = _keys_by_handle.get(handle)
    if key is None:
        raise InvalidArgument(
            f"calc_attn: the key of a compiled graph must live until its last pass (got key {handle})"
        )
    return key


class _GroupCache:
    def __init__(self) -> None:
        self.keys: Lru[DistAttnRuntimeKey] = Lru(KEYS_PER_GROUP)
        self.plans = PlanCache(KEYS_PER_GROUP)
        self.on_gpu: Lru[DistAttention] = Lru(KEYS_ON_GPU)
        self.latest: DistAttnRuntimeKey | None = None


def _cache_of(group: TorchGroup) -> _GroupCache:
    if group.keys is None:
        group.keys = _GroupCache()
    cache: _GroupCache = group.keys
    return cache


def clear_keys() -> None:
    """Forgets all keys."""
    for group in known_groups():
        group.keys = None


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
        try:
            result.append(_TYPE_NAMES[name.lower()] if isinstance(name, str) else index(name))
        except TypeError:
            raise InvalidArgument(f"magi_attn_flex_key: mask types are names or integers (got {kind!r})") from None
    return result


def _ranges(ranges: Any) -> Any:
    if isinstance(ranges, Tensor):
        return ranges.detach().cpu()
    try:
        return [(r.start, r.end) if hasattr(r, "start") else tuple(r) for r in ranges]
    except TypeError:
        raise InvalidArgument(
            f"magi_attn_flex_key: ranges must be pairs (begin, end) or [n, 2] integers (got {ranges!r:.80})"
        ) from None


def _pads(pad_size: Any) -> tuple[int, int]:
    try:
        q, k = map(index, pad_size) if isinstance(pad_size, (tuple, list)) else (index(pad_size),) * 2
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"tangram: pad_size must be an integer, or one for queries and one for keys (got {pad_size!r})"
        ) from None
    if q < 0 or k < 0:
        raise InvalidArgument(f"tangram: pad_size must not be negative (got {pad_size})")
    return q, k


def _key(
    mask: Mask,
    group_or_mesh: Any,
    heads: HeadConfig,
    pad_size: PadSize | None,
    config: DistAttnConfig | None,
    chunk_size: int | None,
    plan_with: Callable[[PlanCache, Mask, DistAttnConfig], Plan],
    like: object = None,
    ahead: bool = False,
) -> DistAttnRuntimeKey:
    if config is not None and not isinstance(config, DistAttnConfig):
        raise InvalidArgument(f"tangram: dist_attn_config must be a DistAttnConfig (got {type(config).__name__})")
    if pad_size is not None:
        _pads(pad_size)  # before ranks meet
    group = torch_group(group_or_mesh)
    cache = _cache_of(group)
    config = changed(config or DistAttnConfig(), cp_size=group.size, heads=heads)
    if chunk_size is not None:
        config = changed(config, dispatch=changed(config.dispatch, chunk_size=chunk_size))
    pad_q, pad_k = _pads(
        _pad_of_mask(mask, group.size, config.dispatch.chunk_size or None) if pad_size is None else pad_size
    )
    name = (mask, config, pad_q, pad_k, like)
    key = cache.keys.get(name)
    if key is None:
        padded = mask.padded(mask.seqlen_q + pad_q, mask.seqlen_k + pad_k) if pad_q or pad_k else mask
        if (padded.seqlen_q == padded.seqlen_k) != (mask.seqlen_q == mask.seqlen_k):
            raise InvalidArgument(
                "tangram: pad_size must leave queries and keys of different length so, and equal ones equal "
                f"(got {mask.seqlen_q} + {pad_q} and {mask.seqlen_k} + {pad_k})"
            )
        plan = plan_with(cache.plans, padded, config)
        pads = pad_q if pad_q == pad_k else (pad_q, pad_k)
        key = DistAttnRuntimeKey(plan, group, group_or_mesh, mask.seqlen_q, mask.seqlen_k, pads, config)
        cache.keys.put(name, key)
    if not ahead:
        cache.latest = key
    return key


def _auto_pad(seqlen: int, cp_size: int, chunk_size: int | None) -> int:
    """Whole chunks; where the planner chooses chunks, the largest power of two up to 128 that costs a row in 16."""
    if chunk_size is not None:
        return _core.compute_pad_size(seqlen, cp_size, chunk_size)
    unit = 128
    while unit > 1 and _core.compute_pad_size(seqlen, cp_size, unit) > seqlen // 16:
        unit //= 2
    return _core.compute_pad_size(seqlen, cp_size, unit)


def mask_key(
    mask: Mask,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cp_group_or_mesh: Any = None,
    *,
    pad_size: PadSize | None = None,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """The key of a tangram.Mask; arguments as magi_attn_flex_key, but padding is computed when it is None."""
    heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
    return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, PlanCache.get)


def mask_key_ahead(
    mask: Mask,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cp_group_or_mesh: Any = None,
    *,
    pad_size: PadSize | None = None,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> Future[DistAttnRuntimeKey]:
    """The same on a thread in the background: the key of the next step while this step runs.

    A later mask_key with equal arguments finds it made; it is not the most recent key before that.
    """
    heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
    torch_group(cp_group_or_mesh)  # the first time collective, so not on another thread
    arguments = (mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, PlanCache.get)
    return background().submit(_key, *arguments, ahead=True)


def _pad_of_mask(mask: Mask, cp_size: int, chunk_size: int | None) -> PadSize:
    pad_q = _auto_pad(mask.seqlen_q, cp_size, chunk_size)
    pad_k = _auto_pad(mask.seqlen_k, cp_size, chunk_size)
    if mask.seqlen_q != mask.seqlen_k and mask.seqlen_q + pad_q == mask.seqlen_k + pad_k:
        # Padded to one length they would count as one sequence: the longer one gets a chunk more.
        more = cp_size * (128 if chunk_size is None else chunk_size)
        pad_q, pad_k = (pad_q + more, pad_k) if mask.seqlen_q > mask.seqlen_k else (pad_q, pad_k + more)
    return pad_q if pad_q == pad_k else (pad_q, pad_k)


def magi_attn_flex_key(
    q_ranges: Any,
    k_ranges: Any,
    attn_mask_type: MaskTypes,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: PadSize | None,
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
        total_seqlen_q, total_seqlen_k: rows without padding. pad_size: rows to append, see compute_pad_size; for cross
            attention `(of the queries, of the keys)`; None: as many as it takes.
        num_heads_q, num_heads_kv: heads of this rank, that is after tensor parallelism has sharded them.
        cp_group_or_mesh: a process group, a device mesh, or None for all ranks.
        chunk_size: rows of a chunk; None lets the planner choose.
        is_same_source, is_q_permutable, is_k_permutable: accepted and without effect: queries and keys of equal length
            share one dispatch, others have their own, see `side` of dispatch.

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
    pad_size: PadSize | None,
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
    if tuple(window) == (-1, -1) and num_global == 0:
        return Mask.varlen(q, k, causal)
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
    mask = Mask.from_ranges(q, k, types, old.total_seqlen_q, old.total_seqlen_k)
    return make_mask_key_after_dispatch(mask, old, dist_attn_config)


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
    return make_mask_key_after_dispatch(mask, key_for_dispatch, dist_attn_config)


def make_mask_key_after_dispatch(
    mask: Mask, key_for_dispatch: DistAttnRuntimeKey, dist_attn_config: DistAttnConfig | None = None
) -> DistAttnRuntimeKey:
    """The same for a tangram.Mask."""
    old = key_for_dispatch
    if (mask.seqlen_q, mask.seqlen_k) != (old.total_seqlen_q, old.total_seqlen_k):
        raise InvalidArgument(
            "make_key_for_new_mask_after_dispatch: the mask must have the lengths that were dispatched "
            f"(got {mask.seqlen_q} x {mask.seqlen_k}, dispatched {old.total_seqlen_q} x {old.total_seqlen_k})"
        )

    def plan_with(_: PlanCache, padded: Mask, cfg: DistAttnConfig) -> Plan:
        return _core.make_plan_after_dispatch(padded, cfg, old.plan.q_dispatch, old.plan.k_dispatch)

    config = old.config if dist_attn_config is None else dist_attn_config
    return _key(mask, old.group_or_mesh, old.config.heads, old.pad_size, config, None, plan_with, old)


def get_most_recent_key(cp_group_or_mesh: Any = None) -> DistAttnRuntimeKey:
    """The key that was made last for this group."""
    group = known_group(cp_group_or_mesh)
    key = None if group is None else _cache_of(group).latest
    if key is None:
        raise InvalidArgument("get_most_recent_key: a key must have been made for this group (got none)")
    return key
