# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What `tangram doctor --run` computes: masks, each beside the sentence that defines it, and cases over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._core import Mask

Cells = Callable[[Tensor, Tensor], Tensor]
"""Which keys (second, `[1, keys]`) rows (first, `[rows, 1]`) see, as bools `[rows, keys]`."""


@dataclass(frozen=True)
class MaskCase:
    """A mask, or one for each of equal groups of heads, and which cells it has."""

    rows: int
    keys: int
    masks: tuple[Mask, ...]
    cells: tuple[Cells, ...]

    def visible(self, heads: int, device: torch.device) -> Tensor:
        """`[heads, rows, keys]`."""
        i = torch.arange(self.rows, device=device)[:, None]
        j = torch.arange(self.keys, device=device)[None, :]
        of_groups = torch.stack([cells(i, j).expand(self.rows, self.keys) for cells in self.cells])
        return of_groups.repeat_interleave(heads // len(self.cells), 0)


def document_borders(n: int) -> list[int]:
    """Borders of the documents of the mask "documents"."""
    return [0, n // 5 + 1, n // 2 + 3, n - 7, n]


def _documents(n: int) -> MaskCase:
    def cells(i: Tensor, j: Tensor) -> Tensor:
        cuts = torch.tensor(document_borders(n)[1:-1], device=i.device)
        return (torch.bucketize(i, cuts, right=True) == torch.bucketize(j, cuts, right=True)) & (j <= i)

    return MaskCase(n, n, (Mask.varlen(document_borders(n), causal=True),), (cells,))


def _window(n: int) -> MaskCase:
    left = n // 6
    return MaskCase(n, n, (Mask.sliding_window(n, (left, 3)),), (lambda i, j: (i - j <= left) & (j - i <= 3),))


def _shared_prefix(n: int) -> MaskCase:
    prefix = n // 3
    first = (n - prefix) // 2

    def cells(i: Tensor, j: Tensor) -> Tensor:
        same = (i >= prefix + first) == (j >= prefix + first)
        return (j <= i) & ((j < prefix) | same)

    return MaskCase(n, n, (Mask.shared_prefix(prefix, [first, n - prefix - first]),), (cells,))


def _empty_rows(n: int) -> MaskCase:
    """Rows of the second quarter see nothing, and keys of the last eighth are seen by none."""
    a, b, end = n // 4, n // 2, n - n // 8
    mask = Mask.from_ranges([(0, a), (b, n)], [(0, end), (0, end)], [0, 0], seqlen_q=n, seqlen_k=n)
    return MaskCase(n, n, (mask,), (lambda i, j: ((i < a) | (i >= b)) & (j < end),))


def _head_groups(n: int) -> MaskCase:
    causal, window = mask_case("causal", n), _window(n)
    return MaskCase(n, n, causal.masks + window.masks, causal.cells + window.cells)


def _cross(n: int) -> MaskCase:
    """Few rows and many keys, of which kernels take parts: causal from the bottom right corner."""
    rows = max(n // 16, 4)
    return MaskCase(rows, 2 * n, (Mask.causal(rows, 2 * n),), (lambda i, j: j - i <= 2 * n - rows,))


def _blocks(size: int) -> Callable[[int], MaskCase]:
    def make(n: int) -> MaskCase:
        count = n // size
        chosen = [[(3 * i + 1) % count, (5 * i + 2) % count] for i in range(count)]
        chosen = [sorted(set(each)) for each in chosen]
        width = max(len(each) for each in chosen)
        padded = torch.tensor([each + [-1] * (width - len(each)) for each in chosen])
        mask = Mask.from_block_indices(n, n, size, size, padded)

        def cells(i: Tensor, j: Tensor) -> Tensor:
            table = torch.zeros(count, count, dtype=torch.bool, device=i.device)
            for row, each in enumerate(chosen):
                table[row, each] = True
            return table[i // size, j // size]

        return MaskCase(n, n, (mask,), (cells,))

    return make


_MASKS: dict[str, Callable[[int], MaskCase]] = {
    "causal": lambda n: MaskCase(n, n, (Mask.causal(n),), (lambda i, j: j <= i,)),
    "full": lambda n: MaskCase(n, n, (Mask.full(n),), (lambda i, j: (j >= 0) & (i >= 0),)),
    "documents": _documents,
    "window": _window,
    "shared prefix": _shared_prefix,
    "empty rows": _empty_rows,
    "head groups": _head_groups,
    "long keys": _cross,
    "blocks of 16": _blocks(16),
    "blocks of 64": _blocks(64),
}
BASIC_MASKS = tuple(name for name in _MASKS if name not in ("long keys", "blocks of 16", "blocks of 64"))


def mask_case(name: str, rows: int) -> MaskCase:
    """The mask of that name; rows: about as many, a multiple of 64."""
    return _MASKS[name](rows)


@dataclass(frozen=True)
class Case:
    """A call and its backward pass, compared with float64."""

    name: str
    mask: str = "causal"
    dtype: torch.dtype = torch.bfloat16
    dims: tuple[int, int] = (128, 128)
    heads: tuple[int, int] = (4, 2)
    softcap: float = 0.0
    sink: str = ""
    """Its layout, "sh" or "ssh"; empty: none."""
    deterministic: bool = False
    float32_results: bool = False
    how: str = "mask"
    """"mask", "buffer" (a MaskBuffer that held another mask before) or "tokens" (indices of single keys)."""
    may_refuse: bool = False
    """Whether a backend may lack this: it is then listed, and nothing has failed."""


DIMS = ((32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (72, 40))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _dims_text(dims: tuple[int, int]) -> str:
    return str(dims[0]) if dims[0] == dims[1] else f"{dims[0]}:{dims[1]}"


def _of_dims() -> Iterator[Case]:
    for of_dtype, dtype in DTYPES.items():
        for dims in DIMS:
            for mask in BASIC_MASKS:
                yield Case(
                    f"{of_dtype}, dim {_dims_text(dims)}, {mask}", mask, dtype, dims, may_refuse=of_dtype == "fp32"
                )


def _of_features() -> Iterator[Case]:
    for d in (64, 128):
        dims, end = (d, d), f", dim {d}"
        for heads in ((8, 1), (6, 2), (4, 4), (5, 1)):
            yield Case(f"{heads[0]} query heads on {heads[1]}{end}", "documents", dims=dims, heads=heads)
        for layout in ("sh", "ssh"):
            yield Case(f"sinks {layout}{end}", "empty rows", dims=dims, sink=layout)
        yield Case(f"softcap{end}", "window", dims=dims, softcap=5.0)
        yield Case(f"softcap and sinks{end}", "documents", dims=dims, softcap=5.0, sink="sh")
        yield Case(f"float32 results{end}", "documents", dims=dims, float32_results=True)
        yield Case(f"few rows, long keys{end}", "long keys", dims=dims)
        for mask in ("documents", "head groups"):
            yield Case(f"deterministic, {mask}{end}", mask, dims=dims, deterministic=True)
        for mask in ("blocks of 16", "blocks of 64"):
            yield Case(f"{mask}{end}", mask, dims=dims)
        for mask in ("documents", "shared prefix"):
            yield Case(f"mask buffer, {mask}{end}", mask, dims=dims, how="buffer")
        yield Case(
            f"mask buffer, softcap, deterministic{end}",
            "documents",
            dims=dims,
            softcap=5.0,
            deterministic=True,
            how="buffer",
        )
    yield Case("token indices, dim 128", dims=(128, 128), heads=(8, 1), how="tokens", may_refuse=True)


def all_cases() -> Sequence[Case]:
    return [*_of_dims(), *_of_features()]
