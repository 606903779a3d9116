#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Draws what `bench_dist_gpu --trace FILE` recorded: one pass of several ways below each other, on one time axis.

usage: trace_svg.py --mask MASK --pass forward|backward --ways ulysses,hcms FILE.0.csv [FILE.1.csv ...] > picture.svg
"""

import argparse
import csv
import sys

WIDTH, LABEL, LANE, GAP = 860, 150, 18, 10
COLOURS = {"attention": "#2f6db5", "copies": "#9fb8d3", "to peers": "#d9822b", "waiting": "#d8d8d8"}


def kind_of(row):
    name = row["name"]
    if name == "copy to peer":
        return "to peers"
    if name in ("forward_kernel", "backward_kernel", "before_kernel", "after_kernel"):
        return "attention"
    return "waiting" if name in ("wait_flags", "begin_epoch", "end_epoch") else "copies"


def passes_of(rows):
    """Cuts the activities of one rank at the three largest gaps: two forward and two backward passes in turn."""
    rows = sorted(rows, key=lambda row: row["begin"])
    gaps, end = [], rows[0]["end"]
    for i, row in enumerate(rows[1:], 1):
        gaps.append((row["begin"] - end, i))
        end = max(end, row["end"])
    cuts = sorted(i for _, i in sorted(gaps)[-3:])
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def load(paths, mask):
    ways = {}
    for path in paths:
        with open(path) as file:
            for row in csv.DictReader(file):
                if row["mask"] != mask:
                    continue
                row["begin"], row["end"] = int(row["begin_ns"]), int(row["end_ns"])
                ways.setdefault(row["overlap"], {}).setdefault(int(row["rank"]), []).append(row)
    return ways


def bar(x, y, width, kind):
    return f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.4):.1f}" height="{LANE - 3}" fill="{COLOURS[kind]}"/>'


def text(x, y, content, anchor="start"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>'


def draw(ways, names, number):
    lanes, longest = [], 0
    for name in names:
        cut = {rank: passes_of(rows)[number] for rank, rows in sorted(ways[name].items())}
        first = min(row["begin"] for rows in cut.values() for row in rows)
        longest = max(longest, *(row["end"] - first for rows in cut.values() for row in rows))
        for rank, rows in cut.items():
            own = [row for row in rows if kind_of(row) != "to peers"]
            sent = [row for row in rows if kind_of(row) == "to peers"]
            lanes.append((f"{name}, GPU {rank}", own, first))
            lanes.append(("to peers", sent, first))
        lanes.append(None)
    scale = (WIDTH - LABEL - 10) / longest
    parts, y = [], 26
    for lane in lanes:
        if lane is None:
            y += GAP
            continue
        label, rows, first = lane
        parts.append(text(LABEL - 6, y + LANE - 6, label, "end"))
        for row in rows:
            x = LABEL + (row["begin"] - first) * scale
            parts.append(bar(x, y, (row["end"] - row["begin"]) * scale, kind_of(row)))
        y += LANE
    x = LABEL
    for kind, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="6" width="10" height="10" fill="{colour}"/>' + text(x + 14, 15, kind))
        x += 100
    parts.append(text(WIDTH - 10, y + 12, f"{longest / 1e3:.0f} µs", "end"))
    parts.append(f'<line x1="{LABEL}" y1="{y}" x2="{WIDTH - 10}" y2="{y}" stroke="#666"/>')
    style = f'viewBox="0 0 {WIDTH} {y + 20}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {style}>\n<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, *parts, "</svg>"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mask", required=True)
    parser.add_argument("--pass", dest="which", choices=["forward", "backward"], default="forward")
    parser.add_argument("--ways", required=True, help="comma-separated, as in the column overlap")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    ways = load(args.files, args.mask)
    names = args.ways.split(",")
    missing = [name for name in names if name not in ways]
    if missing:
        sys.exit(f"trace_svg: not in the files: {', '.join(missing)} (there are {', '.join(ways)})")
    print(draw(ways, names, 2 if args.which == "forward" else 3))


if __name__ == "__main__":
    main()
