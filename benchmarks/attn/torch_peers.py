# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention as peers: FlexAttention under torch.compile, and the FlashAttention-2 that PyTorch contains."""

import sys

import torch

try:
    import torch._functorch.config
    import triton  # noqa: F401  FlexAttention compiles with it
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

    torch._functorch.config.donated_buffer = False  # a backward pass that keeps its graph cannot give buffers away
except Exception as error:  # a broken installation raises more than ImportError
    BlockMask = create_block_mask = flex_attention = None
    print(f"no FlexAttention of PyTorch: {error!r}"[:300], file=sys.stderr)
try:
    from torch.nn.attention.varlen import varlen_attn
except Exception as error:
    varlen_attn = None
    print(f"no varlen_attn of PyTorch: {error!r}"[:300], file=sys.stderr)

TILE = 128  # blocks that FlexAttention's kernels walk, forward and backward


def mask_function(kind, rows, documents=None, window=None, borders=None, device="cpu"):
    """What FlexAttention asks for each pair (batch, head, row, key); None if all see all.

    kind, documents, window: as in side_by_side.Case. borders: for other masks, [n, rows] int32 keys at which a row's
    visibility changes, seen from key 0 up to the first.
    """
    if borders is not None:

        def of_borders(batch, head, row, key):
            behind = sum((borders[i, row] <= key).int() for i in range(len(borders)))
            return behind % 2 == 0

        return of_borders
    if documents is not None:
        ends = torch.tensor(documents[1:], device=device)
        of_row = torch.searchsorted(ends, torch.arange(rows, device=device), right=True).int()

        def of_documents(batch, head, row, key):
            same = of_row[row] == of_row[key]
            return same & (key <= row) if kind == "causal" else same

        return of_documents
    if window is not None:
        return lambda batch, head, row, key: (key <= row) & (row - key <= window)
    return (lambda batch, head, row, key: key <= row) if kind == "causal" else None


def block_mask_of(function, rows, device):
    """Which tiles are full, partial or empty. Compiled, since a table of all pairs of 64K rows takes gigabytes."""
    return create_block_mask(function, None, None, rows, rows, device=device, BLOCK_SIZE=TILE, _compile=True)


def flex_call(mask, **options):
    """`call(q, k, v)` of [rows, heads, dim], compiled for one BlockMask, or None."""
    compiled = torch.compile(flex_attention, dynamic=False)

    def call(q, k, v):
        batched = (t[None].transpose(1, 2) for t in (q, k, v))
        return compiled(*batched, block_mask=mask, enable_gqa=True, **options)[0].transpose(0, 1)

    return call


def flash2_call(kind, rows, documents=None, window=None, device="cuda"):
    """`call(q, k, v)` of [rows, heads, dim] by FlashAttention-2."""
    borders = documents or [0, rows]
    ends = torch.tensor(borders, dtype=torch.int32, device=device)
    longest = max(b - a for a, b in zip(borders, borders[1:], strict=False))
    reach = (-1, -1) if kind == "full" else (-1 if window is None else window, 0)
    return lambda q, k, v: varlen_attn(q, k, v, ends, ends, longest, longest, window_size=reach)
