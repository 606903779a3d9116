# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Draws what block_masks.py measured, and writes its table into a page.

Rates over the share of visible blocks: a column of panels for each block size, forward above, backward below, a line
for each system that was measured. The table of `--markdown PAGE` takes the place of what stands between
`<!-- rates -->` and `<!-- end of rates -->` there. Of several measurements of one cell the last one counts.

    python benchmarks/attn/block_masks_svg.py docs/results/data/block_masks_h200.csv [MORE.csv ...] \
        --svg docs/results/data/block_masks_h200.svg --markdown docs/results/block_masks_h200.md [--rows 16384]
        [--head-dim 128] [--day 2026-11-24]
"""

import argparse
import csv
import math
import re
from pathlib import Path

SYSTEMS = {
    "tangram": ("Tangram", "#2f6db5"),
    "fa4": ("FlashAttention-4", "#54a24b"),
    "flex": ("cuDNN Flex", "#d9822b"),
    "torch_flex": ("PyTorch FlexAttention", "#b279a2"),
}
PASSES = ("forward", "backward")
PANEL_W, PANEL_H = 190, 160
LEFT, TOP, GAP_X, GAP_Y, BOTTOM = 52, 48, 18, 34, 40
TABLE = re.compile(r"(<!-- rates -->\n).*?(<!-- end of rates -->)", re.DOTALL)


def load(paths):
    """{(head_dim, rows, block, share, pass): {system: TFLOP/s}}."""
    cells = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if row["mask"] == "mask":  # the head of a run that was appended
                    continue
                block = int(row["mask"].removeprefix("blocks"))
                key = (int(row["head_dim"]), int(row["seqlen"]), block, float(row["share"]), row["pass"])
                rates = {s: float(row[f"{s}_tflops"]) for s in SYSTEMS if row[f"{s}_tflops"]}
                cells.setdefault(key, {}).update(rates)
    return cells


def machines(paths):
    """Names of the GPUs that were measured on, as `H100`."""
    found = set()
    for path in paths:
        with open(path, newline="") as file:
            found |= {row["machine"] for row in csv.DictReader(file)} - {"machine"}
    return ", ".join(sorted({name.removeprefix("NVIDIA_").split("_")[0] for name in found}))


def text(x, y, content, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{content}</text>'


def line(x0, y0, x1, y1, colour):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"/>'


def panel(x, y, curves, shares, top, labelled):
    """Axes and lines of one panel, whose corner is at x, y; `curves` {system: [(share, rate)]}."""

    def place(share, rate):
        low, high = math.log(shares[0]), math.log(shares[-1])
        across = (math.log(share) - low) / (high - low) if high > low else 0.5
        return x + 8 + across * (PANEL_W - 16), y + PANEL_H * (1 - rate / top)

    parts = [f'<rect x="{x}" y="{y}" width="{PANEL_W}" height="{PANEL_H}" fill="none" stroke="#888"/>']
    for rate in range(100, int(top), 100):
        height = place(shares[0], rate)[1]
        parts.append(line(x, height, x + PANEL_W, height, "#e4e4e4"))
        if labelled and rate % 200 == 0:
            parts.append(text(x - 5, height + 4, rate, "end"))
    for share in shares:
        parts.append(text(place(share, 0)[0], y + PANEL_H + 14, f"{100 * share:g}"))
    for system, points in curves.items():
        name, colour = SYSTEMS[system]
        places = [place(*point) for point in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (share, rate), (a, b) in zip(points, places, strict=True):
            title = f"<title>{name}, {100 * share:g} %: {rate:.0f} TFLOP/s</title>"
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}">{title}</circle>')
    return parts


def draw(cells, rows, head_dim, where):
    chosen = {key[2:]: rates for key, rates in cells.items() if key[:2] == (head_dim, rows)}
    blocks = sorted({block for block, _, _ in chosen}, reverse=True)
    shares = sorted({share for _, share, _ in chosen})
    most = max((rate for rates in chosen.values() for rate in rates.values()), default=100)
    top = 100 * math.ceil(most / 100 + 0.2)
    width = max(LEFT + len(blocks) * (PANEL_W + GAP_X), 640)
    height = TOP + 2 * PANEL_H + GAP_Y + BOTTOM
    measured = {system for rates in chosen.values() for system in rates}
    parts, x = [], LEFT
    for name, colour in (SYSTEMS[system] for system in SYSTEMS if system in measured):
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>' + text(x + 14, 17, name, "start"))
        x += 34 + 7 * len(name)
    for i, kind in enumerate(PASSES):
        y = TOP + i * (PANEL_H + GAP_Y)
        middle = y + PANEL_H / 2
        turned = f' transform="rotate(-90 14 {middle:.1f})"'
        parts.append(text(14, middle, f"{kind}, TFLOP/s", extra=turned))
        for j, block in enumerate(blocks):
            curves = {}
            for system in SYSTEMS:
                points = [(s, chosen.get((block, s, kind), {}).get(system)) for s in shares]
                curves[system] = [(s, rate) for s, rate in points if rate is not None]
            x = LEFT + j * (PANEL_W + GAP_X)
            parts += panel(x, y, {s: points for s, points in curves.items() if points}, shares, top, j == 0)
            if i == 0:
                parts.append(text(x + PANEL_W / 2, TOP - 8, f"blocks of {block}"))
    label = f"% of the blocks visible; {rows:,} rows, 64/8 heads of {head_dim}; {where}"
    parts.append(text(width / 2, height - 8, label))
    style = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {style}>\n<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, *parts, "</svg>\n"])


def ratio(rates):
    best = max((rate for system, rate in rates.items() if system != "tangram"), default=None)
    return f"{rates['tangram'] / best:.2f}" if best and "tangram" in rates else ""


def table(cells):
    lines = ["| head dim | block | rows | visible | forward | ÷ best | backward | ÷ best |", "|" + "---|" * 8]
    shapes = sorted({key[:4] for key in cells}, key=lambda k: (-k[0], -k[2], -k[1], k[3]))
    for head_dim, rows, block, share in shapes:
        line = [f"{head_dim}", f"{block}", f"{rows // 1024}K", f"{100 * share:g} %"]
        for kind in PASSES:
            rates = cells.get((head_dim, rows, block, share, kind), {})
            line.append(" / ".join(f"{rates[s]:.0f}" if s in rates else "–" for s in SYSTEMS) if rates else "")
            line.append(ratio(rates))
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--svg", help="the picture's file")
    parser.add_argument("--markdown", help="the page of the table; - prints it")
    parser.add_argument("--rows", type=int, default=16384, help="of the picture")
    parser.add_argument("--head-dim", type=int, default=128, help="of the picture")
    parser.add_argument("--day", help="on which was measured, to stand in the picture")
    args = parser.parse_args()

    cells = load(args.files)
    if args.svg:
        where = machines(args.files) + (f", {args.day}" if args.day else "")
        Path(args.svg).write_text(draw(cells, args.rows, args.head_dim, where))
    if args.markdown == "-":
        print(table(cells), end="")
    elif args.markdown:
        page = Path(args.markdown)
        filled, places = TABLE.subn(lambda found: found[1] + "\n" + table(cells) + "\n" + found[2], page.read_text())
        if places != 1:
            raise SystemExit(f"block_masks_svg: no place for the table in {page}")
        page.write_text(filled)


if __name__ == "__main__":
    main()
