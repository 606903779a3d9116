# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated shares of a rank's rate over the number of GPUs: runs `tangram simulate`, or draws what it printed.

    python benchmarks/plan/nodes_svg.py --simulate build/cpu/bin/tangram docs/results/data/nodes_scale.csv
    python benchmarks/plan/nodes_svg.py docs/results/data/nodes_scale.csv --svg docs/results/data/nodes_scale.svg

A panel for each mask, a line for each strategy: 8,192 rows a rank, eight ranks a node, 64/8 heads of dim 128.
"""

import argparse
import csv
import math
import subprocess
from pathlib import Path

MASKS = {
    "documents": ["--family", "varlen_causal", "--seed", "100"],
    "causal": ["--family", "causal"],
    "window": ["--family", "sliding_window", "--window", "4095,0"],
}
NODES = [2**n for n in range(10)]
RANKS_PER_NODE = 8
SETTINGS = ["--rows-per-rank", "8192", "--heads-q", "64", "--heads-kv", "8", "--strategies", "all", "--csv"]
FIGURES = {"efficiency": "share", "between_traffic": "between_mib", "busiest_card_traffic": "busiest_card_mib"}
COLUMNS = ["mask", "nodes", "gpus", "strategy", *FIGURES.values()]
STRATEGIES = {
    "tangram_nodes": ("Tangram, planned for nodes", "#2f6db5"),
    "tangram_hierarchical": ("Tangram, flat plan, relays", "#54a24b"),
    "tangram": ("Tangram, flat plan", "#17becf"),
    "usp": ("USP", "#d9822b"),
    "loong_train": ("LoongTrain", "#b279a2"),
    "hybrid_cp": ("HybridCP", "#9c755f"),
    "ring": ("Ring", "#e45756"),
    "all_gather": ("all-gather", "#777777"),
    "ulysses": ("Ulysses", "#bab0ac"),
    "hcms": ("HCMS", "#eeca3b"),
}
PANEL_W, PANEL_H, LEFT, TOP, GAP, BOTTOM = 250, 200, 48, 36, 20, 100
MEBIBYTE = 2**20


def simulate(program: str, path: Path) -> None:
    nodes = ",".join(str(count) for count in NODES)
    lines = []
    for mask, options in MASKS.items():
        command = [program, "simulate", *options, "--nodes", nodes, *SETTINGS]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cells: dict[tuple[int, str], dict[str, float]] = {}
        for row in csv.DictReader(printed.splitlines()):
            if row["figure"] in FIGURES:
                cell = cells.setdefault((int(row["cp_size"]), row["strategy"]), {})
                cell[FIGURES[row["figure"]]] = float(row["value"])
        for (gpus, strategy), cell in sorted(cells.items()):
            busiest = f"{cell['busiest_card_mib'] / MEBIBYTE:.1f}" if "busiest_card_mib" in cell else ""
            between = f"{cell['between_mib'] / MEBIBYTE:.1f}"
            lines.append([mask, gpus // RANKS_PER_NODE, gpus, strategy, f"{cell['share']:.4f}", between, busiest])
    with path.open("w", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(lines)


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def draw(rows: list[dict[str, str]]) -> str:
    width = LEFT + len(MASKS) * (PANEL_W + GAP)
    height = TOP + PANEL_H + BOTTOM
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    parts = [head + 'font-size="11">', f'<rect width="{width}" height="{height}" fill="white"/>']
    last = math.log2(NODES[-1])
    for panel, mask in enumerate(MASKS):
        left = LEFT + panel * (PANEL_W + GAP)
        parts.append(text(left + PANEL_W / 2, TOP - 10, mask))
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = TOP + PANEL_H * (1 - share)
            parts.append(f'<path d="M{left} {y:.0f}h{PANEL_W}" stroke="#dddddd"/>')
            if panel == 0:
                parts.append(text(left - 6, y + 4, f"{share:g}", "end"))
        for nodes in NODES[::3]:
            x = left + PANEL_W * math.log2(nodes) / last
            parts.append(text(x, TOP + PANEL_H + 15, f"{nodes * RANKS_PER_NODE:,}"))
        for strategy, (_, colour) in reversed(STRATEGIES.items()):
            cells = [row for row in rows if row["mask"] == mask and row["strategy"] == strategy]
            points = " ".join(
                f"{left + PANEL_W * math.log2(int(row['nodes'])) / last:.1f},"
                f"{TOP + PANEL_H * (1 - float(row['share'])):.1f}"
                for row in sorted(cells, key=lambda row: int(row["nodes"]))
            )
            if points:
                wide = 2.5 if strategy == "tangram_nodes" else 1.2
                line = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}"/>'
                parts.append(line)
    parts.append(text(width / 2, TOP + PANEL_H + 32, "GPUs (simulated share of one rank's rate)"))
    for index, (name, colour) in enumerate(STRATEGIES.values()):
        x, y = LEFT + index % 4 * 200, TOP + PANEL_H + 52 + index // 4 * 16
        parts.append(f'<path d="M{x} {y - 4}h16" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(text(x + 22, y, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--simulate", metavar="PROGRAM", help="run this program and write the CSV file")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    if options.simulate:
        simulate(options.simulate, options.csv)
    if options.svg:
        with options.csv.open(encoding="utf-8") as file:
            options.svg.write_text(draw(list(csv.DictReader(file))), encoding="utf-8")


if __name__ == "__main__":
    main()
