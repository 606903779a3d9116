# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of tree_steps.py: forests of tests/data/prefix_trees.json, and the same sequences packed."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tangram import trees

FORESTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "prefix_trees.json"
NUM_BATCHES = 5


@dataclass
class Batch:
    name: str
    tree: trees.Tree
    packed: trees.Tree  # the same sequences without shared rows
    weights: torch.Tensor  # of each token of the sequences: their sum over a sequence is 1 / number of sequences

    def sequences(self, numbers):
        """(tree, weights) of these sequences, packed."""
        lengths = self.packed.lengths
        tokens, weights = (
            torch.cat([x.split(lengths.tolist())[i] for i in numbers])
            for x in (self.packed.tokens[self.packed.rows_of()], self.weights)
        )
        own = lengths[list(numbers)]
        return trees.from_parents(own, torch.full_like(own, -1), tokens=tokens), weights


def chosen_trees(forest, max_tokens, shrink):
    """Node lengths, parents and roots of the trees that fit, in order."""
    lengths, parents = np.array(forest["lengths"]), np.array(forest["parents"])
    borders = np.append(np.flatnonzero(parents < 0), lengths.size)  # trees are contiguous, their root first
    kept, total = [], 0
    for begin, end in zip(borders, borders[1:], strict=False):
        own = np.maximum(1, lengths[begin:end] // shrink)
        tokens = int(trees.from_parents(own, np.maximum(parents[begin:end] - begin, -1)).lengths.sum())
        if total + tokens <= max_tokens:
            total += tokens
            shift = sum(part[0].size for part in kept) - begin
            kept.append((own, np.where(parents[begin:end] < 0, -1, parents[begin:end] + shift)))
    if not kept:
        raise SystemExit(f"tree_steps: --tokens must hold a tree of each forest (got {max_tokens})")
    return (np.concatenate(column) for column in zip(*kept, strict=True))


def read_batches(max_tokens, shrink, shape, names):
    generator = torch.Generator().manual_seed(0)
    for forest in json.loads(FORESTS.read_text())["forests"][:NUM_BATCHES]:
        if names and forest["name"] not in names:
            continue
        lengths, parents = chosen_trees(forest, max_tokens, shrink)
        tokens = torch.randint(shape.vocabulary, (int(lengths.sum()),), generator=generator)
        tree = trees.from_parents(lengths, parents, tokens=tokens)
        root = np.arange(lengths.size)
        while (parents[root] >= 0).any():
            root = np.where(parents[root] >= 0, parents[root], root)
        leaves = np.setdiff1d(np.arange(lengths.size), parents)  # each ends a sequence
        weights = []
        for prompt, length in zip(lengths[root[leaves]], tree.lengths.tolist(), strict=True):
            weights.append(torch.zeros(length))
            weights[-1][prompt:] = 1 / (length - prompt) / leaves.size
        flat = tree.tokens[tree.rows_of()]
        packed = trees.from_parents(tree.lengths, torch.full_like(tree.lengths, -1), tokens=flat)
        yield Batch(forest["name"], tree, packed, torch.cat(weights))


def assigned(lengths, shape, ranks):
    """Numbers of the sequences of each rank: one after the other, the longest first, to who has least to do."""
    hidden, heads, heads_kv, dim, wide = shape.layer
    row = 2 * hidden * ((2 * heads + 2 * heads_kv) * dim + 3 * wide)
    area = 2 * heads * dim  # of a causal row's mean key: two products of 2 FLOPs, half of them visible
    work = [length * row + length * length * area for length in lengths.tolist()]
    loads, numbers = [0] * ranks, [[] for _ in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: -work[i]):
        rank = loads.index(min(loads))
        loads[rank] += work[i]
        numbers[rank].append(i)
    return numbers
