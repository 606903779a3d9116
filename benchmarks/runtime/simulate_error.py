#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""How far `tangram simulate` is from measured steps and counted traffic on this machine.

Measures the machine's constants, then runs steps over threads and, where mpirun is there, over processes, and prints
one CSV line for each pass: predicted seconds, those of the fastest step, processor seconds of all ranks together (which
others that use the machine disturb least) against predicted seconds times the cores at work, and predicted and counted
bytes. One thread for each rank.
"""

import argparse
import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

CASES = {
    "full": ["--family", "full", "--seqlen", "2048"],
    "causal": ["--family", "causal", "--seqlen", "3072"],
    "window": ["--family", "sliding_window", "--window", "1024,0", "--seqlen", "4096"],
    "documents": ["--total-seqlen", "8192", "--seed", "1"],
    "block_causal": ["--family", "block_causal", "--block", "512", "--seqlen", "3072"],
}
HEADS = ["--heads-q", "4", "--heads-kv", "2", "--head-dim", "64"]


def run(command, environment):
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return result.stdout


def mpirun(num_ranks):
    options = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return ["mpirun", "-n", str(num_ranks), *options]


def measure_machine(tangram, path, cores, environment):
    doctor = [tangram, "doctor", "--measure", path, "--head-dims", "64", "--dtypes", "float32"]
    run(doctor, environment)
    if shutil.which("mpirun"):
        run([*mpirun(cores), *doctor], environment)


def figures_of_step(tangram, transport, options, repeats, environment):
    launch = mpirun(options[1]) if transport == "mpi" else []
    text = run([*launch, tangram, "bench", *options, "--repeat", str(repeats)], environment)
    rows = csv.DictReader(io.StringIO(text))
    return {row["figure"]: float(row["value"]) for row in rows if row["strategy"] == "tangram"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tangram", help="the program")
    parser.add_argument("--repeats", type=int, default=30, help="steps of each case")
    parser.add_argument("--machine", help="constants to use instead of measuring them")
    arguments = parser.parse_args()
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    cores = os.cpu_count() or 1
    errors = {"fastest step": [], "processor time": []}
    with tempfile.TemporaryDirectory() as folder:
        machine = arguments.machine or os.path.join(folder, "machine.json")
        if not arguments.machine:
            measure_machine(arguments.tangram, machine, cores, environment)
        print(
            "transport,case,cp_size,pass,predicted_s,fastest_s,predicted_over_fastest,processor_s,"
            "predicted_over_processor,predicted_bytes,counted_bytes"
        )
        for transport in ["local"] + (["mpi"] if shutil.which("mpirun") else []):
            for case, cp_size in [(case, cp_size) for case in CASES for cp_size in (1, 2, 4)]:
                if transport == "mpi" and cp_size == 1:
                    continue
                environment["TANGRAM_NUM_THREADS"] = str(cp_size)
                options = ["--cp-size", str(cp_size), *CASES[case], *HEADS]
                found = figures_of_step(arguments.tangram, transport, options, arguments.repeats, environment)
                options += ["--dtype", "fp32", "--strategies", "tangram", "--json"]
                options += ["--machine", machine, "--machine-transport", transport]
                simulated = run([arguments.tangram, "simulate", *options], environment)
                prediction = json.loads(simulated)["predictions"][0]
                for name in ("forward", "backward"):
                    predicted_s = prediction[name + "_s"]
                    fastest_s = found[name + "_time_fastest"]
                    processor_s = found[name + "_processor_time"]
                    of_processor = predicted_s * min(cp_size, cores) / processor_s
                    errors["fastest step"].append(abs(predicted_s / fastest_s - 1))
                    errors["processor time"].append(abs(of_processor - 1))
                    print(
                        f"{transport},{case},{cp_size},{name},{predicted_s:.6f},{fastest_s:.6f},"
                        f"{predicted_s / fastest_s:.3f},{processor_s:.6f},{of_processor:.3f},"
                        f"{prediction[name + '_bytes']:.0f},{found[name + '_traffic']:.0f}",
                        flush=True,
                    )
    for what, values in errors.items():
        values.sort()
        print(
            f"off from the {what}: median {statistics.median(values):.3f}, nine in ten within "
            f"{values[int(0.9 * len(values))]:.3f}, largest {values[-1]:.3f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
