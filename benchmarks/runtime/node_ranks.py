# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of the program on several hosts, started by ssh with the variables of torchrun, and what became of each."""

import os
import re
import secrets
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

OWN_HOST = ("localhost", "127.0.0.1")
PID = re.compile(rb"^pid of the rank: (\d+)$", re.MULTILINE)


@dataclass
class Cluster:
    """Where ranks run."""

    hosts: list[str]  # by node, as ssh takes them
    ranks_per_node: int
    ssh: list[str]  # what runs a command on a host that follows; empty: ssh, and without it on localhost
    address: str  # of rank 0, by which the others reach it
    port: int  # the first of those that runs take one after the other
    env: dict[str, str]
    forged: bool  # hosts are one machine, whose ranks claim to be on several

    @property
    def size(self):
        return len(self.hosts) * self.ranks_per_node

    def command(self, node, words):
        host = self.hosts[node]
        if not self.ssh and host in OWN_HOST:
            return list(words)
        return [*(self.ssh or ["ssh", "-o", "BatchMode=yes"]), host, *words]

    def next_address(self):
        self.port += 1
        return f"tcp:{self.address}:{self.port - 1}"


@dataclass
class Outcome:
    rank: int
    node: int
    exit_status: int | None = None  # None: it was ended, because it did not end by itself
    ended_s: float | None = None
    out: str = ""
    errors: str = ""


@dataclass
class Run:
    """The ranks of one command; those of the first `nodes` nodes."""

    cluster: Cluster
    command: list[str]
    nodes: int
    timeout_s: float  # of the ranks' waits
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        size = self.nodes * self.cluster.ranks_per_node
        secret, address = secrets.token_hex(32), self.cluster.next_address()
        self.outcomes, self._processes, self._threads = [], [], []
        self._pids: dict[int, int] = {}
        for rank in range(size):
            node, local_rank = divmod(rank, self.cluster.ranks_per_node)
            env = {
                "TORCHELASTIC_RUN_ID": "several_nodes",
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(local_rank),
                "TANGRAM_ADDRESS": address,
                "TANGRAM_SECRET": secret,
                "TANGRAM_TIMEOUT_S": f"{self.timeout_s:g}",
            }
            if self.cluster.forged:
                env |= {"TANGRAM_NODE_ID": f"node_{node}", "NCCL_HOSTID": f"node_{node}"}
                env |= {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
            self._start(rank, node, env | self.cluster.env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()  # also when the user has interrupted it

    def _start(self, rank, node, env):
        process = subprocess.Popen(
            self.cluster.command(node, ["sh", "-s"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # By standard input: a list of processes would show the secret.
        script = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
        script += f'echo "pid of the rank: $$" >&2\nexec {shlex.join(self.command)} </dev/null\n'
        outcome = Outcome(rank, node)
        self._processes.append(process)
        self.outcomes.append(outcome)
        for stream, what in ((process.stdout, "out"), (process.stderr, "errors")):
            thread = threading.Thread(target=self._read, args=(stream, outcome, what), daemon=True)
            thread.start()
            self._threads.append(thread)
        try:
            process.stdin.write(script.encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # its exit status says why

    def _read(self, stream, outcome, what):
        text = b""
        for line in stream:
            if what == "errors" and (found := PID.match(line)):
                self._pids[outcome.rank] = int(found[1])
            else:
                text += line
        setattr(outcome, what, text.decode(errors="replace"))

    def send(self, rank, name):
        """Sends a signal to a rank's program. Returns whether it was there."""
        if (pid := self._pids.get(rank)) is None:
            return False
        words = self.cluster.command(self.outcomes[rank].node, ["sh", "-s"])
        return subprocess.run(words, input=f"kill -{name} {pid}\n".encode(), capture_output=True).returncode == 0

    def seconds(self):
        return time.monotonic() - self.begin

    def has_ended(self, ranks=None):
        """Whether these have ended by themselves; all of them without a list."""
        ended = True
        for rank, (process, outcome) in enumerate(zip(self._processes, self.outcomes, strict=True)):
            if outcome.ended_s is None and process.poll() is not None:
                outcome.exit_status, outcome.ended_s = process.returncode, self.seconds()
            ended &= outcome.ended_s is not None or (ranks is not None and rank not in ranks)
        return ended

    def wait(self, end_s, ranks=None):
        """Until these have ended, or seconds after the start. Returns whether they have."""
        while not self.has_ended(ranks):
            if self.seconds() > end_s:
                return False
            time.sleep(0.02)
        return True

    def end(self):
        """Ends what still runs, stopped ranks, too, and returns what became of all."""
        self.has_ended()
        for process, outcome in zip(self._processes, self.outcomes, strict=True):
            if outcome.ended_s is not None:
                continue
            self.send(outcome.rank, "KILL")
            try:
                process.wait(5)  # of ssh, when its command has ended
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for thread in self._threads:
            thread.join(5)
        return self.outcomes
