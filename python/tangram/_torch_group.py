# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The library's communicator over a group of torch.distributed: one function that swaps bytes with every peer."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._core import Group, timeout_s
from .errors import CommError, InvalidArgument, Timeout

Buffers = list[memoryview | None]


class TorchGroup:
    """A group with a gloo group of its own beside it, so that its messages never mix with those of the caller."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._timeout = timedelta(seconds=timeout_s())
        self._own = dist.new_group(self._ranks, timeout=self._timeout, backend="gloo", use_local_synchronization=True)
        self._posted: list[Any] = []  # sends that nobody waits for, and their memory
        self.group = Group(self.rank, self.size, self._swap, self._post)

    def _start(self, peer: int, buffer: memoryview, tag: int, what: str, send: bool) -> Any:
        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        try:
            transfer = dist.isend if send else dist.irecv
            return transfer(tensor, self._ranks[peer], group=self._own, tag=tag)
        except RuntimeError as error:
            raise CommError(f"{what}: rank {self.rank} lost rank {peer} (got {_first_line(error)})") from None

    def _swap(self, tag: int, sends: Buffers, recvs: Buffers, what: str) -> None:
        started = []
        for peer, buffer in enumerate(recvs):
            if buffer is not None:
                started.append((peer, self._start(peer, buffer, tag, what, send=False)))
        for peer, buffer in enumerate(sends):
            if buffer is not None:
                started.append((peer, self._start(peer, buffer, tag, what, send=True)))
        for peer, work in started:
            try:
                work.wait(self._timeout)
            except RuntimeError as error:
                text = _first_line(error)
                if "imed out" in text:
                    raise Timeout(
                        f"{what}: rank {peer} must answer rank {self.rank} within TANGRAM_TIMEOUT_S "
                        f"(got no answer in {self._timeout.total_seconds():g} s)"
                    ) from None
                raise CommError(f"{what}: rank {self.rank} lost rank {peer} (got {text})") from None

    def _post(self, tag: int, sends: Buffers) -> None:
        for peer, buffer in enumerate(sends):
            if buffer is not None:
                kept = memoryview(bytearray(buffer))
                self._posted.append((self._start(peer, kept, tag, "abort", send=True), kept))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_groups: dict[Any, tuple[Any, TorchGroup]] = {}


def torch_group(group_or_mesh: Any) -> TorchGroup:
    """The communicator of a process group, or of all ranks of a device mesh. Made once; making it is collective."""
    known = _groups.get(group_or_mesh)
    if known is not None:
        return known[1]
    if not dist.is_initialized():
        raise InvalidArgument("tangram: torch.distributed must be initialised before a key is made (got no group)")
    group = group_or_mesh
    if group is None:
        group = dist.group.WORLD
    elif hasattr(group, "get_group"):
        mesh = group
        if mesh.ndim == 1:
            group = mesh.get_group()
        else:
            group = dist.new_group(mesh.mesh.flatten().tolist(), backend="gloo", use_local_synchronization=True)
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(
            f"tangram: cp_group_or_mesh must be a ProcessGroup or a DeviceMesh (got {type(group_or_mesh).__name__})"
        )
    made = TorchGroup(group)
    _groups[group_or_mesh] = (group, made)
    return made


# Their threads must end while Python is still there.
atexit.register(_groups.clear)
