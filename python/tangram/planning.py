# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Plans without any communication: what a training step would do, printed, compared or written to a file."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Lock
from typing import Any, TypeVar
from weakref import WeakSet

from ._core import DistAttnConfig, HeadConfig, Mask, Plan, make_plan
from ._memory import make_plan_cache
from ._named import Named
from ._prepared import masks_of_heads
from ._values import changed
from .errors import InvalidArgument, NotAvailable

T = TypeVar("T")
_cache = make_plan_cache()
_pool: ThreadPoolExecutor | None = None
_pool_lock = Lock()
_begun: WeakSet[Future[Any]] = WeakSet()
"""What the thread was asked for."""


def plan_config(cp_size: int, heads: HeadConfig | None = None, config: DistAttnConfig | None = None) -> DistAttnConfig:
    """`config` for `cp_size` ranks and these heads."""
    config = DistAttnConfig() if config is None else config
    for name, value, kind in (("config", config, DistAttnConfig), ("heads", heads, HeadConfig)):
        if value is not None and not isinstance(value, kind):
            raise InvalidArgument(f"plan: {name} must be a {kind.__name__} (got {type(value).__name__})")
    return changed(config, cp_size=cp_size, heads=config.heads if heads is None else heads)


def plan(
    mask: Mask | Sequence[Mask],
    cp_size: int,
    *,
    heads: HeadConfig | None = None,
    config: DistAttnConfig | None = None,
) -> Plan:
    """Plans `mask` for `cp_size` ranks; equal arguments on any rank give an equal plan. The last 128 are kept,
    64 MiB of them at most (set_cache_bytes).

    A list of masks is one for each of equal head groups, in one plan. Rows are sharded as for the mask of the largest
    area; `config.movement` says whether queries may move ("kv", "qo" or "auto"). Such a plan is made anew each time,
    its `mask` is over the rows of all groups, and it cannot be read back from JSON.

    Raises InvalidArgument when a config value is out of range or a sequence length is no multiple of
    `cp_size * chunk_size`: pad with `compute_pad_size` and `Mask.padded`.
    """
    masks = masks_of_heads("plan", mask)
    with Named("plan"):
        if masks is not None:
            return make_plan(list(masks), plan_config(cp_size, heads, config))
        if not isinstance(mask, Mask):
            raise InvalidArgument(f"plan: mask must be a Mask, or a list of some (got {type(mask).__name__})")
        return _cache.get(mask, plan_config(cp_size, heads, config))


def in_background(make: Callable[[], T]) -> Future[T]:
    """The result of `make`, called on the thread that plans ahead."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tangram-plan")
            atexit.register(_pool.shutdown)
        future = _pool.submit(make)
        _begun.add(future)
        return future


def _after_fork() -> None:
    """A child has no such thread: it starts its own, and what it would wait for for ever fails."""
    global _pool, _pool_lock, _begun
    _pool_lock = Lock()
    if _pool is not None:
        atexit.unregister(_pool.shutdown)
        _pool = None
    inherited, _begun = list(_begun), WeakSet()
    for future in inherited:
        future._condition = Condition()  # the thread may hold its lock
        if future.done():
            continue
        future.set_exception(
            NotAvailable(
                "plan_async, mask_key_async: a child of a fork must call them itself, because what its parent has "
                f"begun ends in the parent (got process={os.getpid()})"
            )
        )


os.register_at_fork(after_in_child=_after_fork)


def plan_async(
    mask: Mask | Sequence[Mask],
    cp_size: int,
    *,
    heads: HeadConfig | None = None,
    config: DistAttnConfig | None = None,
) -> Future[Plan]:
    """plan on a background thread, without holding the GIL: the next step's mask while this step runs.

    A later `plan` of the same mask finds it made.
    """

    def make() -> Plan:
        with Named("plan_async"):
            return plan(mask, cp_size, heads=heads, config=config)

    return in_background(make)
