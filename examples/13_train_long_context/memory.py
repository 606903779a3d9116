# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a step needs of a rank's memory, by arithmetic, before it runs: python memory.py --size 8B --tokens 131072

Printed beside the allocator's peak by train.py. Buffers of transports are not of the allocator and stand apart.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from model import SHAPES, Shape
from optimiser import BYTES_OF_MOMENTS, MOMENTS

GIB = 2**30


@dataclass(frozen=True)
class Setting:
    """What the estimate depends on beside the model's shape."""

    rows: int  # of a rank
    ranks: int
    element: int = 2  # bytes of an activation
    moments: str = "fp32"
    keep: str = "attention"
    offload: str = "none"
    chunk_rows: int = 8192
    loss_rows: int = 1024
    remote_rows: int = 0  # K/V rows of other ranks


def parameters_of(shape: Shape) -> int:
    norms = shape.layers * (2 * shape.hidden + 2 * shape.head_dim) + shape.hidden
    return shape.layers * shape.layer_weights + 2 * shape.vocabulary * shape.hidden + norms


def estimate(shape: Shape, setting: Setting) -> dict[str, float]:
    """Bytes of the allocator by part, "peak" the most that exists at a time. "host" of pinned host memory and
    "transport" of buffers for rows of other ranks are not part of it."""
    s, element = setting, setting.element
    heads, heads_kv = shape.heads * shape.head_dim, shape.heads_kv * shape.head_dim
    parameters, layer = parameters_of(shape), shape.layer_weights
    ends = 2 * shape.vocabulary * shape.hidden
    kept_layers = shape.layers if s.keep == "attention" else 0
    of_input = s.rows * shape.hidden * element
    of_attention = s.rows * (heads * element + shape.heads * 4)
    # At most two leave while the next is made; one layer's come back while another one's are used.
    inputs = min(3, shape.layers) if s.offload != "none" else shape.layers
    kept = min(3, kept_layers) if s.offload == "all" else kept_layers
    parts = {
        # float32 weights and gradients, sharded; FSDP keeps gradients in the weights' dtype.
        "weights": 4.0 * parameters / s.ranks,
        "gradients": 4.0 * parameters / s.ranks,
        "moments": float(BYTES_OF_MOMENTS[s.moments]) * parameters / s.ranks,
        # The first and last matrix stay gathered; of layers the one that runs and the one that comes.
        "gathered": float(element) * (ends + min(2, shape.layers) * layer),
        "layer inputs": float(inputs * of_input),
        "attention kept": float(kept * of_attention),
    }
    fixed = sum(parts.values()) - parts["gradients"]
    # Backward pass of a layer at its attention: what the recomputation saved, and gradients.
    saved = 4 * shape.hidden + 3 * heads + 4 * heads_kv + heads
    flowing = 2 * shape.hidden + 2 * heads + 2 * heads_kv
    attention = s.rows * (element * (saved + flowing) + 4 * heads)  # dq is summed in float32
    chunk = min(s.chunk_rows, s.rows)
    mlp = s.rows * element * (saved + 3 * shape.hidden) + chunk * element * 7 * shape.wide
    of_layer = layer * (element + 4) + 4.0 * layer / s.ranks  # its gradients, and float32 ones to reduce
    loss = min(s.loss_rows, s.rows) * shape.vocabulary * (2 * element + 8) + 2 * s.rows * shape.hidden * element
    head = element * ends / 2
    phases = {
        "loss": loss + head,
        "layer": max(attention, mlp) + of_layer + head,
        # All layers' gradients are there, those of the first and last matrix are reduced.
        "ends": parts["gradients"] * (1 - ends / parameters) + ends * (element + 4) + 4.0 * ends / s.ranks,
    }
    parts["work"] = max(phases["loss"], phases["layer"])
    # Gradients grow while inputs and kept attention are freed.
    freed = parts["layer inputs"] + parts["attention kept"]
    peak = max(
        fixed + parts["work"], fixed - freed + phases["ends"], fixed - freed + phases["layer"] + parts["gradients"]
    )
    return {
        **parts,
        "peak": peak,
        "host": float(
            (shape.layers * of_input if s.offload != "none" else 0)
            + (kept_layers * of_attention if s.offload == "all" else 0)
            + (8.0 * parameters / s.ranks if s.moments == "host" else 0)
        ),
        "transport": float(s.remote_rows * 2 * heads_kv * (element + 4)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="8B")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, required=True, help="of all ranks")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--moments", choices=MOMENTS, default="fp32")
    parser.add_argument("--keep", choices=["none", "attention"], default="attention")
    parser.add_argument("--offload", choices=["none", "inputs", "all"], default="none")
    parser.add_argument("--chunk-rows", type=int, default=8192)
    parser.add_argument("--loss-rows", type=int, default=1024)
    arguments = parser.parse_args()
    shape = shape_of(arguments.size, arguments.layers)
    rows = -(-arguments.tokens // arguments.ranks)
    chunks = {"chunk_rows": arguments.chunk_rows, "loss_rows": arguments.loss_rows}
    policy = {"moments": arguments.moments, "keep": arguments.keep, "offload": arguments.offload}
    found = estimate(shape, Setting(rows, arguments.ranks, **policy, **chunks))
    print(f"{parameters_of(shape) / 1e9:.2f} B parameters, {rows:,} rows a rank")
    for part, size in found.items():
        print(f"{part:16}{size / GIB:10.2f} GiB")


def shape_of(size: str, layers: int | None) -> Shape:
    shape = SHAPES[size]
    return Shape(**{**vars(shape), "layers": layers}) if layers else shape


if __name__ == "__main__":
    main()
