# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Prefix trees: sequences that share their first tokens, each shared row computed once.

    >>> from tangram import trees
    >>> tree = trees.from_sequences([[1, 2, 3, 4], [1, 2, 3, 5, 6], [7, 8]], min_shared=3)
    >>> tree.tokens.tolist(), tree.positions().tolist()
    ([1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 3, 4, 0, 1])
    >>> tree.rows_of(1).tolist()
    [0, 1, 2, 4, 5]

Attention:   tree.mask(), or tree.mask(window=(127, 0)) for layers of a window; mask_key(tree.mask(), ...) over ranks
Losses:      tree.targets(weights): one edge (row, label, weight) for each token of the tree that has a predecessor
Over ranks:  tree.local(key): the edges of the rows that dispatch(x, key) gave this rank
Large trees: trees.split(tree, max_rows): packs of at most max_rows rows, which repeat shared rows where they must

Needs NumPy. Results are torch tensors where torch tensors were given, else NumPy arrays; `tree.to(device)` changes it.
"""

from ..errors import NotAvailable

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError:
    raise NotAvailable("tangram.trees: needs NumPy (pip install numpy)") from None

from ._build import from_parents, from_sequences
from ._split import split
from ._targets import Targets
from ._tree import Tree

__all__ = ["Targets", "Tree", "from_parents", "from_sequences", "split"]
