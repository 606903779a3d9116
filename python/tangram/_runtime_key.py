# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The key of distributed attention: a mask, planned for the ranks of a group, and what was derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from . import _core, _cuda, _meter
from ._backends import backend_named
from ._cache import BoundedCache
from ._core import (
    Backend,
    Dispatch,
    DistAttention,
    DistAttnConfig,
    HeadConfig,
    Mask,
    MovementConfig,
    OverlapConfig,
    Plan,
)
from ._memory import MemoryRow, make_plan_cache, register_rows
from ._row_picks import RowPicks, RowTable
from ._torch_group import TorchGroup, known_groups
from ._torch_pass import _NAMES
from ._values import changed
from ._worker_thread import run_on_worker
from .errors import Error, InvalidArgument

KEYS_PER_GROUP = 128
KEY_BYTES = 256 << 20
KEYS_ON_GPU = 64
GPU_KEY_BYTES = 4 << 30  # only keys that keep remote K/V hold more than lists
"""Keys of a group that hold GPU memory. All ranks use the same keys, so all let go of the same ones."""
_KEY_BYTES = 4096
"""About what a key takes beside what it counts."""
_STRATEGY = ("strategy", "ulysses_degree", "inner_ring_size", "head_chunks", "document_rows")
PadSize = int | tuple[int, int]
Side = Literal["q", "k"]


class Rows:
    """How the rows of the queries, or those of the keys, are assigned to the ranks."""

    def __init__(self, dispatch: Dispatch, total: int, rank: int) -> None:
        self.map = _core.ShardMap(dispatch)
        self.rank = rank
        self.total = total  # without padding
        self.cp_size = dispatch.cp_size
        self.per_rank = dispatch.rows_per_rank
        self.real = RowPicks(self.map.rows_of_rank(rank, total))
        """Global rows of this rank's rows without padding, which come first, since they are in order."""
        self.positions = RowTable(self.map.rows_of_rank(rank, total), torch.int64)
        self.fingerprint = hash((total, self.map.fingerprint)) & (2**64 - 1)
        self.derived: dict[Any, Any] = {}  # of the functions that move rows

    @property
    def num_real(self) -> int:
        return len(self.real)


def plan_after(mask: Mask | tuple[Mask, ...], config: DistAttnConfig, assigned: Plan) -> Plan:
    """A plan of rows that are sharded as in `assigned`."""
    if isinstance(mask, Mask):
        return _core.make_plan_after_dispatch(mask, config, assigned.q_dispatch, assigned.k_dispatch)
    return _core.make_plan_after_dispatch(list(mask), config, assigned.q_dispatch, assigned.k_dispatch)


@dataclass(eq=False, repr=False)
class DistAttnRuntimeKey:
    """A mask sharded to the ranks of a group. Equal arguments give the same object while the cache holds it."""

    plan: Plan
    group: TorchGroup
    total_seqlen_q: int
    total_seqlen_k: int
    pad_size: PadSize
    """Rows appended to the queries and keys, or (to the queries, to the keys)."""
    config: DistAttnConfig
    _attention: dict[tuple[Any, ...], DistAttention] = field(default_factory=dict)
    _rows: dict[Side, Rows] = field(default_factory=dict)
    handle: int = field(default_factory=count().__next__)
    """By which compiled graphs name the key while it lives."""
    masks: tuple[Mask, ...] | None = None
    """Padded masks of groups of heads, where these see different cells."""
    _of_groups: list[DistAttnRuntimeKey] | None = None
    _plan_bytes: int = -1
    _executor_bytes: int = 0
    _growth: int = 0
    _known_bytes: tuple[int, int] = (-1, 0)
    """num_bytes as of that growth: a cache asks all of its keys whenever it gets another one."""

    def __post_init__(self) -> None:
        _keys_by_handle[self.handle] = self
        heads, plan = self.config.heads, self.plan
        self.shapes = (
            (plan.q_dispatch.rows_per_rank, heads.num_heads_q, heads.head_dim),
            (plan.k_dispatch.rows_per_rank, heads.num_heads_kv, heads.head_dim),
        )
        """Rows of q and of k on this rank."""
        self.sizes: dict[str, tuple[int, int]] = {
            "q": (self.total_seqlen_q, self.shapes[0][0]),
            "k": (self.total_seqlen_k, self.shapes[1][0]),
        }
        """By side: rows without padding, and rows of a shard."""
        self.exchanges_heads = plan.exchanges_heads
        self.moves_kv_alone = self.config.movement.algorithm == "kv"
        self.keeps = self.config.overlap.keep_remote_kv

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
        """This process's number in the group."""
        return self.group.rank

    @property
    def cp_size(self) -> int:
        """Ranks of the group."""
        return self.group.size

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys share one dispatch: their sequences have equal length."""
        return self.plan.mask.seqlen_q == self.plan.mask.seqlen_k

    def sinks_that_move(self, sink: Tensor | None, sink_layout: str, device: int) -> int:
        """How many sinks of its own a row has, where these move with heads in passes that are prepared: on GPUs."""
        if sink is None or device < 0 or sink_layout != "ssh" or not self.exchanges_heads:
            return 0
        return sink.shape[1]

    def dtypes_that_move(
        self, dtype: torch.dtype, out_dtype: torch.dtype | None, grad_dtype: torch.dtype | None, device: int
    ) -> tuple[str, str] | None:
        """Dtypes of out and of the gradients, if results move with heads in such passes and not in `dtype`."""
        if device < 0 or not self.exchanges_heads:
            return None
        out, grads = out_dtype or dtype, grad_dtype or dtype
        if out not in (dtype, torch.float32):
            raise InvalidArgument(f"calc_attn: out_dtype must be that of q or torch.float32 (got {out})")
        return None if out is dtype and grads is dtype else (_NAMES[out], _NAMES[grads])

    def attention(
        self,
        dtype: torch.dtype,
        head_dim_v: int,
        backend: str | None,
        device: int,
        row_sinks: int = 0,
        results: tuple[str, str] | None = None,
        keeps: bool = False,
    ) -> DistAttention:
        """The executor for tensors of this dtype on that GPU (-1: host memory), made at the first call: together with
        the other ranks.

        row_sinks, results: as sinks_that_move and dtypes_that_move say. keeps: whether a pass on a GPU keeps remote
        K/V. In host memory the same executor does all of these.
        """
        name = (dtype, head_dim_v, backend, device, row_sinks, results, keeps and device >= 0)
        known = self._attention.get(name)
        if known is not None:
            return known
        make = partial(
            self._make_attention, dtype, head_dim_v, backend, device, row_sinks, results, keeps and device >= 0
        )
        if device < 0:
            made = self._attention.setdefault(name, run_on_worker(make))
            self.has_grown()
            return made
        on_gpu = cache_of(self.group).on_gpu
        known = on_gpu.get((self.handle, *name))
        if known is None:
            known = on_gpu.put((self.handle, *name), make())
        elif _cuda.is_capturing():
            self._attention[name] = known  # the graph writes to its memory as long as it is replayed
            self.has_grown()
        return known

    @_meter.planned
    def _make_attention(
        self,
        dtype: torch.dtype,
        head_dim_v: int,
        backend: str | None,
        device: int,
        row_sinks: int,
        results: tuple[str, str] | None,
        keeps: bool,
    ) -> DistAttention:
        overlap = self.config.overlap
        if device >= 0:
            _cuda.require_no_capture("a key", "calc_attn")
            if overlap.keep_remote_kv != keeps:
                overlap = changed(overlap, keep_remote_kv=keeps)
        plan = self.plan_for(dtype, head_dim_v, overlap)
        if device < 0:
            return DistAttention(plan, self.group.group, self.backend(backend, device))
        on_gpus = self.group.on_device(device)
        out, grads = results or (None, None)
        return DistAttention(plan, on_gpus, self.backend(backend, device), row_sinks, out, grads)

    def plan_for(self, dtype: torch.dtype, head_dim_v: int, overlap: OverlapConfig) -> Plan:
        """Plan of the rows that the key shards, for heads and transfers that may be other ones."""
        h = self.config.heads
        if h.head_dim_v == head_dim_v and h.dtype == _NAMES[dtype] and overlap == self.config.overlap:
            return self.plan
        heads = HeadConfig(h.num_heads_q, h.num_heads_kv, h.head_dim, head_dim_v, _NAMES[dtype])
        chosen = {name: getattr(self.plan.config, name) for name in _STRATEGY}  # not to choose anew
        config = changed(self.config, heads=heads, overlap=overlap, **chosen)
        return plan_after(self.masks or self.plan.mask, config, self.plan)

    def of_groups(self) -> list[DistAttnRuntimeKey]:
        """A key for the heads of each group alone, over the same rows: for executors of a single mask."""
        if self._of_groups is None:
            masks, h = self.masks or (), self.config.heads
            shared = len(masks)
            heads = HeadConfig(h.num_heads_q // shared, h.num_heads_kv // shared, h.head_dim, h.head_dim_v)
            config = changed(self.config, heads=heads, movement=MovementConfig())
            self._of_groups = [
                DistAttnRuntimeKey(
                    plan_after(mask, config, self.plan),
                    self.group,
                    self.total_seqlen_q,
                    self.total_seqlen_k,
                    self.pad_size,
                    config,
                )
                for mask in masks
            ]
        return self._of_groups

    def backend(self, name: str | None, device: int) -> Backend:
        try:
            return backend_named(name, device >= 0, device)
        except Error as error:
            if self.group.size > 1:  # the peers are about to compare plans
                if device >= 0:
                    self.group.on_device(device).refuse_to_prepare(str(error))
                else:
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
        made = self._rows.setdefault(side, run_on_worker(lambda: Rows(dispatch, total, self.rank)))
        self.has_grown()
        return made

    def has_grown(self) -> None:
        """After something was made that num_bytes counts."""
        self._growth += 1

    @property
    def num_bytes(self) -> int:
        """Host memory of the key, of the rank where it is most.

        NOTE [bytes of a key]: making an executor is collective. If one rank had dropped a key and another had not,
        ranks would wait in vain. Ranks use the same keys in the same order; to forget the same ones they must also
        count the same bytes. So the bytes come from the plan, which holds the parts of all ranks, and from collective
        calls (executors, tables of undispatch and roll). They never come from what one rank alone has made.
        """
        growth = self._growth  # before anything is counted: another thread may make something meanwhile
        if self._known_bytes[0] == growth and self._of_groups is None:
            return self._known_bytes[1]
        if self._plan_bytes < 0:
            self._plan_bytes = self.plan.memory_bytes
            self._executor_bytes = self._plan_bytes + self.plan.executor_bytes
        num_bytes: int = (
            _KEY_BYTES
            + self._plan_bytes
            + self._executor_bytes * len(self._attention)
            + sum(moves.most_bytes for rows in self._distinct_rows() for moves in list(rows.derived.values()))
            + sum(key.num_bytes for key in self._of_groups or ())
        )
        self._known_bytes = (growth, num_bytes)
        return num_bytes

    def _distinct_rows(self) -> list[Rows]:
        return list({id(rows): rows for rows in list(self._rows.values())}.values())


_keys_by_handle: WeakValueDictionary[int, DistAttnRuntimeKey] = WeakValueDictionary()


def key_of_handle(handle: int) -> DistAttnRuntimeKey:
    key = _keys_by_handle.get(handle)
    if key is None:
        raise InvalidArgument(
            f"calc_attn: the key of a compiled graph must live until its last pass (got key {handle})"
        )
    return key


def has_shards_of(num_rows: int) -> bool:
    """Whether a key lives that gives each of several ranks so many queries."""
    return any(key.cp_size > 1 and key.shapes[0][0] == num_rows for key in list(_keys_by_handle.values()))


def require_key(function: str, key: object, name: str = "key") -> DistAttnRuntimeKey:
    if isinstance(key, DistAttnRuntimeKey):
        return key
    if isinstance(getattr(key, "inner", None), DistAttnRuntimeKey):
        raise InvalidArgument(
            f"{function}: {name} must be Tangram's, which a key of tangram.magi has as key.inner "
            f"(got a key of {type(key).__module__.rpartition('.')[0]})"
        )
    raise InvalidArgument(
        f"{function}: {name} must be a DistAttnRuntimeKey, which mask_key(mask, ...) makes (got {type(key).__name__})"
    )


def _bytes_of(key: DistAttnRuntimeKey) -> int:
    return key.num_bytes


def _bytes_on_gpu(attention: DistAttention) -> int:
    """Alike on all ranks, since making what is forgotten is collective."""
    return attention.largest_device_bytes


class GroupCache:
    def __init__(self) -> None:
        self.keys: BoundedCache[DistAttnRuntimeKey] = BoundedCache("keys", _bytes_of, KEY_BYTES, KEYS_PER_GROUP)
        self.ahead: BoundedCache[DistAttnRuntimeKey] = BoundedCache("keys", _bytes_of, KEY_BYTES, KEYS_PER_GROUP)
        """Made on the thread in the background, at another time on each rank: they come into the order of `keys` when
        mask_key asks for them. What is forgotten here was never used by an executor, so no rank waits for it."""
        self.plans = make_plan_cache()
        self.on_gpu: BoundedCache[DistAttention] = BoundedCache(
            "gpu_keys", _bytes_on_gpu, GPU_KEY_BYTES, KEYS_ON_GPU, device="cuda"
        )
        self.latest: DistAttnRuntimeKey | None = None
        self.published: Any = None
        """The latest key of tangram.magi."""
        self.published_keys: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """All of them that a program still holds, by their numbers."""


def cache_of(group: TorchGroup) -> GroupCache:
    if group.keys is None:
        group.keys = GroupCache()
    cache: GroupCache = group.keys
    return cache


@register_rows
def _rows_on_gpu() -> list[MemoryRow]:
    shared = [b for b in (group.shared_gpu_bytes() for group in known_groups()) if b is not None]
    return [MemoryRow("gpu_shared", "cuda", len(shared), sum(shared), None)] if shared else []


def clear_keys() -> None:
    """Forgets all keys."""
    for group in known_groups():
        group.keys = None
