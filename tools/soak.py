#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training steps for a long time, in pieces that end when a rank is killed: `make soak SECONDS=1800`.

PYTHONPATH=build/cpu/python .venv/bin/python tools/soak.py [--seconds 1800] [--piece 120] [--ranks 4] [--device cpu]
    [--attention tangram] [-- arguments of examples/13_train_long_context/train.py]
Each rank checks what tests/python/ranks/soak_checks.py says. In every piece one rank, drawn at random, is killed at a
random moment after the first checkpoint of the piece. Then all others must exit within moments and name it. The next
piece resumes from the newest checkpoint, and steps that are run again must have the losses they had.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RANK = ROOT / "tests" / "python" / "ranks" / "soak_checks.py"
EXIT_PEER_GONE = 17
NAMED_WITHIN_S = 30.0
START_S = 600.0  # imports of all ranks on a busy machine
SAME = {"cpu": 1e-5, "cuda": 1e-2}  # relative: GPUs add bfloat16 gradients in any order
TOYS = {
    "cpu": "--size toy --tokens 400 --lr 1e-3 --eps 1e-4",
    "cuda": "--size 1B --layers 4 --tokens 8192",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fail(text: str) -> None:
    raise SystemExit(f"soak: {text}")


class Piece:
    """Ranks from their start to the death of one of them."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        env = {
            **os.environ,
            "WORLD_SIZE": str(arguments.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "TANGRAM_NUM_THREADS": "1",
            "SOAK_CHECK_EVERY_S": str(min(60.0, seconds / 4)),
            "SOAK_SAVE_EVERY_S": str(min(20.0, seconds / 6)),
        }
        options = f"--out {folder} --resume --steps 1000000000 --attention {arguments.attention}"
        words = [*options.split(), "--device", arguments.device, *(arguments.train or TOYS[arguments.device].split())]
        self.logs = [folder / f"rank{rank}.txt" for rank in range(arguments.ranks)]
        (folder / "status.json").unlink(missing_ok=True)
        self.ranks = []
        for rank, log in enumerate(self.logs):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("w") as file:
                command = [sys.executable, str(RANK), *words]
                self.ranks.append(subprocess.Popen(command, env={**env, **of_rank}, stdout=file, stderr=file))

    def said(self) -> str:
        return "\n".join(f"rank {i}: {log.read_text()[-1500:]}" for i, log in enumerate(self.logs))

    def status(self) -> dict[str, int]:
        try:
            found: dict[str, int] = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {"steps": 0, "checks": 0, "checkpoint": False}
        return found

    def run(self, victim: int) -> dict[str, int]:
        """Kills the victim; returns what was done. Ends the program where something is not as it must be."""
        try:
            self._wait(lambda: self.status()["steps"] > 0, START_S, "the first step")
            # Not before there is a checkpoint and a check of this piece, else at any moment.
            after = self.seconds * (0.6 + 0.4 * random.random())
            begin = time.monotonic()
            is_ready = lambda: self.status()["checkpoint"] and self.status()["checks"] > 0  # noqa: E731
            self._wait(is_ready, 4 * self.seconds + START_S, "a checkpoint and a check")
            while time.monotonic() - begin < after:
                self._all_run()
                time.sleep(0.05)
            status = self.status()
            self.ranks[victim].send_signal(signal.SIGKILL)
            for rank, process in enumerate(self.ranks):
                try:
                    code = process.wait(NAMED_WITHIN_S)
                except subprocess.TimeoutExpired:
                    fail(f"rank {rank} did not notice in {NAMED_WITHIN_S:g} s that {victim} is gone\n{self.said()}")
                if rank != victim and (
                    code != EXIT_PEER_GONE or f"train: rank {victim} is gone" not in self.logs[rank].read_text()
                ):
                    fail(f"rank {rank} ended with {code} and did not name rank {victim}\n{self.said()}")
            return status
        finally:
            for process in self.ranks:
                process.kill()
                process.wait()

    def _all_run(self) -> None:
        for rank, process in enumerate(self.ranks):
            if process.poll() is not None:
                fail(f"rank {rank} ended with {process.returncode} before any was killed\n{self.said()}")

    def _wait(self, condition: object, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            self._all_run()
            if time.monotonic() > deadline:
                fail(f"{what} did not come within {seconds:g} s\n{self.said()}")
            time.sleep(0.05)


def losses(folder: Path) -> dict[int, list[float]]:
    """By step: of each time that it ran."""
    found: dict[int, list[float]] = {}
    with (folder / "steps.csv").open() as file:
        for row in csv.DictReader(file):
            if row["loss"]:  # the last line may be cut off by a kill
                found.setdefault(int(row["step"]), []).append(float(row["loss"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--piece", type=float, default=120.0, help="seconds of steps, at most, until a rank is killed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--attention", default="tangram")
    parser.add_argument("train", nargs="*", help="arguments of train.py instead of a toy's, behind --")
    arguments = parser.parse_args()
    begin, pieces, steps, checks = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while (left := arguments.seconds - (time.monotonic() - begin)) > 0:
            victim = random.randrange(arguments.ranks)
            piece = min(arguments.piece, max(left, 8.0))
            status = Piece(folder, arguments, piece).run(victim)
            pieces, steps, checks = pieces + 1, steps + status["steps"], checks + status["checks"]
            again = {step: values for step, values in losses(folder).items() if len(values) > 1}
            for step, values in again.items():
                if max(values) - min(values) > SAME[arguments.device] * abs(values[0]):
                    fail(f"step {step} had losses {values} before and after a rank was killed")
            print(
                f"piece {pieces}: {status['steps']} steps, {status['checks']} layers compared, rank {victim} killed "
                f"and named; {len(again)} steps ran again with the losses they had; {time.monotonic() - begin:.0f} s",
                flush=True,
            )
        if pieces > 1 and not again:
            fail("no step ran again: nothing was resumed")
    print(f"soak: {steps} steps in {pieces} pieces, {checks} layers compared, all as it must be")


if __name__ == "__main__":
    main()
