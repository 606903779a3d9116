# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Trees from token lists, and from the lengths and parents of their nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._whole import whole
from ..errors import InvalidArgument
from ._arrays import MAX_ROWS, concatenated, device_of, integers, row_counts
from ._nodes import check_forest, in_preorder
from ._prefixes import find_prefixes
from ._tree import Tree


def from_sequences(tokens: Any, min_shared: int = 64, *, cu_seqlens: Any = None) -> Tree:
    """The tree of sequences that begin alike: each shared prefix has its rows once.

    Siblings are in the order of their first sequence; without shared prefixes rows are the sequences one after the
    other. Equal sequences end at one node, and an empty one has no row. The result is exact: tokens are compared, not
    hashed.

    Args:
        tokens: a list of one-dimensional torch tensors, NumPy arrays or lists, of any integer dtype; or one tensor or
            array of all sequences, with cu_seqlens. Tensors on a GPU are copied to the host once, which synchronises.
        min_shared: sequences share rows only if they have at least so many tokens in common, counted from the last node
            that they share. So a node with children has `min_shared` rows or more. A common BOS token joins nothing,
            and chance agreement in a few tokens behind a prompt makes no small nodes.
        cu_seqlens: `[sequences + 1]` borders of the sequences in `tokens`.

    Raises:
        InvalidArgument: another dtype or rank, cu_seqlens that do not rise from 0 to the number of tokens, min_shared
            less than 1, more than 2^31 - 1 tokens.
    """
    function = "trees.from_sequences"
    if (min_shared := whole(function, "min_shared", min_shared)) < 1:
        raise InvalidArgument(f"{function}: min_shared must be at least 1 (got {min_shared})")
    flat, lengths, device = concatenated(function, "tokens", tokens, cu_seqlens)
    if flat.size > MAX_ROWS:
        raise InvalidArgument(f"{function}: tokens must be at most {MAX_ROWS}; make several trees (got {flat.size})")
    found = find_prefixes(flat, lengths, min_shared)
    source = (lengths.cumsum() - lengths)[found.first] + found.begin
    nodes, number = in_preorder(found.parent, found.length, source, found.first)
    ends = np.append(number, -1)[found.ends]
    return Tree(nodes, ends, flat, device)


def from_parents(lengths: Any, parents: Any, *, tokens: Any = None, ends: Any = None) -> Tree:
    """The tree of nodes whose sizes and parents are known: turns of an agent, drafts of speculative decoding.

    Rows are in preorder: a node, then its children in the order of their numbers. `tree.sources` tells for each row
    where its token is in `tokens`, and puts other values of tokens in that order too.

    Args:
        lengths: rows of each node; 0 is allowed.
        parents: for each node the number of its parent, in any order; -1 for roots.
        tokens: `[sum(lengths)]` integers, those of node 0, then those of node 1, and so on; None: the tree has no
            tokens, and `targets` is refused.
        ends: for each sequence the node at whose last row it ends, -1 for an empty sequence. None: a sequence for each
            node without children, in the order of their numbers.

    Raises:
        InvalidArgument: lists of unequal length, a parent that is no node, a cycle, a negative length, more than
            2^31 - 1 rows, other dtypes.
    """
    function = "trees.from_parents"
    length = row_counts(function, "lengths", lengths)
    parent = integers(function, "parents", parents).astype(np.int64)
    n = length.size
    if parent.size != n:
        raise InvalidArgument(
            f"{function}: lengths and parents must be equally long (got len(lengths)={n}, len(parents)={parent.size})"
        )
    check_forest(function, parent)
    flat = None
    if tokens is not None:
        flat = integers(function, "tokens", tokens)
        if flat.size != int(length.sum()):
            raise InvalidArgument(
                f"{function}: tokens must have one for each of the {int(length.sum())} rows (got {flat.size})"
            )
    if ends is None:
        has_child = np.zeros(n, bool)
        has_child[parent[parent >= 0]] = True
        end = np.flatnonzero(~has_child)
    else:
        end = integers(function, "ends", ends).astype(np.int64)
        wrong = np.flatnonzero((end < -1) | (end >= n))
        if wrong.size:
            at = int(wrong[0])
            raise InvalidArgument(
                f"{function}: ends must be numbers of nodes in [0, {n}), or -1 (got ends[{at}]={int(end[at])})"
            )
    every, number = in_preorder(parent, length, length.cumsum() - length, np.arange(n))
    nodes, holder = every.subset(every.length > 0)
    ends_at = np.append(holder[number], -1)[end]
    return Tree(nodes, ends_at, flat, device_of(lengths if tokens is None else tokens))
