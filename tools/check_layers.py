#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom: every layer may include itself and the layers it is allowed to see, nothing else. And where
inline assembly stands."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSEMBLY = re.compile(r"^\s*asm\b", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)

# What each folder of src/ may include besides itself and the public headers.
ALLOWED = {
    "core": set(),
    "cuda": {"core"},
    "machine": {"core"},
    "schedule": {"core", "machine"},
    "plan": {"core", "machine", "schedule"},
    "attn": {"core", "cuda", "machine", "schedule"},
    "comm": {"core", "cuda"},
    "runtime": {"core", "cuda", "machine", "schedule", "plan", "attn", "comm"},
    "cli": {"core", "cuda", "machine", "schedule", "plan", "attn", "comm", "runtime"},
}
# Public headers that belong to a layer; one that is not listed is core's. Files that may see the layer may include
# them.
HEADER_LAYER = {
    "gpu_model": "machine",
    "machine": "machine",
    "config": "plan",
    "plan": "plan",
    "head_masks": "plan",
    "shard_map": "plan",
    "simulate": "plan",
    "attention": "attn",
    "mask_slot": "attn",
    "token_attention": "attn",
    "backends": "attn",
    "communicator": "comm",
    "device_communicator": "comm",
    "buffered_pass": "comm",
    "socket_group": "comm",
    "local_group": "comm",
    "mpi_group": "comm",
    "dist_attention": "runtime",
    "flex_attention": "runtime",
    "mask_buffer": "runtime",
    "dist_mask_buffer": "runtime",
    "tangram": "runtime",
}
# No public header may drag these in.
FORBIDDEN_IN_PUBLIC = re.compile(
    r"^(torch|nccl|mpi|cutlass|cute|cuda|fmt|nlohmann|CLI)[./_]|^(mpi|nccl|cuda[a-z_]*)\.h$"
)


def layer_of(include: str) -> str | None:
    parts = include.split("/")
    if parts[0] == "tangram" and len(parts) == 2:
        return HEADER_LAYER.get(parts[1].rsplit(".", 1)[0], "core")
    return parts[0] if parts[0] in ALLOWED and len(parts) > 1 else None


def check_sources() -> list[str]:
    problems = []
    for layer, allowed in ALLOWED.items():
        for path in sorted((ROOT / "src" / layer).rglob("*")):
            if path.suffix not in {".hpp", ".cpp", ".cuh", ".cu"}:
                continue
            for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
                target = layer_of(include)
                if target and target != layer and target not in allowed:
                    problems.append(f"{path.relative_to(ROOT)}: {layer} may not include {include} ({target})")
    return problems


# Folders of one layer that may include each other: transports, which the device's communicator makes.
MAY_CIRCLE = {"comm/device", "comm/copy_engine", "comm/nodes", "comm/nccl"}


def check_circles() -> list[str]:
    """Folders inside a layer include each other in one direction; a layer's own files may include any of them."""
    includes: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*"):
        parts = path.relative_to(ROOT / "src").parts
        if path.suffix not in {".hpp", ".cpp", ".cuh", ".cu"} or len(parts) < 3:
            continue
        folder = "/".join(parts[:2])
        for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = "/".join(include.split("/")[:2])
            if include.count("/") > 1 and target != folder and target.split("/")[0] == parts[0]:
                includes.setdefault(folder, set()).add(target)
    problems = []
    for folder in sorted(includes):
        seen, todo = set(), list(includes[folder])
        while todo:
            target = todo.pop()
            if target not in seen:
                seen.add(target)
                todo += includes.get(target, ())
        if folder in seen and folder not in MAY_CIRCLE:
            problems.append(f"src/{folder}: includes itself through other folders")
    return problems


def check_public_headers() -> list[str]:
    problems = []
    for path in sorted((ROOT / "include" / "tangram").glob("*.hpp")):
        layer = HEADER_LAYER.get(path.stem, "core")
        for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if FORBIDDEN_IN_PUBLIC.search(include):
                problems.append(f"{path.relative_to(ROOT)}: a public header may not include {include}")
            target = layer_of(include)
            if target and target != layer and target not in ALLOWED[layer]:
                problems.append(f"{path.relative_to(ROOT)}: {layer} may not include {include} ({target})")
    return problems


def check_whole_header() -> list[str]:
    """tangram.hpp is what users include: it must bring everything."""
    folder = ROOT / "include" / "tangram"
    included = set(INCLUDE.findall((folder / "tangram.hpp").read_text(encoding="utf-8")))
    names = {f"tangram/{path.name}" for path in folder.glob("*.hpp")} - {"tangram/tangram.hpp"}
    return [f"include/tangram/tangram.hpp: must include {name}" for name in sorted(names - included)]


def check_ptx() -> list[str]:
    """PTX stands in src/cuda/ptx alone, a wrapper for each instruction."""
    return [
        f"{path.relative_to(ROOT)}: inline assembly belongs into src/cuda/ptx"
        for path in sorted((ROOT / "src").rglob("*.cu*"))
        if path.parent != ROOT / "src" / "cuda" / "ptx" and ASSEMBLY.search(path.read_text(encoding="utf-8"))
    ]


def main() -> int:
    problems = check_ptx() + check_sources() + check_circles() + check_public_headers() + check_whole_header()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
