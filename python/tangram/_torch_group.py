# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The library's communicator for a group of torch.distributed, through whose store the ranks meet (_rendezvous.py).

Rows move over connections of Tangram's own. So they never mix with the caller's messages, need no GIL, and show the
death of a peer at once.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from . import _cuda, _settings
from ._core import DeviceGroup, Group, timeout_s
from ._rendezvous import Circle, Node, meet, prefixed
from .errors import CommError, InvalidArgument


@dataclass(frozen=True)
class Identity:
    """What torch.distributed knows a group by. Equal for a group, and for whatever is made of the same group.

    Nothing here keeps a process group alive. Its store ends with it, and the next group of all ranks may have a store
    at the same address.
    """

    process_groups: tuple[weakref.ref[Any], ...]
    """Process groups of this rank: one, or one for each dimension of a mesh. torch.distributed holds them until they
    are destroyed."""
    ranks: tuple[int, ...]
    """Ranks: those of a mesh of several dimensions as it lists them; those of a process group in order."""

    @property
    def is_mesh(self) -> bool:
        """Whether it is a mesh of several dimensions."""
        return len(self.process_groups) > 1

    def is_alive(self) -> bool:
        return all(group() in c10d._world.pg_map for group in self.process_groups)


class TorchGroup:
    """This process's place in a group. Making it is collective."""

    def __init__(self, identity: Identity, mesh: Tensor | None = None) -> None:
        """mesh: ranks of a mesh of several dimensions."""
        if _inherited is not None and _inherited is dist.group.WORLD:
            raise CommError(
                "tangram: a child of a fork must not make keys of a group that its parent has not used, because "
                f"store and peers are the parent's (got process={os.getpid()}): make keys there, or use tangram.plan"
            )
        self.identity = identity
        self.num_differences = 0
        """Calls that ranks refused because their masks differed (_differing.py)."""
        self.ranks = sorted(identity.ranks)
        """By rank of the group: of the default group. Node by node, once ranks have met."""
        if dist.get_rank() not in self.ranks:
            raise InvalidArgument(
                f"tangram: a key is made by ranks of its group (got rank {dist.get_rank()} of {self.ranks})"
            )
        self.rank = self.ranks.index(dist.get_rank())
        self.size = len(self.ranks)
        self.keys: Any = None  # made for this group; they end with it
        self.is_one_host = True
        self.is_on_gpus = device_of_group(identity.process_groups[0]()).type == "cuda"
        self._ranks_of_nodes = 0
        self._on_device: DeviceGroup | None = None
        if self.size == 1:
            self.group = Group(0, 1, "unix:", "")
            return
        name, circles, store = _circles_of(identity, self.ranks, mesh)
        folder = tempfile.mkdtemp(prefix="tangram-") if self.rank == 0 else ""
        try:
            met = meet(name, self.ranks, self.rank, circles, store, timeout_s(), folder)
            self.is_one_host = met.address.startswith("unix:")
            node_of = {rank: node for rank, node in zip(self.ranks, met.nodes, strict=True)}
            if mesh is not None and mesh.ndim == 2:
                _require_rows_in_nodes(mesh, node_of)
            self.ranks = node_by_node(self.ranks, node_of)
            self._ranks_of_nodes = equal_ranks_per_node(met.nodes)
            self.rank = self.ranks.index(dist.get_rank())
            self.group = Group(self.rank, self.size, met.address, met.secret, met.rest_s, met.listener)
            self.group.require_agreement(0, "the first meeting")  # the others connect to each other in the folder too
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def planned_ranks_per_node(self) -> int:
        """Ranks of a node for plans; 0 where they know no nodes: on host memory each rank fetches rows for itself."""
        if not self.is_on_gpus:
            return 0
        return _settings.planned_ranks_per_node(_settings.chosen.transport, self.size, self._ranks_of_nodes)

    def on_device(self, device: int) -> DeviceGroup:
        """The group on this rank's GPU. Made at the first tensor in GPU memory: collective, synchronises."""
        made = self._on_device
        if made is None:
            _cuda.require_no_capture("the GPUs of a group", "tangram")
            chosen = _settings.chosen
            transport, ranks_per_node, max_ctas = _settings.device_transport(chosen.transport, self.size)
            made = self._on_device = DeviceGroup(
                self.group, device, transport, chosen.exact_memory, ranks_per_node, max_ctas
            )
        if made.device != device:
            raise InvalidArgument(f"tangram: a rank computes on one GPU of a group (got {device} after {made.device})")
        return made

    def shared_gpu_bytes(self) -> int | None:
        """GPU memory that rows of all keys land in; None before the first tensor in GPU memory."""
        return None if self._on_device is None else self._on_device.shared_bytes

    def exchange(
        self,
        send: Tensor,
        send_rows: list[int],
        recv: Tensor,
        recv_rows: list[int],
        most_rows: int,
        label: str,
        fingerprint: int,
    ) -> None:
        """Rows `[rows, 1, n]` for rank 0, 1, ... one after the other; recv likewise. Collective.

        On the current stream where they lie in GPU memory. most_rows: the most that go from any rank to another.
        fingerprint: of whose rows these are; ranks compare it, and all raise where it differs, on GPUs at check().
        """
        device = _cuda.device_of(send)
        if device < 0:
            self.group.all_to_all(send, send_rows, recv, recv_rows, label, fingerprint)
        else:
            stream = _cuda.stream_of(send)
            self.on_device(device).all_to_all(send, send_rows, recv, recv_rows, most_rows, fingerprint, stream)

    def refuse(self, device: int, reason: str) -> None:
        """This rank does not take part in what its peers call next: they get an error instead of waiting for it."""
        if self.size == 1:
            return
        self.group.refuse(reason)
        if device >= 0 and self._on_device is not None:
            self._on_device.refuse(reason)

    def check(self) -> None:
        """Waits for this rank's GPU and raises what has gone wrong on it or at a peer."""
        if self._on_device is not None:
            self._on_device.check()


def _circles_of(identity: Identity, ranks: list[int], mesh: Tensor | None) -> tuple[str, list[Circle], Any]:
    """Its name for errors; of each dimension the ranks that differ from this one in it alone; a store of all ranks."""
    groups: list[Any] = [group() for group in identity.process_groups]
    names = [str(c10d._world.pg_names[group]) for group in groups]
    shared = [c10d._world.pg_map[group][1] for group in groups]
    stores = [prefixed(f"tangram/{name}", store) for name, store in zip(names, shared, strict=True)]
    if mesh is None:
        return f"group {names[0]!r}", [Circle(stores[0], ranks.index(dist.get_rank()), range(len(ranks)))], stores[0]
    at = (mesh == dist.get_rank()).nonzero()[0].tolist()
    digest = hashlib.sha256(repr((tuple(mesh.shape), identity.ranks)).encode()).hexdigest()
    circles = []
    for dim, store in enumerate(stores):
        line = mesh[tuple(slice(None) if d == dim else at[d] for d in range(mesh.ndim))].tolist()
        members = [ranks.index(rank) for rank in line]
        circles.append(Circle(prefixed(f"{digest}/{dim}", store), at[dim], members))
    return f"the mesh of groups {', '.join(map(repr, names))}", circles, c10d._get_default_store()


def node_by_node(ranks: list[int], node_of: dict[int, Node]) -> list[int]:
    """The ranks, those of a node one after the other; nodes in the order of their first ranks."""
    first: dict[str, int] = {}
    for rank in ranks:
        first.setdefault(node_of[rank].id, rank)
    return sorted(ranks, key=lambda rank: (first[node_of[rank].id], rank))


def equal_ranks_per_node(nodes: Sequence[Node]) -> int:
    """By rank: how many share a node; 0 where they are on one, or where nodes have unequally many."""
    counts = Counter(node.id for node in nodes)
    return counts[nodes[0].id] if len(counts) > 1 and len(set(counts.values())) == 1 else 0


def _require_rows_in_nodes(mesh: Tensor, node_of: dict[int, Node]) -> None:
    for row in mesh.tolist():
        other = next((rank for rank in row if node_of[rank].id != node_of[row[0]].id), None)
        if other is not None:
            raise InvalidArgument(
                "tangram: ranks of a row of a mesh of two dimensions must share a node, so give it as [nodes, ranks of "
                f"a node], or set TANGRAM_NODE_ID where hosts do not tell (got rank {row[0]} on "
                f"{node_of[row[0]].name} and rank {other} on {node_of[other].name} in row {row})"
            )


def device_of_group(group_or_mesh: Any) -> Any:
    """Where tensors of a process group, or of a device mesh, lie: this rank's GPU, or the host."""
    kind = getattr(group_or_mesh, "device_type", None)
    if kind is None:
        has_nccl = "nccl" in str(dist.get_backend_config(group_or_mesh))
        kind = "cuda" if has_nccl and torch.cuda.is_available() else "cpu"
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")


def ranks_of(group_or_mesh: Any) -> list[int]:
    """Numbers of the default group; None: all."""
    if group_or_mesh is None:
        return list(range(dist.get_world_size()))
    if group_or_mesh is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument(
            f"tangram: a key is made by ranks of its group (got rank {dist.get_rank()}, for which new_group gave none)"
        )
    if hasattr(group_or_mesh, "mesh"):
        ranks: list[int] = sorted(group_or_mesh.mesh.flatten().tolist())
        return ranks
    if isinstance(group_or_mesh, dist.ProcessGroup):
        return dist.get_process_group_ranks(group_or_mesh)
    raise InvalidArgument(
        f"tangram: cp_group_or_mesh must be a ProcessGroup or a DeviceMesh (got {type(group_or_mesh).__name__})"
    )


_inherited: Any = None
"""The default group that this process has of its parent by a fork."""


def _after_fork() -> None:
    global _inherited
    _inherited = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


os.register_at_fork(after_in_child=_after_fork)


def _identity_of(group_or_mesh: Any) -> tuple[Identity, Tensor | None]:
    """And the ranks of a mesh of several dimensions. Raises InvalidArgument if torch.distributed does not know it."""
    if not dist.is_initialized():
        raise InvalidArgument("tangram: torch.distributed must be initialised before a key is made (got no group)")
    mesh = None
    if hasattr(group_or_mesh, "mesh"):
        groups = [group_or_mesh.get_group(dim) for dim in range(group_or_mesh.ndim)]
        mesh = group_or_mesh.mesh if len(groups) > 1 else None
    else:
        groups = [dist.group.WORLD if group_or_mesh is None else group_or_mesh]
    if not all(isinstance(group, dist.ProcessGroup) for group in groups):
        ranks_of(groups[0])  # raises
    if not all(group in c10d._world.pg_map for group in groups):
        raise _destroyed()
    ranks = dist.get_process_group_ranks(groups[0]) if mesh is None else mesh.flatten().tolist()
    return Identity(tuple(weakref.ref(group) for group in groups), tuple(ranks)), mesh


def _destroyed() -> InvalidArgument:
    return InvalidArgument(
        "tangram: cp_group_or_mesh must be a group that torch.distributed knows, so make it anew after "
        "destroy_process_group (got one that is destroyed)"
    )


_groups: dict[Identity, TorchGroup] = {}
_meetings: dict[Identity, threading.Lock] = {}
"""One at a time for each group, though threads may meet with different groups at once."""


def known_groups() -> list[TorchGroup]:
    return list(_groups.values())


def _forget_destroyed() -> None:
    for identity in [identity for identity in _groups if not identity.is_alive()]:
        group = _groups.pop(identity, None)
        _meetings.pop(identity, None)
        if group is not None:
            group.keys = None


def known_group(group_or_mesh: Any) -> TorchGroup | None:
    """The communicator if it was made."""
    _forget_destroyed()
    return _groups.get(_identity_of(group_or_mesh)[0])


def torch_group(group_or_mesh: Any) -> TorchGroup:
    """The communicator of a process group, or of all ranks of a device mesh. Made once; making it is collective."""
    _forget_destroyed()
    if isinstance(group_or_mesh, TorchGroup):
        if not group_or_mesh.identity.is_alive():
            raise _destroyed()
        return group_or_mesh
    identity, mesh = _identity_of(group_or_mesh)
    known = _groups.get(identity)
    if known is not None:
        return known
    with _meetings.setdefault(identity, threading.Lock()):
        known = _groups.get(identity)
        if known is None:
            known = _groups[identity] = TorchGroup(identity, mesh)
        return known


def _leave() -> None:
    for group in known_groups():
        group.keys = None
    _groups.clear()


# Their threads must end while Python is still there.
atexit.register(_leave)
