# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The library's communicator for a group of torch.distributed, whose store tells the ranks where to meet, and a secret
by which they know each other there.

Rows move over connections of Tangram's own, so that they never mix with the caller's messages, need no GIL, and show
the death of a peer at once.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import socket
import tempfile
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import _cuda, _settings
from ._core import DeviceGroup, Group, timeout_s
from .errors import CommError, InvalidArgument, Timeout

_times_met: Counter[tuple[int, ...]] = Counter()


class TorchGroup:
    """This process's place among `ranks`, numbers of the default group. Making it is collective."""

    def __init__(self, ranks: list[int]) -> None:
        if _inherited is not None and _inherited is dist.group.WORLD:
            raise CommError(
                "tangram: a child of a fork must not make keys of a group that its parent has not used, because "
                f"store and peers are the parent's (got process={os.getpid()}): make keys there, or use tangram.plan"
            )
        if dist.get_rank() not in ranks:
            raise InvalidArgument(
                f"tangram: a key is made by ranks of its group (got rank {dist.get_rank()} of {ranks})"
            )
        self.ranks = ranks
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        _times_met[tuple(ranks)] += 1
        name = f"tangram/{'.'.join(map(str, ranks))}/{_times_met[tuple(ranks)]}"
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
        self.keys: Any = None  # made for this group; they end with it
        self.is_one_host = True
        self._on_device: DeviceGroup | None = None
        folder = tempfile.mkdtemp(prefix="tangram-") if self.rank == 0 else ""
        try:
            self.group = Group(self.rank, self.size, *self._meeting(folder))
            self._store.set(f"met{self.rank}", "")
            if self.rank == 0:  # the others connect to each other in the folder too
                self._wait("met")
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def on_device(self, device: int) -> DeviceGroup:
        """The group on this rank's GPU. Made at the first tensor in GPU memory: collective, synchronises."""
        made = self._on_device
        if made is None:
            _cuda.require_no_capture("the GPUs of a group", "tangram")
            chosen = _settings.chosen
            made = self._on_device = DeviceGroup(self.group, device, chosen.transport, chosen.exact_memory)
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

    def _wait(self, key: str, ranks: range | None = None) -> list[str]:
        """What each rank said."""
        said = []
        for rank in range(self.size) if ranks is None else ranks:
            try:
                self._store.wait([f"{key}{rank}"], timedelta(seconds=timeout_s()))
            except RuntimeError:
                raise Timeout(
                    f"tangram: all ranks of the group must make its first key within TANGRAM_TIMEOUT_S (got no answer "
                    f"of rank {self.ranks[rank]} on rank {self.ranks[self.rank]} in {timeout_s():g} s)"
                ) from None
            said.append(self._store.get(f"{key}{rank}").decode())
        return said

    def _meeting(self, folder: str) -> tuple[str, str]:
        """The address, a folder of rank 0 if all ranks see it on one host, else a port of rank 0; and the secret."""
        if self.rank == 0:
            self._store.set("place0", "\n".join((folder, _free_port(), secrets.token_hex(32))))
        folder, port, secret = self._wait("place", range(1))[0].split("\n")
        self._store.set(f"host{self.rank}", _host_id() if os.path.isdir(folder) else f"rank {self.rank}")
        self.is_one_host = len(set(self._wait("host"))) == 1
        return f"unix:{folder}" if self.is_one_host else f"tcp:{port}", secret


def _host_id() -> str:
    """Tells hosts apart: a folder that they share does not carry their sockets."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _free_port() -> str:
    """An address under which others reach this host, and a port of it that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:  # sends nothing: only asks which interface leads to the ranks' meeting point
            probe.connect((os.environ.get("MASTER_ADDR", "192.0.2.1"), 9))
            host = probe.getsockname()[0]
        except OSError:
            host = socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((host, 0))
        except OSError:  # ranks of one host do without
            listener.bind(("", 0))
        return f"{host}:{listener.getsockname()[1]}"


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

# By what the caller passes, which is held so that no other object takes its place.
_groups: dict[Any, TorchGroup] = {}
_default_group: Any = None


def known_groups() -> list[TorchGroup]:
    return list(_groups.values())


def known_group(group_or_mesh: Any) -> TorchGroup | None:
    """The communicator if it was made."""
    global _default_group
    if not dist.is_initialized():
        raise InvalidArgument("tangram: torch.distributed must be initialised before a key is made (got no group)")
    if _default_group is not dist.group.WORLD:  # another life of torch.distributed
        _groups.clear()
        _default_group = dist.group.WORLD
    return _groups.get(group_or_mesh)


def torch_group(group_or_mesh: Any) -> TorchGroup:
    """The communicator of a process group, or of all ranks of a device mesh. Made once; making it is collective."""
    known = known_group(group_or_mesh)
    return known if known is not None else _groups.setdefault(group_or_mesh, TorchGroup(ranks_of(group_or_mesh)))


def _leave() -> None:
    for group in known_groups():
        group.keys = None
    _groups.clear()


# Their threads must end while Python is still there.
atexit.register(_leave)
