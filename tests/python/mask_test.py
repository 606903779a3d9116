# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks from Python: values against dense cells, messages of errors, drawing."""

import random
import re
from decimal import Decimal

import numpy as np
import pytest

import tangram
from masks import random_typed
from reference import mask_cells, typed_cells
from tangram import AttnSlice, Mask, MaskType, Range


def test_published_types_mean_the_published_cells():
    for seed in range(200):
        q_ranges, k_ranges, types = random_typed(random.Random(seed))
        mask = Mask.from_ranges(q_ranges, k_ranges, types, 24, 24)
        expected = typed_cells(q_ranges, k_ranges, types, 24, 24)
        assert (mask_cells(mask) == expected).all()
        assert mask.area == expected.sum()
        assert Mask.from_ranges(*mask.to_typed(), 24, 24).area == mask.area


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ranges_may_be_arrays_of_any_stride(dtype):
    ranges = np.array([[0, 4], [4, 9]], dtype=dtype)
    expected = Mask.from_ranges([(0, 4), (4, 9)], [(0, 4), (4, 9)], [1, 0])
    assert Mask.from_ranges(ranges, ranges, np.array([1, 0], dtype=dtype)) == expected
    transposed = np.asfortranarray(ranges)
    assert Mask.from_ranges(transposed, [Range(0, 4), Range(4, 9)], [MaskType.CAUSAL, MaskType.FULL]) == expected


def test_builders_by_their_cells():
    n = 20
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    document = np.repeat([0, 1, 2], [7, 1, 12])
    same = document[:, None] == document[None, :]
    cu = [0, 7, 8, 20]
    cases = [
        (Mask.full(n), np.ones((n, n), bool)),
        (Mask.causal(n), j <= i),
        (Mask.causal(4, n), j[:, :] - i[:4] <= n - 4),
        (Mask.varlen(cu), same & (j <= i)),
        (Mask.varlen(cu, causal=False), same),
        (Mask.sliding_window(n, (3, 0)), (j <= i) & (i - j <= 3)),
        (Mask.sliding_window(cu, (2, 1)), same & (j - i <= 1) & (i - j <= 2)),
        (Mask.block_causal(n, 6), j // 6 <= i // 6),
        (Mask.prefix_lm(n, 5), (j < 5) | (j <= i)),
        (Mask.varlen_prefix_lm(cu, [3, 1, 5]), same & ((j <= i) | (j < 3) | ((8 <= j) & (j < 13)))),
        (Mask.global_window(n, 2, (3, 0)), (j <= i) & ((i - j <= 3) | (j < 2) | (i < 2))),
        (Mask.block_sparse(n, n, 8, 8, [(0, 1), (2, 0)]), np.isin(10 * (i // 8) + j // 8, [1, 20])),
    ]
    for mask, cells in cases:
        assert (mask_cells(mask) == cells).all(), mask


def test_shared_prefix():
    cells = mask_cells(Mask.shared_prefix(4, [3, 2]))
    part = np.array([0] * 4 + [1] * 3 + [2] * 2)
    causal = np.tril(np.ones((9, 9), bool))
    assert (cells == causal & ((part[None, :] == 0) | (part[:, None] == part[None, :]))).all()


def test_masks_are_values():
    a = Mask.varlen([0, 8, 16], causal=True)
    b = Mask.from_ranges([(8, 16), (0, 8)], [(8, 16), (0, 8)], [1, 1])
    assert a == b and hash(a) == hash(b) and len({a, b}) == 1
    assert a != Mask.causal(16)
    padded = a.padded(20, 24)
    assert (padded.seqlen_q, padded.seqlen_k, padded.area) == (20, 24, a.area)
    assert padded.slices == a.slices


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Mask.from_ranges([(0, 4)], [(0, 4), (4, 8)]), "equally long (got len(q_ranges)=1, len(k_ranges)=2)"),
        (lambda: Mask.from_ranges([(0, 4)], [(0, 4)], [4]), "mask types are 0 to 3 (got 4 for range 0)"),
        (lambda: Mask.from_ranges([(0, 4)], [(0, 4)], [1, 1]), "a mask type for each range (got 2 types for 1 ranges)"),
        (lambda: Mask.from_ranges([(0, 4, 5)], [(0, 4)]), "q_ranges must hold pairs"),
        (lambda: Mask.from_ranges([(0, "x")], [(0, 4)]), "q_ranges must hold integers (got 'x')"),
        (lambda: Mask.from_ranges(7, [(0, 4)]), "q_ranges must be a list of (begin, end)"),
        (lambda: Mask.from_ranges(np.zeros((2, 2)), [(0, 4)]), "must hold int32 or int64"),
        (lambda: Mask.from_ranges(np.zeros((2, 3), np.int32), [(0, 4)]), "must have shape [n, 2]"),
        (lambda: Mask(8, 8, [AttnSlice(Range(0, 9), Range(0, 8))]), "Mask"),
        (lambda: Mask.from_ranges([(0, 4), (2, 6)], [(0, 4), (0, 4)]), "Mask"),
        (lambda: Mask.varlen([0, 8, 4]), "varlen"),
    ],
)
def test_wrong_input_is_named(make, text):
    with pytest.raises(tangram.InvalidArgument, match=re.escape(text)) as error:
        make()
    assert isinstance(error.value, ValueError) and isinstance(error.value, tangram.Error)


def test_block_indices_come_as_lists_arrays_or_with_offsets():
    rows = [[0], [2, 0], [1, 2], []]
    seen = np.zeros((4, 3), dtype=bool)
    for i, row in enumerate(rows):
        seen[i, row] = True
    cells = seen.repeat(8, 0).repeat(16, 1)[:30, :40]  # the last blocks are short
    padded = np.array([row + [-1] * (2 - len(row)) for row in rows], dtype=np.int32)
    flat = np.array([block for row in rows for block in row])
    for indices, offsets in ((rows, None), (padded, None), (padded.astype(np.int64), None), (flat, [0, 1, 3, 5, 5])):
        mask = Mask.from_block_indices(30, 40, 8, 16, indices, offsets)
        assert (mask_cells(mask) == cells).all()
    i, j = np.arange(30)[:, None], np.arange(40)[None, :]
    causal = Mask.from_block_indices(30, 40, 8, 16, padded, causal=True)
    assert (mask_cells(causal) == (cells & (j <= i + 10))).all()
    for wrong, text in (([[3], [], [], []], "3"), ([1, 2], "indices"), ([[2**40], [], [], []], "32 bits")):
        with pytest.raises(tangram.InvalidArgument, match=text):
            Mask.from_block_indices(30, 40, 8, 16, wrong)


def test_timeout_is_both_a_runtime_error_and_a_timeout_error():
    assert issubclass(tangram.Timeout, RuntimeError) and issubclass(tangram.Timeout, TimeoutError)
    assert not issubclass(tangram.InvalidArgument, RuntimeError)


@pytest.mark.parametrize("length", [np.float32(3.7), np.float64(3.7), "3", Decimal("3.7")])
def test_lengths_that_are_no_whole_numbers_are_refused_rather_than_cut(length):
    for make in (Mask.full, lambda n: Range(0, n), lambda n: tangram.plan(Mask.full(64), n)):
        with pytest.raises(TypeError):
            make(length)


def test_lengths_may_be_integers_of_numpy():
    assert Mask.full(np.int32(3), np.uint8(4)) == Mask.full(3, 4)
    assert tangram.plan(Mask.full(64), np.array(4)).cp_size == 4


def test_inferred_masks_have_the_published_form():
    *pieces, total_q, total_k = tangram.infer_attn_mask_from_cu_seqlens([0, 5, 9], [0, 5, 9], causal=True)
    assert (total_q, total_k) == (9, 9)
    assert (typed_cells(*pieces, 9, 9) == mask_cells(Mask.varlen([0, 5, 9]))).all()
    i, j = np.arange(12)[:, None], np.arange(12)[None, :]
    pieces = tangram.infer_attn_mask_from_sliding_window((0, 12), (0, 12), (3, 1))
    assert (typed_cells(*pieces, 12, 12) == ((j - i <= 1) & (i - j <= 3))).all()


def test_drawing_covers_the_visible_area():
    for mask in (Mask.causal(64), Mask.sliding_window(64, (5, 3)), Mask.block_causal(60, 7), Mask.prefix_lm(64, 9)):
        html = mask._repr_html_()
        scale = 320 / 64 if mask.seqlen_q == 64 else 320 / 60
        drawn = 0.0
        for points in re.findall(r'points="([^"]*)"', html):
            corners = np.array([[float(c) for c in p.split(",")] for p in points.split()]) / scale
            x, y = corners[:, 0], corners[:, 1]
            drawn += abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
        # A diagonal cuts half a cell off or adds half a cell where it meets an edge; coordinates have two digits.
        assert abs(drawn - mask.area) <= 2 * len(mask.slices) + 0.002 * mask.area
        assert f"{len(mask.slices)} slices" in html


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Mask.causal(1.5), "Mask.causal: seqlen_q must be a whole number of 64 bits (got 1.5)"),
        (lambda: Mask.causal(8, "4"), "Mask.causal: seqlen_k must be a whole number of 64 bits (got '4')"),
        (lambda: Mask.full(1 << 70), "Mask.full: seqlen_q must be a whole number of 64 bits (got 118059"),
        (lambda: Mask.sliding_window(16, 4), "Mask.sliding_window: window must be a pair (left, right) of whole"),
        (lambda: Mask.global_window(16, 2, (1,)), "Mask.global_window: window must be a pair (left, right)"),
        (lambda: Mask.block_causal(16, 2.5), "Mask.block_causal: block_size must be a whole number"),
        (lambda: Mask.prefix_lm(16, None), "Mask.prefix_lm: prefix must be a whole number of 64 bits (got None)"),
    ],
)
def test_wrong_types_are_refused_in_our_words(call, text):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(text)


def test_mask_types_by_name_as_in_json():
    ranges = [(0, 8), (8, 16)], [(0, 8), (0, 16)]
    assert Mask.from_ranges(*ranges, ["full", "causal"]) == Mask.from_ranges(*ranges, [0, 1])
    assert Mask.from_ranges(*ranges, "bi_causal") == Mask.from_ranges(*ranges, [3, 3])
    assert Mask.from_ranges(*ranges, np.array([2, 0])) == Mask.from_ranges(*ranges, ["inv_causal", 0])
    with pytest.raises(tangram.InvalidArgument, match="mask types are full, causal, .*got 'diagonal'"):
        Mask.from_ranges(*ranges, ["diagonal", "full"])


def test_pairs_of_any_kind_are_the_same_ranges():
    expected = Mask.from_ranges([(0, 4), (4, 9)], [(0, 4), (0, 9)], [1, 0])
    first, second = [0, 4], [np.int64(4), 9]
    for q in ([first, second], ((0, 4), (4, 9)), [np.array(first), tuple(second)], [Range(0, 4), second]):
        assert Mask.from_ranges(q, [(0, 4), [0, 9]], ["causal", 0]) == expected
    for wrong, text in (
        ([(0, 4), (4, 2**70)], "q_ranges must hold integers (got 1180591620717411303424)"),
        ([(0, 4), (4, 9.5)], "q_ranges must hold integers (got 9.5)"),
        ([(0, 4), (4, 9, 10)], "q_ranges must hold pairs (begin, end) (got (4, 9, 10))"),
        (7, "q_ranges must be a list of (begin, end) or an array [n, 2] (got 7)"),
    ):
        with pytest.raises(tangram.InvalidArgument) as error:
            Mask.from_ranges(wrong, [(0, 4), (0, 9)])
        assert text in str(error.value)
