# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that notice when one of them is gone, whatever they wait in, and exit with its name.

Each two ranks of a job hold a connection. A process that ends closes its connections, however it ends, so its peers
hear of it at once. So they do while they wait in a collective of NCCL, which would otherwise wait for minutes.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

import torch.distributed as dist

EXIT_PEER_GONE = 17
FAREWELL, NEWS = b"bye", b"gone"
NEWS_S = 3.0


class Peers:
    """Watches the other ranks until `close`. where() tells in words what this rank is doing."""

    def __init__(self, store: dist.Store, rank: int, ranks: int, where: Any) -> None:
        self.rank, self.where = rank, where
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._said_farewell: set[int] = set()
        self._closing = False
        if ranks > 1:
            self._meet(store, ranks)
            threading.Thread(target=self._watch, name="peers", daemon=True).start()

    def _meet(self, store: dist.Store, ranks: int) -> None:
        """Lower ranks listen, higher ones connect."""
        token = str(time.time_ns()) if self.rank == 0 else None
        if token:
            store.set("peers/token", token)
        token = store.get("peers/token").decode()
        host = _address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
        with socket.create_server((host, 0), backlog=ranks) as listener:
            store.set(f"peers/{self.rank}", f"{host}:{listener.getsockname()[1]}")
            # All of them before the first connection: rank 0, which holds the store, may leave once all have connected.
            addresses = [store.get(f"peers/{other}").decode().rpartition(":") for other in range(self.rank)]
            for other, (address, _, port) in enumerate(addresses):
                connection = socket.create_connection((address, int(port)), timeout=60)
                connection.sendall(f"{token} {self.rank:6d}".encode())
                self._sockets[other] = connection
            while len(self._sockets) < ranks - 1:
                connection, _ = listener.accept()
                connection.settimeout(60)
                said = _receive(connection, len(token) + 7)
                if said.startswith(token.encode()):
                    self._sockets[int(said[len(token) :])] = connection
        for connection in self._sockets.values():
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for other, connection in self._sockets.items():
            selector.register(connection, selectors.EVENT_READ, other)
        while selector.get_map():
            for event, _ in selector.select():
                connection: Any = event.fileobj
                said = b""
                try:
                    said = connection.recv(4096)
                except OSError:
                    pass
                if said == FAREWELL:
                    self._said_farewell.add(event.data)
                if said in (b"", FAREWELL):
                    selector.unregister(connection)
                if self._closing or event.data in self._said_farewell:
                    continue
                self._leave(event.data, said)

    def _leave(self, other: int, said: bytes) -> None:
        """The news of a peer that left because another one was gone names that one."""
        reason = said.decode() if said.startswith(NEWS) else f"gone: rank {other}"
        gone = reason.partition(": ")[2]
        self._tell(f"gone: {gone}".encode())
        print(f"train: {gone} is gone; rank {self.rank} exits ({self.where()})", file=sys.stderr, flush=True)
        os._exit(EXIT_PEER_GONE)

    def _tell(self, words: bytes) -> None:
        with self._lock:
            for connection in self._sockets.values():
                try:
                    connection.sendall(words)
                except OSError:
                    pass

    def fail(self, reason: str) -> None:
        """Before this rank exits with an error that others do not have: they exit with its words."""
        if not self._closing:
            self._closing = True
            self._tell(f"gone: rank {self.rank} ({reason.splitlines()[0][:300] if reason else 'no reason'})".encode())

    def wait_for_news(self) -> None:
        """Leaves within this time if a peer is gone, which its connection tells a moment later than a collective."""
        time.sleep(NEWS_S if self._sockets else 0.0)

    def close(self) -> None:
        """All ranks are at their end, or raise the same error."""
        if not self._closing:
            self._closing = True
            self._tell(FAREWELL)


def _address_towards(host: str) -> str:
    """The address of the interface that leads to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _receive(connection: socket.socket, size: int) -> bytes:
    said = b""
    while len(said) < size:
        part = connection.recv(size - len(said))
        if not part:
            return said
        said += part
    return said
