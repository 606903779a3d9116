#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tries attention over the GPUs of several nodes and measures it: one command for who has a cluster.

    make bench-dist NODES=2 HOSTS=a,b [GPUS=8]
    python benchmarks/runtime/several_nodes.py build/cuda/bin/tangram --hosts a,b --gpus 8 --json several_nodes.json

Needs the program at the same path on all hosts, ssh to them without a password, and NCCL there. Ports from --port on
must be free at the first. In turn, a part that fails does not end the others:
- "rates": each GPU sends to that in its place of the next node, by NCCL with 1 to 16 thread blocks;
- "masks": both passes of three masks, rate a GPU beside that of the first node alone, and the share that was predicted;
- "faults": the last rank is killed, then stopped, during steps: every other rank must end with an error that names it
  within the timeout.
A table goes to stdout, everything to --json, after each part. Exit status 1: a part failed, or a rank was not named.

--hosts localhost,localhost forges nodes on this machine, whose ranks may share a GPU. --cpus: ranks on processors, by
TCP, which tries the command itself.
"""

import argparse
import csv
import io
import json
import re
import shlex
import sys
import time
from pathlib import Path

from node_ranks import Cluster, Run

# Share of one node's rate on at most so many nodes, by simulation (rows a GPU: 8,192, 32,768).
PREDICTED = {
    "causal": {2: (0.97, 0.98), 8: (0.96, 0.98), 64: (0.96, 0.98)},
    "documents": {2: (0.95, 0.97), 8: (0.92, 0.96), 64: (0.75, 0.93)},
    "windows": {2: (0.94, 0.97), 8: (0.94, 0.97), 64: (0.94, 0.97)},
}
CTAS = (1, 2, 4, 8, 16)
END_S = 15  # after the timeout: to notice, to tell and to end


def mask_options(mask, rows):
    return {
        "causal": ["--family", "causal", "--seqlen", str(rows)],
        "documents": ["--total-seqlen", str(rows), "--seed", "0"],
        "windows": ["--family", "sliding_window", "--window", f"{max(1, rows // 16)},0", "--seqlen", str(rows)],
    }[mask]


def predicted(mask, nodes, rows):
    for most, shares in PREDICTED[mask].items():
        if nodes <= most and rows in (8192, 32768):
            return shares[rows == 32768]
    return None


class Failed(Exception):
    """Why a part has no result."""


class Bench:
    def __init__(self, arguments, cluster):
        self.arguments, self.cluster = arguments, cluster
        self.report = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "hosts": [],
            "ranks_per_node": cluster.ranks_per_node,
            "on": "cpus" if arguments.cpus else "gpus",
            "forged": cluster.forged,
            "rates": [],
            "masks": [],
            "faults": [],
            "problems": [],
        }

    def save(self):
        if self.arguments.json:
            path = Path(self.arguments.json)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.report, indent=1) + "\n")

    def part(self, name, measure):
        try:
            measure()
        except Failed as failed:
            self.report["problems"].append(f"{name}: {failed}")
            print(f"  {name}: {failed}", flush=True)
        self.save()

    def ranks(self, nodes):
        number = str(nodes * self.cluster.ranks_per_node)
        return ["--cp-size", number] if self.arguments.cpus else ["--gpus", number]

    def shape(self):
        heads, heads_kv = self.arguments.heads.split(",")
        dtype = ["--dtype", "float32" if self.arguments.cpus else "bfloat16"]
        return ["--heads-q", heads, "--heads-kv", heads_kv, "--head-dim", str(self.arguments.head_dim), *dtype]

    def figures(self, options, nodes):
        """Figures by name that `tangram bench` prints on rank 0, and how long that took."""
        with Run(self.cluster, [self.arguments.tangram, "bench", *options], nodes, self.arguments.limit) as run:
            run.wait(self.arguments.limit)
            outcomes, took_s = run.end(), run.seconds()
        for outcome in outcomes:
            if outcome.exit_status != 0:
                raise Failed(f"rank {outcome.rank} on {self.cluster.hosts[outcome.node]}: {end_of(outcome)}")
        rows = csv.DictReader(io.StringIO(outcomes[0].out))
        found = {row["figure"]: float(row["value"]) for row in rows}
        if not found:
            raise Failed("rank 0 printed no figures")
        return found, took_s

    def look_at_hosts(self):
        """Who has the program, and which."""
        one_each = Cluster(**{**vars(self.cluster), "ranks_per_node": 1})
        with Run(one_each, [self.arguments.tangram, "--version"], len(one_each.hosts), self.arguments.limit) as run:
            run.wait(60)
            outcomes = run.end()
        for outcome in outcomes:
            host = self.cluster.hosts[outcome.node]
            if outcome.exit_status != 0:
                raise SystemExit(
                    f"several_nodes: {host} must have {self.arguments.tangram} and take commands by ssh without a "
                    f"password (got {end_of(outcome)})"
                )
            self.report["hosts"].append({"name": host, "version": outcome.out.strip()})
        versions = {host["version"] for host in self.report["hosts"]}
        if len(versions) > 1:
            raise SystemExit(f"several_nodes: all hosts must have one version (got {', '.join(sorted(versions))})")

    def rates(self):
        nodes = len(self.cluster.hosts)
        for ctas in (None,) if self.arguments.cpus else CTAS:
            options = ["--comm-only", "--repeat", "2", *self.ranks(nodes)]
            if ctas:
                options += ["--transport", "nccl", "--max-ctas", str(ctas)]
            figures, _ = self.figures(options, nodes)
            rate = {"max_ctas": ctas, "GB_per_s": figures["link_rate"], "message_us": figures["message_time"] * 1e6}
            if "thread_blocks" in figures:
                rate["thread_blocks"] = int(figures["thread_blocks"])
            self.report["rates"].append(rate)
            name = f"{ctas:2} thread blocks" if ctas else "TCP"
            print(f"  {name}: {rate['GB_per_s']:.2f} GB/s each way, {rate['message_us']:.0f} us a message", flush=True)

    def rate_of_rank(self, mask, rows, nodes):
        """FLOP/s of a step a rank, and the figures."""
        size = nodes * self.cluster.ranks_per_node
        options = [*mask_options(mask, rows * size), *self.ranks(nodes), *self.shape(), "--repeat", "5"]
        figures, _ = self.figures(options, nodes)
        seconds = [figures["forward_time"], figures["backward_time"]]
        flops = seconds[0] * figures["forward_rate"] + seconds[1] * figures["backward_rate"]
        return flops * 1e9 / sum(seconds) / size, figures

    def mask(self, mask, rows):
        nodes = len(self.cluster.hosts)
        alone, _ = self.rate_of_rank(mask, rows, 1)
        rate, figures = self.rate_of_rank(mask, rows, nodes)
        wanted = None if self.arguments.cpus or self.cluster.forged else predicted(mask, nodes, rows)
        share = rate / alone
        self.report["masks"].append(
            {
                "mask": mask,
                "rows_of_rank": rows,
                "forward_s": figures["forward_time"],
                "backward_s": figures["backward_time"],
                "bytes_between_nodes": [
                    figures.get(f"{name}_traffic_between_nodes") for name in ("forward", "backward")
                ],
                "tflops_of_rank": rate * 1e-12,
                "tflops_of_rank_one_node": alone * 1e-12,
                "share": share,
                "predicted_share": wanted,
                "reached": None if wanted is None else share >= wanted,
            }
        )
        print(f"  {mask}, {rows} rows: {rate * 1e-12:.3g} TFLOP/s a rank, {share:.2f} of one node's", end="")
        if wanted is not None:
            print(f", predicted {wanted:.2f}: {'reached' if share >= wanted else 'NOT reached'}", end="")
        print(flush=True)

    def fault(self, signal_name):
        nodes, lost = len(self.cluster.hosts), self.cluster.size - 1
        timeout_s = self.arguments.timeout
        rows = self.arguments.fault_rows * self.cluster.size
        options = [*mask_options("causal", rows), *self.ranks(nodes), *self.shape()]
        _, calm_s = self.figures([*options, "--repeat", "1"], nodes)  # as long as it takes to reach the first step
        survivors = [rank for rank in range(self.cluster.size) if rank != lost]
        command = [self.arguments.tangram, "bench", *options, "--repeat", "1000"]
        with Run(self.cluster, command, nodes, timeout_s) as run:
            run.wait(calm_s + 1)
            sent, sent_s = run.send(lost, signal_name), run.seconds()
            run.wait(sent_s + timeout_s + END_S, survivors)
            outcomes = run.end()
        if not sent or any(outcomes[rank].exit_status == 0 for rank in survivors):
            raise Failed(f"the ranks had ended before one was lost: rank 0: {end_of(outcomes[0])}")
        told = []
        for rank in survivors:
            outcome = outcomes[rank]
            named = re.search(rf"\brank {lost}\b", outcome.errors) is not None
            ended = outcome.ended_s is not None
            told.append(
                {
                    "rank": rank,
                    "ended": ended,
                    "exit_status": outcome.exit_status,
                    "seconds": outcome.ended_s - sent_s if ended else None,
                    "names_rank": named,
                    "error": end_of(outcome),
                }
            )
        good = all(one["ended"] and one["names_rank"] for one in told)
        self.report["faults"].append({"signal": signal_name, "rank": lost, "ok": good, "survivors": told})
        for one in told:
            when = f"{one['seconds']:.1f} s" if one["ended"] else "NEVER"
            print(f"  {signal_name} of rank {lost}: rank {one['rank']} ended after {when}: {one['error']}", flush=True)
        if not good:
            raise Failed("a rank did not end, or did not name the one that was lost")

    def run(self):
        self.look_at_hosts()
        parts = self.arguments.parts.split(",")
        if "rates" in parts:
            print("rates between nodes", flush=True)
            self.part("rates", self.rates)
        if "masks" in parts:
            print("masks", flush=True)
            for rows in (int(rows) for rows in self.arguments.rows.split(",")):
                for mask in PREDICTED:
                    self.part(f"{mask}, {rows} rows", lambda mask=mask, rows=rows: self.mask(mask, rows))
        if "faults" in parts:
            print("faults", flush=True)
            for signal_name in ("KILL", "STOP"):
                self.part(f"{signal_name} of a rank", lambda name=signal_name: self.fault(name))
        self.save()
        return 1 if self.report["problems"] else 0


def end_of(outcome):
    """The last line that a rank said, or how it ended."""
    lines = outcome.errors.strip().splitlines()
    said = lines[-1] if lines else "said nothing"
    return said if outcome.exit_status is not None else f"did not end; {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tangram", help="the program, at the same path on all hosts")
    parser.add_argument("--hosts", required=True, help="by node, as ssh takes them, separated by commas")
    parser.add_argument("--nodes", type=int, help="must be the number of hosts")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs, and so ranks, of each node")
    parser.add_argument("--cpus", action="store_true", help="ranks compute on processors instead")
    parser.add_argument("--json", help="where the report goes")
    parser.add_argument("--parts", default="rates,masks,faults")
    parser.add_argument("--rows", default="8192", help="of a GPU, a list")
    parser.add_argument("--heads", default="64,8", help="of queries, of keys and values")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--fault-rows", type=int, default=8192, help="of a GPU, of the steps in which a rank is lost")
    parser.add_argument("--timeout", type=float, default=20, help="seconds within which a loss must be noticed")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a measurement")
    parser.add_argument("--ssh", default="", help="in place of ssh: HOST and a command follow")
    parser.add_argument("--address", help="by which other hosts reach the first one; default its name")
    parser.add_argument("--port", type=int, default=29500, help="the first of some dozens that are free there")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all ranks")
    parser.add_argument("--forged", action="store_true", help="the hosts are one machine; so where two have one name")
    arguments = parser.parse_args()
    hosts = [host for host in arguments.hosts.split(",") if host]
    if len(hosts) < 2 or arguments.nodes not in (None, len(hosts)):
        parser.error(f"--hosts must name each of the nodes, at least two (got {len(hosts)}: {arguments.hosts})")
    if arguments.gpus < 1:
        parser.error(f"--gpus must be the number of GPUs of a node (got {arguments.gpus})")
    arguments.tangram = str(Path(arguments.tangram).resolve())
    cluster = Cluster(
        hosts=hosts,
        ranks_per_node=arguments.gpus,
        ssh=shlex.split(arguments.ssh),
        address=arguments.address or hosts[0].rpartition("@")[2].replace("localhost", "127.0.0.1"),
        port=arguments.port,
        env=dict(pair.split("=", 1) for pair in arguments.env),
        forged=arguments.forged or len(set(hosts)) < len(hosts),
    )
    sys.exit(Bench(arguments, cluster).run())


if __name__ == "__main__":
    main()
