#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Exchanges and distributed steps on this machine, over threads and over MPI: CSV in the schema of `tangram bench`.

Every mask is run with our dispatch and with min_heap, which balances area alone, so that ratios within one run show
what dispatch is worth; the rows that Ring and Ulysses would move stand beside them.
"""

import argparse
import os
import shutil
import subprocess
import sys

MASKS = {
    "full": ["--family", "full", "--seqlen", "2048"],
    "causal": ["--family", "causal", "--seqlen", "4096"],
    "window": ["--family", "sliding_window", "--window", "512,0", "--seqlen", "8192"],
    "documents": ["--total-seqlen", "16384", "--seed", "1"],
    "block_causal": ["--family", "block_causal", "--block", "512", "--seqlen", "4096"],
}
HEADS = ["--heads-q", "4", "--heads-kv", "2", "--head-dim", "64"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tangram", help="the program")
    parser.add_argument("--repeats", default="10", help="steps of each case")
    parser.add_argument("--cp-sizes", default="2,4")
    arguments = parser.parse_args()
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    mpi = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    head = None

    def bench(transport, cp_size, options, strategy=None):
        nonlocal head
        launch = ["mpirun", "-n", cp_size, *mpi] if transport == "mpi" else []
        command = [*launch, arguments.tangram, "bench", "--cp-size", cp_size, "--repeat", arguments.repeats, *options]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: {result.stderr}")
        lines = result.stdout.splitlines()
        if head is None:
            head = lines[0]
            print(head)
        for line in lines[1:]:
            print(line.replace(",tangram,", f",{strategy},") if strategy else line, flush=True)

    for transport in ["local"] + (["mpi"] if shutil.which("mpirun") else []):
        for cp_size in arguments.cp_sizes.split(","):
            bench(transport, cp_size, ["--comm-only"])
            for options in MASKS.values():
                bench(transport, cp_size, [*options, *HEADS])
                bench(transport, cp_size, [*options, *HEADS, "--dispatch", "min_heap"], "min_heap")


if __name__ == "__main__":
    main()
