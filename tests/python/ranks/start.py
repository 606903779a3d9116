# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runs Python scripts in processes forked from one that has imported torch, which takes longer than most scripts."""

import multiprocessing
import os
import random
import runpy
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

# Before the server starts and imports torch: processes share two cores.
os.environ["OMP_NUM_THREADS"] = os.environ["TANGRAM_NUM_THREADS"] = "1"

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch.distributed", "numpy", "tangram.distributed"])


def run_as_main(arguments, env, printed):
    with open(printed, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(env)
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).parent))
    random.seed(0)
    sys.modules["torch"].manual_seed(int(env.get("RANK", 0)))  # the same numbers in every run, others on each rank
    status = 1
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def free_ports(count=1):
    """Ports outside the ephemeral range: no process takes them before rank 0 has imported and listens."""
    ports = []
    # Tests that run beside this one have seeds.
    for port in random.SystemRandom().sample(range(20000, 32000), 100 + count):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"too few ports are free (got {len(ports)} of {count})")


def run_script(*arguments, ranks=0, timeout=400, status=0, **env):
    """What `python SCRIPT ...` prints, or with `ranks` that many of them with torchrun's variables. All must end with
    `status`, or each with its own of a list.

    Ranks that are still there when one has failed have ten seconds left, so that they can say what they saw.
    """
    arguments = [str(a) for a in arguments]
    statuses = status if isinstance(status, list) else [status] * max(ranks, 1)
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()[0])} if ranks else {}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(rank)) for rank in range(max(ranks, 1))]
        processes = []
        for rank, log in enumerate(logs):
            log.touch()
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks else {}
            processes.append(SERVER.Process(target=run_as_main, args=(arguments, {**env, **group, **of_rank}, log)))
            processes[-1].start()
        deadline = time.monotonic() + timeout
        for process in processes:
            while process.is_alive() and time.monotonic() < deadline:
                process.join(0.05)
                if any(p.exitcode not in (None, s) for p, s in zip(processes, statuses, strict=True)):
                    deadline = min(deadline, time.monotonic() + 10)
        for process in processes:
            process.kill()
            process.join()
        printed = "".join(log.read_text() for log in logs)
    assert [process.exitcode for process in processes] == statuses, printed[-6000:]
    return printed
