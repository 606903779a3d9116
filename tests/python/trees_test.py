# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.trees: random forests against their definitions, wrong arguments, packs, speed."""

import os
import time

import numpy as np
import pytest

from forests import (
    edges_of,
    node_rows,
    random_parents,
    random_sequences,
    shared_rows,
    visible_cells,
)
from reference import mask_cells
from tangram import InvalidArgument, Mask, trees

FORESTS = 1000 if os.environ.get("TANGRAM_TEST_LONG") == "1" else 60


def check(tree, rows, tokens, rng):
    """A tree against the rows of its sequences. tokens: of each row."""
    num_rows = tree.num_rows
    assert [tree.rows_of(s).tolist() for s in range(tree.num_sequences)] == rows
    assert tree.rows_of().tolist() == sum(rows, [])
    assert tree.lengths.tolist() == [len(path) for path in rows]
    assert tree.cu_seqlens.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    assert tree.tokens.tolist() == tokens
    positions = tree.positions()
    for path in rows:
        assert positions[path].tolist() == list(range(len(path)))

    on_path = np.zeros(num_rows, bool)
    on_path[sum(rows, [])] = True
    left = int(rng.integers(0, 9))
    for window, wanted in ((None, None), ((-1, 0), None), ((left, 0), left)):
        cells = mask_cells(tree.mask(window))
        assert cells.shape == (num_rows, num_rows)
        assert (cells[on_path] == visible_cells(num_rows, rows, wanted)[on_path]).all()
        assert (cells.diagonal()).all()  # rows of no sequence see themselves too

    weights = [rng.choice([0.0, 0.5, 1.0, -2.0], len(path)) for path in rows]  # sums are exact
    given = np.concatenate([*weights, np.empty(0)]) if rng.random() < 0.5 else weights
    ones = [np.ones(len(path)) for path in rows]
    for targets, wanted in ((tree.targets(given), weights), (tree.targets(), ones)):
        edges = edges_of(rows, tokens, wanted)
        assert list(zip(*(x.tolist() for x in targets), strict=True)) == [edges[row] for row in sorted(edges)]
        number = {row: i for i, row in enumerate(sorted(edges))}
        of_token = [number.get(row, -1) if at else -1 for path in rows for at, row in enumerate(path)]
        assert targets.edge_of_token.tolist() == of_token
        values = rng.standard_normal((len(targets), 2))
        expected = [values[edge].tolist() if edge >= 0 else [0, 0] for edge in of_token]
        assert targets.gather(values).tolist() == expected


@pytest.mark.parametrize("part", range(4))
def test_random_sequences_share_rows_as_defined(part):
    for seed in range(part, FORESTS, 4):
        rng = np.random.default_rng(seed)
        sequences = random_sequences(rng)
        min_shared = int(rng.choice([1, 1, 2, 3, 6]))
        tree = trees.from_sequences(sequences, min_shared)
        rows = shared_rows(sequences, min_shared)
        tokens = {
            row: token for path, s in zip(rows, sequences, strict=True) for row, token in zip(path, s, strict=True)
        }
        assert sorted(tokens) == list(range(tree.num_rows))
        check(tree, rows, [tokens[row] for row in range(tree.num_rows)], rng)
        flat = np.array(sum(sequences, []), np.int32)
        same = trees.from_sequences(flat, min_shared, cu_seqlens=np.cumsum([0, *map(len, sequences)]))
        assert (same.tokens == tree.tokens).all() and (flat[same.sources] == tree.tokens).all()
        assert same.mask() == tree.mask() and same.tokens.dtype == np.int32


@pytest.mark.parametrize("part", range(4))
def test_random_parents_in_any_order_as_defined(part):
    for seed in range(part, FORESTS, 4):
        rng = np.random.default_rng(seed)
        lengths, parents, ends = random_parents(rng)
        tokens = rng.integers(0, 50, lengths.sum())
        rows, of_row = node_rows(lengths, parents, ends)
        tree = trees.from_parents(lengths, parents, tokens=tokens, ends=ends)
        begin = np.cumsum(lengths) - lengths
        within = [i - of_row.index(node) for i, node in enumerate(of_row)]
        sources = [int(begin[node]) + at for node, at in zip(of_row, within, strict=True)]
        assert tree.sources.tolist() == sources
        check(tree, rows, tokens[sources].tolist(), rng)


@pytest.mark.parametrize("part", range(2))
def test_packs_hold_each_sequence_once(part):
    for seed in range(part, FORESTS // 2, 2):
        rng = np.random.default_rng(seed)
        sequences = random_sequences(rng, most=20)
        tree = trees.from_sequences(sequences, int(rng.integers(1, 4)))
        longest = max(map(len, sequences), default=1)
        max_rows = int(rng.integers(max(longest, 1), max(longest, 1) + 20))
        packs = trees.split(tree, max_rows)
        assert sorted(s for pack in packs for s in pack.sequences.tolist()) == list(range(len(sequences)))
        for pack in packs:
            assert pack.num_rows <= max_rows
            rows = [pack.rows_of(s).tolist() for s in range(pack.num_sequences)]
            assert [pack.tokens[path].tolist() for path in rows] == [sequences[s] for s in pack.sequences]
            assert sorted({row for path in rows for row in path}) == list(range(pack.num_rows))
            flat = np.array(sum(sequences, []), np.int64)
            assert (flat[pack.sources] == pack.tokens).all()
            check(pack, rows, pack.tokens.tolist(), rng)
        if tree.num_rows <= max_rows:
            assert len(packs) == 1


def test_packs_repeat_no_more_than_they_must():
    """16 samples of a prompt of 100 tokens: three packs of six samples need the prompt three times."""
    prompt = list(range(100))
    tree = trees.from_sequences([prompt + [1000 + s] * 20 for s in range(16)])
    packs = trees.split(tree, 220)
    assert [pack.num_rows for pack in packs] == [220, 220, 180]
    # Prompts whose samples fit into a pack are not torn apart.
    groups = trees.from_sequences([[100 * p + i for i in range(70)] + [s] * 10 for p in range(4) for s in (7, 8)])
    assert [pack.num_rows for pack in trees.split(groups, 180)] == [180, 180]


def test_a_common_first_token_joins_nothing():
    sequences = [[1, *range(10 * g, 10 * g + 8), s] for g in range(3) for s in (90, 91)]
    tree = trees.from_sequences(sequences, min_shared=4)
    assert tree.node_parents.tolist() == [-1, 0, 0, -1, 3, 3, -1, 6, 6]
    assert trees.from_sequences(sequences, min_shared=1).node_parents.tolist().count(-1) == 1


def test_one_level_is_the_shared_prefix_mask():
    tree = trees.from_parents([512, 100, 80, 120], [-1, 0, 0, 0])
    assert (mask_cells(tree.mask()) == mask_cells(Mask.shared_prefix(512, [100, 80, 120]))).all()
    assert trees.from_parents([30, 20], [-1, -1]).mask((4, 0)) == Mask.sliding_window([0, 30, 50], (4, 0))


def test_deep_chains_wide_forests_and_equal_sequences():
    n = 3000
    chain = trees.from_parents(np.ones(n, np.int64), np.arange(n) - 1, tokens=np.arange(n))
    assert chain.mask() == Mask.causal(n) and (chain.positions() == np.arange(n)).all()
    assert chain.mask((9, 0)) == Mask.sliding_window(n, (9, 0))
    wide = trees.from_parents(np.ones(n, np.int64), np.where(np.arange(n) > 0, 0, -1))
    assert wide.num_sequences == n - 1 and wide.mask().area == 2 * n - 1
    equal = trees.from_sequences([np.arange(100)] * 50)
    assert (equal.num_rows, equal.num_nodes) == (100, 1)
    assert (equal.targets().weights == 50).all() and len(equal.targets()) == 99
    nested = trees.from_sequences([np.arange(k) for k in range(0, 400)], min_shared=1)
    assert nested.num_rows == 399 and nested.mask() == Mask.causal(399)
    ones = trees.from_sequences([[token] for token in (5, 6, 5, 7)], min_shared=1)
    assert ones.tokens.tolist() == [5, 6, 7] and len(ones.targets()) == 0


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_tokens_of_any_integer_dtype_and_value(dtype):
    info = np.iinfo(dtype)
    low, high = info.min, info.max
    sequences = [np.array(s, dtype) for s in ([high, low, high], [high, low, 3], [low], [high, low, high, 1])]
    tree = trees.from_sequences(sequences, min_shared=1)
    assert tree.num_rows == 6 and tree.tokens.dtype == dtype
    for s, tokens in enumerate(sequences):
        assert (tree.tokens[tree.rows_of(s)] == tokens).all()


def test_large_tokens_that_share_their_low_bits_are_different():
    tree = trees.from_sequences([[1, 2], [1 + 2**32, 2], [1, 2 + 2**40], [-1, 2]], min_shared=1)
    assert tree.num_rows == 7 and tree.node_parents.tolist() == [-1, 0, 0, -1, -1]


WRONG_SEQUENCES = [
    (dict(tokens=[[1.5]]), r"trees.from_sequences: tokens\[0\] must be .* integer dtype \(got tokens\[0\] of float64"),
    (dict(tokens=[[True]]), "integer dtype"),
    (dict(tokens=[[1], [[2]]]), r"tokens\[1\] must be 1-dimensional"),
    (dict(tokens=[["a"]]), "integer dtype"),
    (dict(tokens=[[2**70]]), "integer"),
    (dict(tokens=np.arange(3)), "list of sequences, or one array with cu_seqlens="),
    (dict(tokens="abc"), "list of sequences"),
    (dict(tokens=[[1]], min_shared=0), r"min_shared must be at least 1 \(got 0\)"),
    (dict(tokens=np.arange(3), cu_seqlens=[0, 2]), "cu_seqlens must rise from 0 to the 3 tokens"),
    (dict(tokens=np.arange(3), cu_seqlens=[0, 2, 1, 3]), "cu_seqlens must rise"),
    (dict(tokens=[np.array([1], np.uint64), np.array([-1])]), "must share an integer dtype"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG_SEQUENCES)
def test_wrong_sequences_are_refused(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        trees.from_sequences(**arguments)


WRONG_PARENTS = [
    (dict(lengths=[1, 2], parents=[-1]), r"equally long \(got len\(lengths\)=2, len\(parents\)=1\)"),
    (dict(lengths=[1, 2], parents=[-1, 2]), r"number of a node in \[0, 2\) \(got parents\[1\]=2\)"),
    (dict(lengths=[1, 2], parents=[-2, 0]), r"got parents\[0\]=-2"),
    (dict(lengths=[1], parents=[0]), r"without cycles \(got 0 -> 0\)"),
    (
        dict(lengths=[1, 1, 1, 1], parents=[-1, 2, 3, 1]),
        r"must lead to a root, without cycles \(got \d -> \d -> \d -> \d\)",
    ),
    (dict(lengths=[1, -2], parents=[-1, 0]), r"must not be negative \(got lengths\[1\]=-2\)"),
    (dict(lengths=[2**31 - 1, 1], parents=[-1, 0]), "add up to at most 2147483647 rows"),
    (dict(lengths=[2**62, 2**62, 2**62], parents=[-1, 0, 0]), "add up to at most 2147483647 rows"),
    (dict(lengths=[1.0], parents=[-1]), "lengths must be 1-dimensional and of an integer dtype"),
    (dict(lengths=[1], parents=[None]), "parents must be"),
    (dict(lengths=[2], parents=[-1], tokens=[1]), r"tokens must have one for each of the 2 rows \(got 1\)"),
    (dict(lengths=[2], parents=[-1], ends=[1]), r"numbers of nodes in \[0, 1\), or -1 \(got ends\[0\]=1\)"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG_PARENTS)
def test_wrong_parents_are_refused(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        trees.from_parents(**arguments)


def test_results_may_be_written_to():
    tree = trees.from_sequences([[1, 2, 3], [1, 2, 4]], min_shared=2)
    wanted = {name: getattr(tree, name).tolist() for name in ("tokens", "lengths", "cu_seqlens", "node_parents")}
    for name in wanted:
        getattr(tree, name)[:] = 7
    assert {name: getattr(tree, name).tolist() for name in wanted} == wanted
    assert tree.targets().labels.tolist() == [2, 3, 4]


def test_wrong_calls_of_a_tree_are_refused():
    tree = trees.from_sequences([[1, 2, 3], [1, 2, 4, 5]], min_shared=2)
    for window in ((3, 1), (3, -1), (-2, 0), 3, (1, 2, 3), (0.5, 0)):
        with pytest.raises(InvalidArgument, match=r"Tree.mask: window must be \(left, 0\)"):
            tree.mask(window)
    for sequence in (2, -1, "a", 0.5, [0, 2]):
        with pytest.raises(InvalidArgument, match="Tree.rows_of: sequence must be"):
            tree.rows_of(sequence)
    for weights in ([1.0], np.ones(6), [np.ones(3), np.ones(3)], ["a", "b"], np.ones((7, 1)), 1.0):
        with pytest.raises(InvalidArgument, match="Tree.targets: weights"):
            tree.targets(weights)
    with pytest.raises(InvalidArgument, match=r"values must have one for each of the 4 edges \(got shape=\[3\]\)"):
        tree.targets().gather(np.ones(3))
    with pytest.raises(InvalidArgument, match="the tree must have tokens"):
        trees.from_parents([3], [-1]).targets()
    with pytest.raises(InvalidArgument, match=r"max_rows=3, sequence 1 of 4 tokens"):
        trees.split(tree, 3)
    with pytest.raises(InvalidArgument, match="max_rows must be at least 1"):
        trees.split(tree, 0)


def test_two_million_tokens_take_a_fraction_of_sorting_them():
    """20 prompts of 4,096 tokens, 16 samples each. Processor time, as a ratio; 0.06 when it was written."""
    rng = np.random.default_rng(0)
    sequences = []
    for _ in range(20):
        prompt = rng.integers(0, 150_000, 4096)
        for length in rng.integers(512, 4096, 16):
            sequences.append(np.concatenate([prompt, rng.integers(0, 150_000, length)]))
    flat = np.concatenate(sequences)
    assert flat.size > 2_000_000
    weights = np.ones(flat.size, np.float32)

    def spent(work):
        times = []
        for _ in range(3):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
        return min(times)

    def whole():
        tree = trees.from_sequences(sequences)
        return tree.tokens, tree.positions(), tree.mask(), tree.targets(weights)

    tokens = flat.tolist()
    assert spent(whole) < 0.25 * spent(lambda: sorted(tokens))
