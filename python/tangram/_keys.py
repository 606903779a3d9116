# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Keys from ranges, document borders or masks: checked, padded, planned and remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import index
from typing import Any, cast

from torch import Tensor

from . import _core, _meter
from ._core import DistAttnConfig, HeadConfig, Mask, Plan, PlanCache
from ._named import Named
from ._prepared import masks_of_heads
from ._rows import prepare_rows
from ._runtime_key import DistAttnRuntimeKey, PadSize, cache_of, plan_after, require_key
from ._torch_group import known_group, torch_group
from ._values import changed
from ._worker_thread import run_on_worker
from .errors import InvalidArgument
from .planning import in_background

MaskTypes = str | int | Sequence[Any] | None
_TYPE_NAMES = {"full": 0, "causal": 1, "inv_causal": 2, "inverse_causal": 2, "bi_causal": 3}


def _mask_types(types: MaskTypes, count: int) -> list[int] | None:
    if types is None:
        return None
    if isinstance(types, (str, int)):
        return (_mask_types([types], 1) or []) * count
    if isinstance(types, list) and all(type(kind) is int for kind in types):
        return types
    result = []
    for kind in types:
        name = getattr(kind, "value", kind)
        if isinstance(name, str) and name.lower() not in _TYPE_NAMES:
            raise InvalidArgument(
                f"tangram: attn_mask_type must be of {', '.join(_TYPE_NAMES)} or 0 to 3 (got {kind!r})"
            )
        try:
            result.append(_TYPE_NAMES[name.lower()] if isinstance(name, str) else index(name))
        except TypeError:
            raise InvalidArgument(f"tangram: attn_mask_type must be names or integers (got {kind!r})") from None
    return result


def _ranges(name: str, ranges: Any) -> Any:
    if isinstance(ranges, Tensor):
        return ranges.detach().cpu()
    if isinstance(ranges, (list, tuple)) and all(isinstance(r, (tuple, list)) for r in ranges):
        return ranges  # as the extension reads them
    try:
        return [(r.start, r.end) if hasattr(r, "start") else tuple(r) for r in ranges]
    except TypeError:
        raise InvalidArgument(
            f"tangram: {name} must be pairs (begin, end) or [n, 2] integers (got {name}={ranges!r:.80})"
        ) from None


def _mask_of_ranges(q_ranges: Any, k_ranges: Any, types: MaskTypes, seqlen_q: int, seqlen_k: int) -> Mask:
    q, k = _ranges("q_ranges", q_ranges), _ranges("k_ranges", k_ranges)
    return Mask.from_ranges(q, k, _mask_types(types, len(q)), seqlen_q, seqlen_k)


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


def _plan_anew(cache: PlanCache, mask: Mask | tuple[Mask, ...], config: DistAttnConfig) -> Plan:
    return cache.get(mask, config) if isinstance(mask, Mask) else _core.make_plan(list(mask), config)


@_meter.planned
def _key(
    given: Mask | Sequence[Mask],
    group_or_mesh: Any,
    heads: HeadConfig,
    pad_size: PadSize | None,
    config: DistAttnConfig | None,
    chunk_size: int | None,
    plan_with: Callable[[PlanCache, Mask | tuple[Mask, ...], DistAttnConfig], Plan],
    like: object = None,
    ahead: bool = False,
) -> DistAttnRuntimeKey:
    """Within Named, which puts the caller's name into the texts of errors."""
    masks = masks_of_heads("tangram", given)
    if masks is None and not isinstance(given, Mask):
        raise InvalidArgument(
            "tangram: mask must be a Mask, such as Mask.from_ranges(...), or a list of masks "
            f"(got {type(given).__name__})"
        )
    mask = cast(Mask, given) if masks is None else masks[0]
    if config is not None and not isinstance(config, DistAttnConfig):
        raise InvalidArgument(f"tangram: dist_attn_config must be a DistAttnConfig (got {type(config).__name__})")
    if pad_size is not None:
        _pads(pad_size)  # before ranks meet
    group = torch_group(group_or_mesh)
    cache = cache_of(group)
    config = changed(config or DistAttnConfig(), cp_size=group.size, heads=heads)
    if chunk_size is not None:
        config = changed(config, dispatch=changed(config.dispatch, chunk_size=chunk_size))
    if config.cost.ranks_per_node == 0 and (per_node := group.planned_ranks_per_node()) > 0:
        config = changed(config, cost=changed(config.cost, ranks_per_node=per_node))
    pad_q, pad_k = _pads(
        _pad_of_mask(mask, group.size, config.dispatch.chunk_size or None) if pad_size is None else pad_size
    )
    name = (masks or mask, config, pad_q, pad_k, like)
    known = cache.keys.peek(name) or cache.ahead.peek(name) if ahead else cache.keys.get(name)
    key = known or (None if ahead else cache.ahead.pop(name))

    def make() -> tuple[tuple[Any, ...], DistAttnRuntimeKey]:
        own = tuple(m.cloned() for m in masks or (mask,))  # what stays lies apart (_worker_thread.py)
        all_padded = tuple(m.padded(m.seqlen_q + pad_q, m.seqlen_k + pad_k) for m in own)
        padded = all_padded[0]
        if (padded.seqlen_q == padded.seqlen_k) != (mask.seqlen_q == mask.seqlen_k):
            raise InvalidArgument(
                "tangram: pad_size must leave queries and keys of different length so, and equal ones equal "
                f"(got {mask.seqlen_q} + {pad_q} and {mask.seqlen_k} + {pad_k})"
            )
        plan = plan_with(cache.plans, padded if masks is None else all_padded, config)
        pads = pad_q if pad_q == pad_k else (pad_q, pad_k)
        key = DistAttnRuntimeKey(plan, group, mask.seqlen_q, mask.seqlen_k, pads, config)
        key.masks = None if masks is None else all_padded
        prepare_rows(key)
        return ((own[0] if masks is None else own), *name[1:]), key

    if key is None:
        name, key = run_on_worker(make)
    if known is None:
        (cache.ahead if ahead else cache.keys).put(name, key)
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
    mask: Mask | Sequence[Mask],
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cp_group_or_mesh: Any = None,
    *,
    pad_size: PadSize | None = None,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """The key of a mask over the ranks of a group: what `dispatch`, `calc_attn` and `undispatch` take.

    Every rank of the group makes the same keys in the same order. Equal arguments give the same object while the
    group's cache holds it.

    Over several nodes of GPUs the plan knows nodes, so that few rows cross between them. That needs equally many ranks
    on each node and a transport that forwards rows inside nodes. `CostModel(ranks_per_node=...)` of at least the ranks
    of the group asks for the plan of one node.

    Args:
        mask: a tangram.Mask; or a list of masks, one for each of equal groups of heads, as dynamic sparse attention
            chooses them, see tangram.plan.
        num_heads_q, num_heads_kv: heads of this rank, that is after tensor parallelism has sharded them.
        cp_group_or_mesh: a process group, a device mesh, or None for all ranks.
        pad_size: rows to append; None: as many as it takes.
        chunk_size: rows of a chunk; None lets the planner choose.

    Raises:
        InvalidArgument: on wrong values, before anything is sent. Planning itself needs no communication; the first
            key of a group does: Timeout where a rank does not make it.
    """
    with Named("mask_key"):
        heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
        return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, _plan_anew)


def key_of_heads(
    mask: Mask, heads: HeadConfig, cp_group_or_mesh: Any, pad_size: PadSize | None, config: DistAttnConfig
) -> DistAttnRuntimeKey:
    """mask_key with values of another dim than keys."""
    return _key(mask, cp_group_or_mesh, heads, pad_size, config, None, _plan_anew)


def mask_key_async(
    mask: Mask | Sequence[Mask],
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cp_group_or_mesh: Any = None,
    *,
    pad_size: PadSize | None = None,
    chunk_size: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> Future[DistAttnRuntimeKey]:
    """mask_key on a background thread: the key of the next step while this step runs.

    A later mask_key with equal arguments finds it made; it is not the most recent key before that.
    """
    with Named("mask_key_async"):
        heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
        torch_group(cp_group_or_mesh)  # the first time collective, so not on another thread

    def make() -> DistAttnRuntimeKey:
        with Named("mask_key_async"):
            return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, _plan_anew, ahead=True)

    return in_background(make)


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
        q_ranges, k_ranges: `[n, 2]` tensors, or lists of `(begin, end)`.
        attn_mask_type: one name or number for all ranges, or one for each: "full" 0, "causal" 1, "inv_causal" 2,
            "bi_causal" 3.
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
    with Named("magi_attn_flex_key"):
        heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
        mask = _mask_of_ranges(q_ranges, k_ranges, attn_mask_type, total_seqlen_q, total_seqlen_k)
        return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, _plan_anew)


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
    through a window.

    Args:
        cu_seqlens_q, cu_seqlens_k: borders, `[documents + 1]` ints as tensors, arrays or lists, from 0 on.
        window_size: keys before and after a query, -1: no bound. global_window_size: so many first keys of a document
            are seen besides its window. The others as of magi_attn_flex_key.

    Raises:
        InvalidArgument: on wrong values, before anything is sent.
    """
    with Named("magi_attn_varlen_key"):
        heads = HeadConfig(num_heads_q, num_heads_kv, head_dim, head_dim)
        mask = _varlen_mask(cu_seqlens_q, cu_seqlens_k, causal, window_size, global_window_size)
        return _key(mask, cp_group_or_mesh, heads, pad_size, dist_attn_config, chunk_size, _plan_anew)


def _varlen_mask(cu_q: Any, cu_k: Any, causal: bool, window: tuple[int, int], num_global: int) -> Mask:
    q, k = (c.detach().cpu() if isinstance(c, Tensor) else c for c in (cu_q, cu_k))
    try:
        left, right = (index(side) for side in window)
    except (TypeError, ValueError):
        raise InvalidArgument(
            "tangram: window_size must be two integers, keys before and after a query, -1: all "
            f"(got window_size={window!r:.60})"
        ) from None
    if (left, right) == (-1, -1) and num_global == 0:
        return Mask.varlen(q, k, causal)
    typed = _core.infer_attn_mask_from_cu_seqlens(q, k, causal, (left, right), num_global)
    return Mask.from_ranges(*typed)


def make_flex_key_for_new_mask_after_dispatch(
    q_ranges: Any,
    k_ranges: Any,
    attn_mask_type: MaskTypes,
    key_for_dispatch: DistAttnRuntimeKey,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """Another mask over rows that are sharded already: hybrid attention. Dispatched tensors serve both keys.

    Args:
        q_ranges, k_ranges, attn_mask_type: as of magi_attn_flex_key.
        key_for_dispatch: the key whose rows, heads, padding and group the new one shares.
        dist_attn_config: None takes that of the other key.

    Raises:
        InvalidArgument: on wrong values, or a mask of other lengths, before anything is sent.
    """
    old = require_key("make_flex_key_for_new_mask_after_dispatch", key_for_dispatch, "key_for_dispatch")
    with Named("make_flex_key_for_new_mask_after_dispatch"):
        mask = _mask_of_ranges(q_ranges, k_ranges, attn_mask_type, old.total_seqlen_q, old.total_seqlen_k)
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
    """make_flex_key_for_new_mask_after_dispatch for packed documents; the mask's arguments as of
    magi_attn_varlen_key."""
    with Named("make_varlen_key_for_new_mask_after_dispatch"):
        mask = _varlen_mask(cu_seqlens_q, cu_seqlens_k, causal, window_size, global_window_size)
        return make_mask_key_after_dispatch(mask, key_for_dispatch, dist_attn_config)


def make_mask_key_after_dispatch(
    mask: Mask | Sequence[Mask],
    key_for_dispatch: DistAttnRuntimeKey,
    dist_attn_config: DistAttnConfig | None = None,
    *,
    heads: HeadConfig | None = None,
) -> DistAttnRuntimeKey:
    """make_flex_key_for_new_mask_after_dispatch for a tangram.Mask, or one for each of equal groups of heads.

    heads: None takes those of the other key. Rows are sharded already, so layers of other heads may share them.
    """
    old = require_key("make_mask_key_after_dispatch", key_for_dispatch, "key_for_dispatch")
    for one in masks_of_heads("make_mask_key_after_dispatch", mask) or (mask,):
        if not isinstance(one, Mask):
            raise InvalidArgument(
                "make_mask_key_after_dispatch: mask must be a Mask, such as Mask.from_ranges(...), or a list of masks "
                f"(got {type(one).__name__})"
            )
        if (one.seqlen_q, one.seqlen_k) != (old.total_seqlen_q, old.total_seqlen_k):
            raise InvalidArgument(
                "make_mask_key_after_dispatch: the mask must have the lengths that were dispatched "
                f"(got {one.seqlen_q} x {one.seqlen_k}, dispatched {old.total_seqlen_q} x {old.total_seqlen_k})"
            )

    def plan_with(_: PlanCache, padded: Mask | tuple[Mask, ...], cfg: DistAttnConfig) -> Plan:
        return plan_after(padded, cfg, old.plan)

    config = old.config if dist_attn_config is None else dist_attn_config
    heads = old.config.heads if heads is None else heads
    with Named("make_mask_key_after_dispatch"):
        return _key(mask, old.group, heads, old.pad_size, config, None, plan_with, old)


def get_most_recent_key(cp_group_or_mesh: Any = None) -> DistAttnRuntimeKey:
    """The key that was made last for this group (None: all ranks). Raises InvalidArgument before the first."""
    group = known_group(cp_group_or_mesh)
    key = None if group is None else cache_of(group).latest
    if key is None:
        raise InvalidArgument("get_most_recent_key: a key must have been made for this group (got none)")
    return key
