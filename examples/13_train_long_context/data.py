# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Packed documents: a new pack at each step, of lengths of a real corpus, filled with the text of this example.

A pack depends on seed and step alone, so all ranks draw the same. A resumed run goes on with the pack that is next.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parent
LENGTHS = FOLDER.parents[1] / "tests" / "data" / "doc_lengths.json"
IGNORED = -100
"""Label of rows that predict nothing: the last of each document, and rows that only fill a shard."""
PACKS, CAUSAL = "packs", "causal"


class Refused(ValueError):
    """Arguments that do not go together, alike on all ranks."""


@dataclass
class Batch:
    """One step's sequence, whole, in host memory."""

    tokens: Tensor  # [rows] int64
    labels: Tensor  # [rows] int64: the next token of the same document, or IGNORED
    positions: Tensor  # [rows] int64, within documents
    borders: list[int]  # documents are [borders[i], borders[i + 1])

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def num_labels(self) -> int:
        return self.num_rows - (len(self.borders) - 1)

    def area(self, window: int | None = None) -> int:
        """Visible (query, key) pairs; a row of a window sees itself and window - 1 rows before it."""
        lengths = np.diff(self.borders).astype(object)  # Python's integers: areas of long packs pass 2^31
        full = lengths * (lengths + 1) // 2
        if window is None:
            return int(full.sum())
        beyond = np.maximum(lengths - window, 0)
        return int((full - beyond * (beyond + 1) // 2).sum())

    def rows_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, labels and positions of these rows; -1 stands for a row that fills a shard."""
        real, at = rows >= 0, rows.clamp(min=0)
        labels = torch.where(real, self.labels[at], IGNORED)
        return self.tokens[at], labels, torch.where(real, self.positions[at], 0)


def borders_of(rows: int, generator: np.random.Generator) -> list[int]:
    """Lengths by the corpus's histogram, cut at a quarter of the pack, as its authors packed them."""
    intervals, shares = _histogram()
    borders = [0]
    while borders[-1] < rows:
        low, high = intervals[generator.choice(len(intervals), p=shares)]
        length = min(int(generator.integers(low, high + 1)), max(rows // 4, 1))
        if length > 0:
            borders.append(min(borders[-1] + length, rows))
    return borders


def batch_of(step: int, rows: int, kind: str = PACKS, seed: int = 0) -> Batch:
    """The pack of a step: `kind` PACKS, or CAUSAL, which is one document of all rows."""
    if kind not in (PACKS, CAUSAL):
        raise Refused(f"batch_of: kind must be {PACKS!r} or {CAUSAL!r} (got kind={kind!r})")
    generator = np.random.default_rng([seed, step])
    borders = borders_of(rows, generator) if kind == PACKS else [0, rows]
    text = _text()
    tokens = np.empty(rows, np.int64)
    for begin, end in zip(borders, borders[1:], strict=False):
        first = int(generator.integers(len(text)))
        tokens[begin:end] = text[(first + np.arange(end - begin)) % len(text)]
    labels = np.append(tokens[1:], IGNORED)
    labels[np.array(borders[1:]) - 1] = IGNORED
    positions = np.arange(rows) - np.repeat(borders[:-1], np.diff(borders))
    return Batch(torch.from_numpy(tokens), torch.from_numpy(labels), torch.from_numpy(positions), borders)


@functools.lru_cache
def _histogram() -> tuple[list[tuple[int, int]], np.ndarray]:
    intervals = json.loads(LENGTHS.read_text())["intervals"]
    counts = np.array([each["count"] for each in intervals], float)
    return [(each["lo"], each["hi"]) for each in intervals], counts / counts.sum()


@functools.lru_cache
def _text() -> np.ndarray:
    """Bytes are the tokens."""
    return np.frombuffer(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.py"))), np.uint8)
