# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of the ranks of a group: through stores of torch.distributed they learn where to connect, and the secret.

NOTE [rendezvous] The origin, the first rank of the group, draws a token; all keys of one rendezvous lie under it. So
whatever an earlier rendezvous left in the store, of another life of a process, an attempt that failed, is not read. A
rank asks for the token with a nonce of its own. The rank before it in its circle answers until the rank has arrived; an
answer with another nonce is for a process that is gone. Nothing is counted, so ranks need not have done the same
before. A process group is one circle. A device mesh has one circle for each dimension; the token passes along the last
dimension first.

Waits poll, in Python: signals are heard, and a rank that gives up tells the others.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch.distributed as dist

from ._core import env_node_id
from .errors import CommError, Error, Timeout

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_LAST_WORDS_S = 1.0
"""For a call after the deadline: what a rank tells the others when it gives up, or finds out of whom it waited for."""


def prefixed(name: str, store: Any) -> Any:
    """The part of a store whose keys begin with the name."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


_log = logging.getLogger("tangram")
_NOTE_S = 10.0
"""Who waits for so long says for whom, once."""


@dataclass
class Circle:
    """Ranks that share a store and know its name by torch.distributed: a process group."""

    store: Any
    index: int
    """Index of this rank in the circle."""
    members: Sequence[int]
    """By index: numbers in the group that meets."""


@dataclass(frozen=True)
class Node:
    """Where a rank is. Ranks with equal ids share a node."""

    id: str
    name: str
    """In errors."""


@dataclass(frozen=True)
class Meeting:
    """What ranks learn when they meet."""

    address: str
    """A folder of rank 0 if all ranks see it on one host, else a port of rank 0."""
    secret: str
    nodes: Sequence[Node]
    """By rank."""
    listener: int
    """Rank 0 with a port: a socket that listens there, for Group to take over; else -1."""
    rest_s: float
    """Seconds that are left to connect in."""


class BoundedStore:
    """Calls of a store, each within a deadline.

    A call has no limit of its own: it blocks as long as the process that hosts the store is stopped. So another thread
    makes it, and is left alone with it if no answer comes.
    """

    def __init__(self, deadline: float, on_silence: Callable[[], Error]) -> None:
        self.deadline = deadline
        self.is_silent = False
        self._on_silence = on_silence
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._number = 0
        threading.Thread(target=_serve, args=(self._calls, self._answers), name="tangram-store", daemon=True).start()

    def close(self) -> None:
        self._calls.put(None)

    def get(self, store: Any, key: str) -> str | None:
        """None: it was not set."""
        return self._call(lambda: store.get(key).decode() if store.check([key]) else None)

    def set(self, store: Any, key: str, value: str) -> None:
        self._call(lambda: store.set(key, value))

    def _call(self, call: Callable[[], T]) -> T:
        self._number += 1
        self._calls.put((self._number, call))
        while True:
            try:
                number, result, error = self._answers.get(timeout=max(self.deadline - time.monotonic(), _LAST_WORDS_S))
            except Empty:
                self.is_silent = True
                raise self._on_silence() from None
            if number != self._number:  # the answer of a call that a signal has ended
                continue
            if error is not None:
                raise CommError(
                    f"tangram: the store of torch.distributed must work until ranks have met (got {error})"
                ) from error
            answer: T = result
            return answer


def _serve(calls: SimpleQueue[Any], answers: SimpleQueue[Any]) -> None:
    while (request := calls.get()) is not None:
        number, call = request
        try:
            answers.put((number, call(), None))
        except Exception as error:  # the caller's
            answers.put((number, None, error))
        del call


class Rendezvous:
    """One meeting of a group of `ranks`, numbers of the default group, of which this one is ranks[rank]."""

    def __init__(
        self, name: str, ranks: Sequence[int], rank: int, circles: Sequence[Circle], store: Any, limit_s: float
    ) -> None:
        self.name, self.ranks, self.rank = name, ranks, rank
        self._circles = circles
        self._base = store
        self._limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        self._store = BoundedStore(self.deadline, lambda: _silent_store(store, ranks[rank], limit_s))
        self._token = ""
        self._room: Any = None
        """The store under the token."""
        self._unserved: list[tuple[Circle, int]] = []
        self._answered: dict[tuple[int, int], str] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._note_at = time.monotonic() + min(_NOTE_S, limit_s / 2)
        self._listening: socket.socket | None = None

    def meet(self, folder: str) -> Meeting:
        try:
            return self._meet(folder)
        except BaseException as error:
            self._tell_end(error)
            raise
        finally:
            self._store.close()
            if self._listening is not None:
                self._listening.close()

    def _meet(self, folder: str) -> Meeting:
        asks = next((circle for circle in self._circles if circle.index > 0), None)
        self._unserved = [
            (circle, index)
            for circle in itertools.takewhile(lambda circle: circle is not asks, self._circles)
            for index in range(1, len(circle.members))
        ]
        self._token = secrets.token_hex(16) if asks is None else self._ask(asks)
        self._room = prefixed(f"tangram/{self._token}", self._base)
        port = ""
        if self.rank == 0:
            port, self._listening = _listener()
            self._store.set(self._room, "place", "\n".join((folder, secrets.token_hex(32))))
        folder, secret = self._wait("place").split("\n")
        host, claimed = _host_id(), env_node_id()
        place = host if os.path.isdir(folder) else f"rank {self.rank}"
        own = [place, claimed or host, claimed or socket.gethostname()]
        self._store.set(self._room, f"host{self.rank}", json.dumps(own))
        if self.rank == 0:
            hosts = [json.loads(self._wait(f"host{rank}")) for rank in range(len(self.ranks))]
            is_one_host = len({place for place, _, _ in hosts}) == 1
            if not is_one_host and self._listening is None:
                raise CommError(
                    f"tangram: rank 0 must be able to listen at the address that leads to MASTER_ADDR (got {port})"
                )
            address = f"unix:{folder}" if is_one_host else f"tcp:{port}"
            self._store.set(self._room, "address", json.dumps([address, [host[1:] for host in hosts]]))
        address, nodes = json.loads(self._wait("address"))
        # Handed over last, when nothing here can fail any more.
        listener = -1 if self._listening is None or address.startswith("unix:") else self._listening.detach()
        rest_s = max(self.deadline - time.monotonic(), 0.1)
        return Meeting(address, secret, [Node(*each) for each in nodes], listener, rest_s)

    def _ask(self, circle: Circle) -> str:
        nonce = secrets.token_hex(16)
        self._store.set(circle.store, f"question{circle.index}", nonce)
        while True:
            answer = (self._store.get(circle.store, f"answer{circle.index}") or " ").split(" ")
            if answer[0] == nonce:
                return answer[1]
            self._rest([circle.members[0]])

    def _wait(self, key: str) -> str:
        while True:
            self._answer()
            value = self._store.get(self._room, key)
            if value is not None:
                self._pause_s = _FIRST_PAUSE_S
                return value
            end = self._store.get(self._room, "end")
            if end is not None:
                kind, text = end.split("\n", 1)
                raise _Ended(Timeout if kind == "Timeout" else CommError, text)
            self._rest(None)

    def _answer(self) -> None:
        """Hands the token on to those who have asked since."""
        for circle, index in list(self._unserved):
            number = circle.members[index]
            if self._store.get(self._room, f"host{number}") is not None:
                self._unserved.remove((circle, index))
                continue
            nonce = self._store.get(circle.store, f"question{index}")
            if nonce is not None and self._answered.get((id(circle), index)) != nonce:
                self._store.set(circle.store, f"answer{index}", f"{nonce} {self._token}")
                self._answered[id(circle), index] = nonce

    def _rest(self, missing: list[int] | None) -> None:
        now = time.monotonic()
        if self._note_at <= now < self.deadline:
            self._note_at = self.deadline
            _log.warning(
                "tangram: rank %s waits for %s, to make the first key of %s",
                self.ranks[self.rank],
                self._names(self._missing(missing)),
                self.name,
            )
        if now < self.deadline:
            time.sleep(self._pause_s)
            self._pause_s = min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
            return
        raise Timeout(
            f"tangram: all ranks of {self.name} must make its first key within TANGRAM_TIMEOUT_S (got no answer of "
            f"{self._names(self._missing(missing))} on rank {self.ranks[self.rank]} in {self._limit_s:g} s)"
        )

    def _missing(self, known: list[int] | None) -> list[int]:
        if known is not None:
            return known
        every = range(len(self.ranks))
        return [rank for rank in every if self._store.get(self._room, f"host{rank}") is None] or [0]

    def _names(self, ranks: list[int]) -> str:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(str(self.ranks[rank]) for rank in ranks)}"

    def _tell_end(self, error: BaseException) -> None:
        if self._room is None or self._store.is_silent or isinstance(error, _Ended):
            return
        kind = "Timeout" if isinstance(error, Timeout) else "CommError"
        text = str(error)
        if not isinstance(error, Error):
            name, rank = type(error).__name__, self.ranks[self.rank]
            text = f"tangram: all ranks of {self.name} must make its first key (got {name} on rank {rank})"
        self._store.deadline = 0
        try:
            self._store.set(self._room, "end", f"{kind}\n{text}")
        except Error:
            pass  # the others wait until their deadline


class _Ended(Exception):
    """What another rank has said; becomes `kind(text)`."""

    def __init__(self, kind: type[Error], text: str) -> None:
        super().__init__(text)
        self.kind = kind


def meet(
    name: str, ranks: Sequence[int], rank: int, circles: Sequence[Circle], store: Any, limit_s: float, folder: str
) -> Meeting:
    """Collective. name: of the group, in errors.

    Raises Timeout, which names the ranks that did not come, or the store that does not answer; CommError where a rank
    gave up.
    """
    try:
        return Rendezvous(name, ranks, rank, circles, store, limit_s).meet(folder)
    except _Ended as end:
        raise end.kind(str(end)) from None


def _silent_store(store: Any, rank: int, limit_s: float) -> Error:
    while getattr(store, "underlying_store", None) is not None:
        store = store.underlying_store
    host = ""
    if hasattr(store, "host") and hasattr(store, "port"):
        by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        owner = "the launcher" if by_launcher else "rank 0 of torch.distributed"
        host = f", which {owner} hosts at {store.host}:{store.port},"
    return Timeout(
        f"tangram: the store of torch.distributed{host} must answer within TANGRAM_TIMEOUT_S "
        f"(got no answer on rank {rank} in {limit_s:g} s)"
    )


def _host_id() -> str:
    """Tells hosts apart: a folder that they share does not carry their sockets."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _listener() -> tuple[str, socket.socket | None]:
    """An address under which others reach this host, and a socket that listens there and on no other interface.

    None where there is no such interface: ranks of one host do without.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:  # sends nothing: only asks which interface leads to the ranks' meeting point
            probe.connect((os.environ.get("MASTER_ADDR", "192.0.2.1"), 9))
            host = probe.getsockname()[0]
        except OSError:
            host = socket.gethostname()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        return host, None
    return f"{host}:{listener.getsockname()[1]}", listener
