# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for a whole process: set by tangram.configure, read back by tangram.configuration.

A field that configure was not given has the value of its TANGRAM_* variable, or its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import _core
from ._memory import bounds, set_cache_bytes, set_max_keys
from ._named import Named
from .errors import InvalidArgument

Transport = Literal["copy_engine", "nccl"]
TRANSPORTS = ("copy_engine", "nccl")


@dataclass(frozen=True)
class TransportConfig:
    """How rows move between GPUs inside of nodes and between them. Alike on all ranks."""

    inside: Transport = "copy_engine"
    """Inside a node. With nccl rows are not handed on: between nodes each goes to every rank that needs it."""
    between: Literal["nccl"] = "nccl"
    """Between nodes: there is no other yet."""
    max_ctas: int = 0
    """Thread blocks, and so multiprocessors, of a transfer of NCCL at most; 0: 16 on one node, 4 between nodes."""
    ranks_per_node: int = 0
    """Ranks of a node, one after the other; 0: nodes as they are found, by hosts or TANGRAM_NODE_ID."""

    def __post_init__(self) -> None:
        if self.inside not in TRANSPORTS:
            raise InvalidArgument(
                f"TransportConfig: inside must be one of {', '.join(TRANSPORTS)} (got inside={self.inside!r})"
            )
        if self.between != "nccl":
            raise InvalidArgument(f"TransportConfig: between must be nccl (got between={self.between!r})")
        for name in ("max_ctas", "ranks_per_node"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidArgument(
                    f"TransportConfig: {name} must be a whole number from 0 on (got {name}={value!r})"
                )
        if self.inside == "nccl" and self.ranks_per_node > 0:
            raise InvalidArgument(
                "TransportConfig: ranks_per_node must be 0 with inside='nccl', which hands no rows on "
                f"(got ranks_per_node={self.ranks_per_node})"
            )


def device_transport(transport: Transport | TransportConfig, size: int) -> tuple[Transport, int, int]:
    """transport, ranks_per_node and max_ctas as DeviceGroup takes them, for a group of so many ranks."""
    if isinstance(transport, str):
        return transport, 0, 0
    if 0 < transport.ranks_per_node < size:
        return transport.between, transport.ranks_per_node, transport.max_ctas
    return transport.inside, 0, transport.max_ctas


def planned_ranks_per_node(transport: Transport | TransportConfig, size: int, found: int) -> int:
    """Ranks of a node that plans may count on, because rows then cross to each node once; 0: plans know no nodes.

    found: ranks of each node of the group; 0 on one node, or where nodes have unequally many.
    """
    if isinstance(transport, str):
        transport = TransportConfig(inside=transport)
    if transport.inside == "nccl":
        return 0  # each rank fetches for itself
    given = transport.ranks_per_node
    return given if 0 < given < size and size % given == 0 else found


@dataclass(frozen=True)
class Configuration:
    """The choices of a process."""

    backend: str | None = None
    """Backend of calls that name none; None: the best for the device of the tensors."""
    deterministic: bool = False
    """True: calls that do not ask for it are deterministic, too."""
    transport: Transport | TransportConfig = "copy_engine"
    """How rows move between the GPUs of groups that are made from now on; alike on all ranks."""
    exact_memory: bool = False
    """True: receive buffers are sized exactly for the masks of a group; else with headroom for other masks of the same
    shape. GPU only, for groups created later; must match on all ranks."""
    timeout_s: float = 600.0
    """Seconds that groups made from now on wait for a peer (TANGRAM_TIMEOUT_S)."""
    num_threads: int = 0
    """Threads of the CPU backend, over all ranks of the process; 0: one a core (TANGRAM_NUM_THREADS). Before the first
    call."""
    sanity_check: bool = False
    """On CPUs rows that were not received are NaN, and results are searched for NaN (TANGRAM_SANITY_CHECK)."""
    profile: bool = False
    """Kernels and transfers carry NVTX ranges (TANGRAM_PROFILE)."""
    max_keys: int = 128
    """Keys that a group of ranks keeps; alike on all ranks."""
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bounds by the names of memory_use that were set; the others have their defaults."""


_ENV = ("timeout_s", "num_threads", "sanity_check", "profile")
_TYPES: dict[str, tuple[type, ...]] = {
    "deterministic": (bool,),
    "exact_memory": (bool,),
    "sanity_check": (bool,),
    "profile": (bool,),
    "timeout_s": (int, float),
    "num_threads": (int,),
    "max_keys": (int,),
}


class _Unset:
    def __repr__(self) -> str:
        return "unchanged"


UNSET: Any = _Unset()
chosen = Configuration()
"""Values of the fields without a variable. Calls read it; a lookup of a module's attribute is all that it costs."""


def _check(name: str, value: Any) -> None:
    kinds = _TYPES.get(name)
    if kinds is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidArgument(f"configure: {name} must be of type {wanted} (got {name}={value!r})")
    if name == "transport" and not isinstance(value, TransportConfig) and value not in TRANSPORTS:
        raise InvalidArgument(f"configure: transport must be one of {', '.join(TRANSPORTS)} (got transport={value!r})")
    if name == "max_keys" and value < 1:
        raise InvalidArgument(f"configure: max_keys must be positive (got max_keys={value})")
    if name == "backend" and value is not None:
        names = [info.name for info in _core.list_backends()]
        if value not in names:
            raise InvalidArgument(
                f"configure: backend must be None or one of {', '.join(names)} (got backend={value!r})"
            )
    if name == "cache_bytes":
        known = bounds()
        for each, num_bytes in _items(value):
            if each not in known:
                raise InvalidArgument(
                    f"configure: cache_bytes takes {', '.join(sorted(known))} (got cache_bytes[{each!r}])"
                )
            if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 0:
                raise InvalidArgument(
                    f"configure: cache_bytes must be whole numbers from 0 on (got cache_bytes[{each!r}]={num_bytes!r})"
                )


def _items(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            f"configure: cache_bytes must map names of memory_use to bytes (got cache_bytes={value!r:.80})"
        )
    return value.items()


def configure(
    *,
    backend: str | None = UNSET,
    deterministic: bool = UNSET,
    transport: Transport | TransportConfig = UNSET,
    exact_memory: bool = UNSET,
    timeout_s: float = UNSET,
    num_threads: int = UNSET,
    sanity_check: bool = UNSET,
    profile: bool = UNSET,
    max_keys: int = UNSET,
    cache_bytes: Mapping[str, int] = UNSET,
) -> Configuration:
    """Sets what holds for the whole process and returns all of it; what is not given stays. See Configuration for what
    each means. Where TANGRAM_* variables are set, what is given here wins.

    Call it before threads compute, and on all ranks alike. `cache_bytes={"keys": 64 << 20}` is set_cache_bytes.

    Raises:
        InvalidArgument: for a value that a field cannot have; nothing is changed then.
    """
    global chosen
    given = {name: value for name, value in locals().items() if value is not UNSET}
    for name, value in given.items():
        _check(name, value)
    if any(name in given for name in _ENV):
        env = _core.Env.get()
        for name in _ENV:
            if name in given:
                setattr(env, name, given[name])
        with Named("configure"):
            _core.Env.set(env)
    for each, num_bytes in given.pop("cache_bytes", {}).items():
        set_cache_bytes(each, num_bytes)
    if "max_keys" in given:
        set_max_keys(given["max_keys"])
    chosen = replace(chosen, **{name: value for name, value in given.items() if name not in _ENV})
    return configuration()


def configuration() -> Configuration:
    """What holds for the process now."""
    env = _core.Env.get()
    set_bounds = {name: bound for name, bound in bounds().items() if bound is not None}
    return replace(chosen, cache_bytes=set_bounds, **{name: getattr(env, name) for name in _ENV})
