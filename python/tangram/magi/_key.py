# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The key of the published API: a value that stands for a mask over the ranks of a group, around Tangram's key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch.distributed as dist

from .. import _core
from .._keys import key_of_heads, make_mask_key_after_dispatch
from .._named import Named
from .._runtime_key import DistAttnRuntimeKey as TangramKey
from .._runtime_key import cache_of
from .._torch_group import TorchGroup, device_of_group, known_group, known_groups, ranks_of, torch_group
from .._values import changed
from ..errors import InvalidArgument
from ._config import DistAttnConfig, to_tangram
from ._enums import AttnMaskType, MagiAttentionKernelBackend, MagiAttentionPrecision
from ._environment import of_process
from ._range import AttnRange, RangeType
from ._ranges import AttnRanges

env = of_process()
_HEAD_DIM = 128
"""Head dim of keys that are made without heads, as in 1.0: it only weighs transfers against attention."""
_made = count()


class DistAttnRuntimeKey:
    """What dispatch, calc_attn and undispatch take. Equal where all arguments were equal; hashable.

    Lengths count padded rows, and ranges the padding's, as there. `inner` is Tangram's key, for its functions.
    """

    def __init__(
        self,
        inner: TangramKey,
        mask: _core.Mask,
        typed: tuple[AttnRanges, AttnRanges, tuple[AttnMaskType, ...]],
        group: tuple[Any, Any],
        heads: tuple[int | None, int | None, int | None, int | None],
        dist_attn_config: DistAttnConfig,
    ) -> None:
        self.inner = inner
        self.mask = mask  # without padding
        self.q_ranges, self.k_ranges, self.attn_mask_type = typed
        cp_group, self.cp_mesh = group
        # The cache holds keys, and must not keep a process group alive that torch.distributed has destroyed.
        self._cp_group: Callable[[], Any] = (lambda: cp_group) if cp_group is self.cp_mesh else weakref.ref(cp_group)
        self.num_heads_q, self.num_heads_kv, self.head_dim, self.head_dim_v = heads
        self.dist_attn_config = dist_attn_config
        self.pad_size = inner.pad_size if isinstance(inner.pad_size, int) else inner.pad_size[0]
        self.total_seqlen_q = inner.total_seqlen_q + self.pad_size
        self.total_seqlen_k = inner.total_seqlen_k + self.pad_size
        self.chunk_size = inner.plan.q_dispatch.chunk_size
        self.uneven_shard = dist_attn_config.dispatch_config.uneven_shard
        self.is_deterministic_mode_enable = env.deterministic
        self.is_hierarchical_comm_enable = env.hierarchical_comm
        self.is_qo_comm_enable = env.qo_comm
        self.is_native_grpcoll_enable = env.native_grpcoll
        self.is_flatten_head_groups_enable = env.flatten_head_groups
        self.is_auto_range_merge_enable = True  # lists of a mask always join ranges that touch
        self.kernel_backend = MagiAttentionKernelBackend(env.kernel_backend)
        self.is_sdpa_backend_enable = self.kernel_backend is not MagiAttentionKernelBackend.FFA
        self.is_fa4_backend_enable = False
        kinds = {str(kind.to_torch_dtype()).removeprefix("torch."): kind for kind in MagiAttentionPrecision}
        self.precision = None if env.precision is None else kinds[env.precision]
        self.number = next(_made)
        """Rises from key to key."""
        self._of_heads: dict[tuple[int, int, int], TangramKey] = {}
        h = inner.config.heads
        self._heads = (h.num_heads_q, h.num_heads_kv, h.head_dim)

    @property
    def cp_group(self) -> Any:
        """The process group, a mesh of two dimensions; None: it was destroyed."""
        return self._cp_group()

    def for_heads(self, num_heads_q: int, num_heads_kv: int, head_dim: int) -> TangramKey:
        """Tangram's key for tensors of these heads: there, the heads of a key only guide its plan."""
        wanted = (num_heads_q, num_heads_kv, head_dim)
        if wanted == self._heads:
            return self.inner
        made = self._of_heads.get(wanted)
        if made is None:
            with Named("calc_attn"):
                heads = _core.HeadConfig(num_heads_q, num_heads_kv, head_dim, self.head_dim_v)
            made = make_mask_key_after_dispatch(self.mask, self.inner, heads=heads)
            self._of_heads[wanted] = made
        return made

    @property
    def _value(self) -> tuple[Any, ...]:
        return (id(self.inner), self.mask, self.dist_attn_config, self.num_heads_q, self.num_heads_kv, self.head_dim)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistAttnRuntimeKey) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __deepcopy__(self, memo: object) -> DistAttnRuntimeKey:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a DistAttnRuntimeKey belongs to its process group: make it anew from its mask")

    def __repr__(self) -> str:
        return f"DistAttnRuntimeKey(pad_size={self.pad_size}, chunk_size={self.chunk_size}, inner={self.inner!r})"


def group_of(function: str, group_or_mesh: Any) -> tuple[Any, Any]:
    """(process group, mesh or None). Raises InvalidArgument for anything else, before ranks meet."""
    mesh = group_or_mesh if hasattr(group_or_mesh, "mesh") else None
    if mesh is None and not isinstance(group_or_mesh, dist.ProcessGroup):
        raise InvalidArgument(
            f"{function}: cp_group_or_mesh must be a ProcessGroup or a DeviceMesh of one or two dimensions "
            f"(got {type(group_or_mesh).__name__})"
        )
    if mesh is not None and mesh.ndim > 2:
        raise InvalidArgument(
            f"{function}: cp_group_or_mesh must have one or two dimensions, take a part of it by name "
            f"(got a mesh of {mesh.ndim} dimensions)"
        )
    if env.hierarchical_comm and (mesh is None or mesh.ndim != 2):
        raise InvalidArgument(
            f"{function}: with MAGI_ATTENTION_HIERARCHICAL_COMM=1 cp_group_or_mesh must be a DeviceMesh of two "
            f"dimensions, nodes and ranks of a node (got {type(group_or_mesh).__name__})"
        )
    if mesh is None:
        return group_or_mesh, None
    return (mesh.get_group() if mesh.ndim == 1 else group_or_mesh), mesh


def _require_one_host(function: str, group_or_mesh: Any) -> None:
    if not env.hierarchical_comm or device_of_group(group_or_mesh).type == "cuda":
        return  # between GPUs a row crosses to a node once
    if not torch_group(group_or_mesh).is_one_host:
        raise InvalidArgument(
            f"{function}: between CPUs rows cross to another host once for each rank that sees them; unset "
            "MAGI_ATTENTION_HIERARCHICAL_COMM (got ranks of several hosts)"
        )


def mask_types(function: str, types: Any, count: int) -> tuple[AttnMaskType, ...]:
    """One for each range."""
    given = [types] * count if isinstance(types, (str, AttnMaskType)) else list(types)
    if len(given) != count:
        raise InvalidArgument(
            f"{function}: attn_mask_type must be one type, or one for each of the {count} ranges (got {len(given)})"
        )
    try:
        return tuple(AttnMaskType(each) for each in given)
    except ValueError:
        names = ", ".join(repr(kind.value) for kind in AttnMaskType)
        raise InvalidArgument(
            f"{function}: attn_mask_type must be AttnMaskType or one of {names} (got attn_mask_type={types!r:.120})"
        ) from None


def typed_mask(
    function: str, ranges: tuple[Any, Any], types: Any, lengths: tuple[int, int]
) -> tuple[AttnRanges, AttnRanges, tuple[AttnMaskType, ...], _core.Mask]:
    """The published form, checked, and Tangram's."""
    q, k = (_ranges(function, name, each) for name, each in zip(("q_ranges", "k_ranges"), ranges, strict=True))
    if len(q) != len(k):
        raise InvalidArgument(
            f"{function}: q_ranges and k_ranges must be equally long (got {len(q)} and {len(k)} ranges)"
        )
    kinds = mask_types(function, types, len(q))
    for name, each, length in (("q", q, lengths[0]), ("k", k, lengths[1])):
        if each and each.end > length:
            raise InvalidArgument(
                f"{function}: {name}_ranges must end within total_seqlen_{name} (got end={each.end}, "
                f"total_seqlen_{name}={length})"
            )
    kept = [i for i in range(len(q)) if len(q[i]) > 0 and len(k[i]) > 0]
    with Named(function):
        mask = _core.Mask.from_ranges(
            [q[i].to_naive_range() for i in kept],
            [k[i].to_naive_range() for i in kept],
            [kinds[i].to_int_type() for i in kept],
            *lengths,
        )
    return q, k, kinds, mask


def _ranges(function: str, name: str, ranges: Iterable[RangeType]) -> AttnRanges:
    try:
        return AttnRanges.from_ranges(ranges.tolist() if hasattr(ranges, "tolist") else ranges)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{function}: {name} must be AttnRanges, or pairs (start, end) (got {name}={ranges!r:.80})"
        ) from None


def _pad(total: int, cp_size: int, chunk_size: int, given: int | None) -> int | None:
    """What was given if it makes whole chunks, as in 1.0 and 1.1; computed otherwise, as later."""
    if chunk_size == 0:
        return None
    if given and (total + given) % (cp_size * chunk_size) == 0:
        return given
    return _core.compute_pad_size(total, cp_size, chunk_size)


def make_key(
    function: str,
    typed: tuple[AttnRanges, AttnRanges, tuple[AttnMaskType, ...], _core.Mask],
    heads: tuple[int | None, int | None, int | None, int | None],
    pad_size: int | None,
    chunk_size: int | None,
    group_or_mesh: Any,
    config: DistAttnConfig | None,
) -> DistAttnRuntimeKey:
    """A key, sharded anew. Heads that are None are not known yet."""
    config = DistAttnConfig() if config is None else config
    if not isinstance(config, DistAttnConfig):
        raise InvalidArgument(
            f"{function}: dist_attn_config must be a DistAttnConfig of tangram.magi (got {type(config).__name__})"
        )
    of_config = config.dispatch_config.chunk_size
    if None not in (chunk_size, of_config) and chunk_size != of_config:
        raise InvalidArgument(
            f"{function}: chunk_size may be given once (got chunk_size={chunk_size}, "
            f"DispatchConfig(chunk_size={of_config}))"
        )
    chunk_size = of_config if chunk_size is None else chunk_size
    for name, value, least in (("pad_size", pad_size, 0), ("chunk_size", chunk_size, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InvalidArgument(f"{function}: {name} must be a whole number from {least} on (got {name}={value!r})")
    group = group_of(function, group_or_mesh)
    q, k, kinds, mask = typed
    if mask.seqlen_q != mask.seqlen_k:
        raise InvalidArgument(
            f"{function}: total_seqlen_q and total_seqlen_k must be equal, because dispatch knows one order of rows; "
            "tangram.magi_attn_flex_key and dispatch(x, key, side='k') serve cross attention "
            f"(got {mask.seqlen_q} and {mask.seqlen_k})"
        )
    _require_one_host(function, group_or_mesh)
    cp_size = torch_group(group_or_mesh).size
    total, unit = mask.seqlen_q, chunk_size or 0
    if env.min_chunks_per_rank is not None:
        most = -(-total // (env.min_chunks_per_rank * cp_size))
        unit = min(unit, most) if unit else most
    num_q, num_kv, dim, dim_v = heads
    with Named(function):
        known = _core.HeadConfig(num_q or 1, num_kv or 1, dim or _HEAD_DIM, dim_v)
    remote_rows = total - total // cp_size
    planned = to_tangram(config, env, known, unit, remote_rows)
    with Named(function):
        pad = _pad(total, cp_size, unit, pad_size)
        inner = _bounded(lambda c: key_of_heads(mask, known, group_or_mesh, pad, c), planned, config)
    key = DistAttnRuntimeKey(inner, mask, (*_padded(q, k, inner), _kinds(kinds, inner)), group, heads, config)
    if key.uneven_shard and key.pad_size > 0:
        raise InvalidArgument(
            f"{function}: uneven_shard=True is taken where ranks hold equally many rows without padding: append "
            f"{key.pad_size} rows, or take a chunk_size of which total_seqlen / cp_size is a multiple (got "
            f"total_seqlen={total}, cp_size={cp_size}, chunk_size={key.chunk_size})"
        )
    return _remembered(key)


def _remembered(key: DistAttnRuntimeKey) -> DistAttnRuntimeKey:
    cache = cache_of(key.inner.group)
    cache.published = cache.published_keys[key.number] = key
    return key


def _bounded(
    make: Callable[[_core.DistAttnConfig], TangramKey], planned: _core.DistAttnConfig, config: DistAttnConfig
) -> TangramKey:
    """A key of at most as many stages as dynamic_max_degree."""
    inner = make(planned)
    overlap = config.overlap_config.bounded(inner.plan)
    return inner if overlap is None else make(changed(planned, overlap=overlap))


def _padded(q: AttnRanges, k: AttnRanges, inner: TangramKey) -> tuple[AttnRanges, AttnRanges]:
    """With a slice of padded queries that see nothing, as there."""
    pad = inner.pad_size if isinstance(inner.pad_size, int) else inner.pad_size[0]
    if pad > 0:
        q, k = q.clone(), k.clone()
        q.append(AttnRange(inner.total_seqlen_q, inner.total_seqlen_q + pad))
        k.append(AttnRange(0, 0))
    return q, k


def _kinds(kinds: tuple[AttnMaskType, ...], inner: TangramKey) -> tuple[AttnMaskType, ...]:
    return kinds if inner.pad_size == 0 else (*kinds, AttnMaskType.FULL)


def make_key_after(
    function: str,
    ranges: tuple[Any, Any],
    types: Any,
    old: DistAttnRuntimeKey,
    heads: tuple[int | None, int | None, int | None],
    config: DistAttnConfig | None,
) -> DistAttnRuntimeKey:
    """Another mask over rows that are sharded already; of `config` its overlap counts."""
    require_key(function, old, "key_for_dispatch")
    if config is not None and not isinstance(config, DistAttnConfig):
        raise InvalidArgument(
            f"{function}: dist_attn_config must be a DistAttnConfig of tangram.magi (got {type(config).__name__})"
        )
    lengths = (old.inner.total_seqlen_q, old.inner.total_seqlen_k)
    q, k, kinds, mask = typed_mask(function, ranges, types, lengths)
    config = old.dist_attn_config if config is None else config
    new_config = DistAttnConfig(old.dist_attn_config.dispatch_config, config.overlap_config, config.grpcoll_config)
    of_old = (old.num_heads_q, old.num_heads_kv, old.head_dim)
    num_q, num_kv, dim = (b if a is None else a for a, b in zip(heads, of_old, strict=True))
    with Named(function):
        known = _core.HeadConfig(num_q or 1, num_kv or 1, dim or _HEAD_DIM, old.head_dim_v)
    remote_rows = lengths[1] - lengths[1] // old.inner.cp_size
    planned = to_tangram(new_config, env, known, old.inner.config.dispatch.chunk_size, remote_rows)
    with Named(function):
        inner = _bounded(lambda c: make_mask_key_after_dispatch(mask, old.inner, c, heads=known), planned, new_config)
    typed = (*_padded(q, k, inner), _kinds(kinds, inner))
    key = DistAttnRuntimeKey(
        inner, mask, typed, (old.cp_group, old.cp_mesh), (num_q, num_kv, dim, old.head_dim_v), new_config
    )
    return _remembered(key)


def require_key(function: str, key: Any, name: str = "key") -> DistAttnRuntimeKey:
    if not isinstance(key, DistAttnRuntimeKey):
        raise InvalidArgument(
            f"{function}: {name} must be a key of tangram.magi, from magi_attn_flex_key or magi_attn_varlen_key "
            f"(got {type(key).__name__})"
        )
    return key


def groups_of(cp_group: Any) -> list[TorchGroup]:
    """The group itself; or, of a group no key was made for, meshes of several dimensions over its ranks."""
    group = known_group(cp_group)
    if group is not None and cache_of(group).published is not None:
        return [group]
    ranks = sorted(ranks_of(cp_group))
    return [group for group in known_groups() if group.identity.is_mesh and sorted(group.ranks) == ranks]


def get_most_recent_key(cp_group: Any = None) -> DistAttnRuntimeKey:
    """The key that was made last for a group; None: for all ranks. Raises ValueError before the first."""
    with Named("get_most_recent_key"):
        groups = groups_of(dist.group.WORLD if cp_group is None else cp_group)
    keys = [cache_of(group).published for group in groups]
    made = [key for key in keys if isinstance(key, DistAttnRuntimeKey)]
    if not made:
        raise InvalidArgument(
            "get_most_recent_key: a key must have been made for this group by tangram.magi (got none)"
        )
    return max(made, key=lambda key: key.number)


def clear_cache(cp_group: Any = None) -> None:
    """Forgets the keys of a group; None: of all groups. Keys that a program still holds go on working."""
    with Named("clear_cache"):
        groups = known_groups() if cp_group is None else groups_of(cp_group)
    for group in groups:
        group.keys = None
