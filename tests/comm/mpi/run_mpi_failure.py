# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Starts mpi_failure over three ranks, rank 1 of which fails, and checks what the survivors report and when.

mpirun runs with recovery on, so that it does not end the job itself: it is the library that must notice.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time

NUM_RANKS = 3
VICTIM = 1
TIMEOUT_S = 4  # within which processes start on a busy machine
NEVER_S = 40  # where errors move at once
# From the failure to the last survivor's report, the start of all processes on a busy machine included.
LIMIT_S = 60

EXPECTED = {
    "kill": ("CommError", r"group_cast 'kv stage 2': rank 1 has ended without taking part"),
    "leave": ("CommError", r"group_cast 'kv stage 2': rank 1 has ended without taking part"),
    "stop": ("Timeout", r"group_cast 'kv stage 2': rank 1 did not take part within 4 s"),
    "silent": ("Timeout", r"group_cast 'kv stage 2': rank 1 did not take part within 4 s"),
    "throw": ("CommError", r"rank 1 gave up: no luck"),
    "absent": ("Timeout", r"MPI_Init: rank 1 did not start within 4 s"),
    # Who had come and was stopped then was "some rank".
    "stop_in_init": ("Timeout", r"MPI_Init: rank 1 came, but did not answer within 4 s"),
}


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=EXPECTED)
    parser.add_argument("command", nargs="+", help="mpirun with its options, and the program")
    args = parser.parse_args()
    kind, pattern = EXPECTED[args.mode]
    environment = dict(os.environ, TANGRAM_TIMEOUT_S=str(TIMEOUT_S if kind == "Timeout" else NEVER_S))
    if not os.access(args.command[-1], os.X_OK):
        sys.exit(f"run_mpi_failure: the program must be there and executable (got {args.command[-1]})")
    command = [*args.command, args.mode]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids, survivors, output = [], {}, []
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            output.append(line)
            if match := re.match(r"PID (\d+) (\d+)", line):
                pids.append(int(match[2]))
            if match := re.match(r"SURVIVOR (\d+) (\w+) (.*)", line):
                survivors[int(match[1])] = (match[2], match[3])
            if len(survivors) == NUM_RANKS - 1:
                break
    finally:
        watchdog.cancel()
        process.terminate()
        time.sleep(0.2)
        for pid in pids:
            end(pid)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    for rank in range(NUM_RANKS):
        if rank == VICTIM:
            continue
        got = survivors.get(rank)
        if got is None or got[0] != kind or not re.search(pattern, got[1]):
            sys.exit(f"rank {rank}: expected {kind} with '{pattern}', got {got}\n" + "".join(output))
    print(f"survivors reported: {survivors}")


if __name__ == "__main__":
    main()
