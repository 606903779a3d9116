# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""flex_flash_attn_func on NumPy arrays: values against float64, messages of errors."""

import random
import re

import numpy as np
import pytest

import tangram
from masks import random_typed
from reference import attention, mask_cells, typed_cells
from tangram import InvalidArgument, Mask, flex_flash_attn_func


def operands(seed, rows=24, heads=4, heads_kv=2, dim=16, dim_v=16, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = [(rows, heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("backend", [None, "reference"])
def test_random_masks_and_options_agree_with_float64(backend):
    for seed in range(30):
        rng = random.Random(seed)
        ranges = random_typed(rng)
        q, k, v = operands(
            seed, heads=4, heads_kv=rng.choice([1, 2, 4]), dim=rng.choice([8, 32]), dim_v=rng.choice([8, 16])
        )
        layout = rng.choice([None, "sh", "ssh"])
        sink = None
        if layout:
            sink = (
                np.random.default_rng(seed)
                .standard_normal((24, 2, 4) if layout == "ssh" else (3, 4))
                .astype(np.float32)
            )
        softcap = rng.choice([0.0, 1.5])
        out, meta = flex_flash_attn_func(
            q,
            k,
            v,
            *ranges,
            sink=sink,
            sink_layout=layout or "sh",
            softcap=softcap,
            softmax_scale=0.3,
            return_max_logits=True,
            backend=backend,
        )
        expected = attention(q, k, v, typed_cells(*ranges, 24, 24), scale=0.3, softcap=softcap, sink=sink)
        # float32 sums of at most 24 products of values around 1.
        np.testing.assert_allclose(out, expected.out, atol=2e-5)
        np.testing.assert_allclose(meta.lse, expected.lse, atol=2e-5)
        np.testing.assert_allclose(meta.max_logits, expected.max_logits, atol=2e-5)


def test_half_precision_keeps_its_dtype_and_may_give_float32():
    q, k, v = operands(1, dtype=np.float16)
    mask = Mask.causal(24)
    expected = attention(q, k, v, mask_cells(mask)).out
    out, _ = flex_flash_attn_func(q, k, v, mask)
    assert out.dtype == np.float16
    np.testing.assert_allclose(out, expected, atol=4e-3)  # 11 bits of fraction, values up to 3
    out, meta = flex_flash_attn_func(q, k, v, mask, out_dtype=np.float32)
    assert out.dtype == np.float32 and meta.max_logits is None
    np.testing.assert_allclose(out, expected, atol=4e-3)


def test_views_of_any_stride_are_read_right():
    mask = Mask.causal(24)
    packed = np.random.default_rng(0).standard_normal((24, 3, 4, 16)).astype(np.float32)
    expected, _ = flex_flash_attn_func(*(np.ascontiguousarray(packed[:, i]) for i in range(3)), mask)
    out, _ = flex_flash_attn_func(packed[:, 0], packed[:, 1], packed[:, 2], mask)
    assert (out == expected).all()
    swapped = [np.ascontiguousarray(packed[:, i].transpose(2, 1, 0)).transpose(2, 1, 0) for i in range(3)]
    out, _ = flex_flash_attn_func(*swapped, mask)
    assert (out == expected).all()
    reversed_rows = [np.ascontiguousarray(packed[::-1, i])[::-1] for i in range(3)]
    out, _ = flex_flash_attn_func(*reversed_rows, mask)
    assert (out == expected).all()
    q = packed[:, 0]
    one_head = [np.ascontiguousarray(packed[:, i, :1]) for i in (1, 2)]
    repeated, _ = flex_flash_attn_func(q, *(np.broadcast_to(x, q.shape) for x in one_head), mask)
    np.testing.assert_allclose(repeated, flex_flash_attn_func(q, *one_head, mask)[0], atol=1e-6)


def test_bytes_in_foreign_order_are_refused_by_name():
    arrays = [x.astype(">f4") for x in operands(4)]
    with pytest.raises(InvalidArgument, match="must share one dtype .* \\(got q=>f4, k=>f4, v=>f4\\)"):
        flex_flash_attn_func(*arrays, Mask.causal(24))


def test_ranges_that_change_in_place_are_seen():
    q, k, v = operands(3)
    ranges = np.array([[0, 24]], dtype=np.int32)
    first, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    ranges[0, 1] = 12
    second, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    assert (second[12:] == 0).all() and (first[12:] != 0).any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"k": np.zeros((24, 3, 16), np.float32)},
            "be a multiple of those of k (got q=(24, 4, 16)",
        ),
        ({"q": np.zeros((24, 4, 8), np.float32)}, "q and k equal dims"),
        ({"q": np.zeros((24, 64), np.float32)}, "must have shape [rows, heads, dim] (got q=(24, 64)"),
        ({"v": np.zeros((24, 2, 16), np.float64)}, "must share one dtype"),
        ({"dropout_p": 0.1}, "dropout is not supported, dropout_p must be 0 (got 0.1)"),
        ({"sink": np.zeros((2, 3), np.float32)}, "sink must be contiguous float32 of shape [n, 4]"),
        ({"sink": np.zeros((2, 4), np.float32), "sink_layout": "hs"}, "sink_layout must be 'sh' or 'ssh' (got 'hs')"),
        ({"softmax_scale": -1.0}, "softmax_scale must be finite and positive (got -1)"),
        ({"backend": "nonsense"}, "got backend='nonsense'"),
        ({"q_ranges": [(0, 25)]}, "25"),
        ({"q_ranges": [(0, 24), (0, 24)], "k_ranges": [(0, 24), (3, 9)]}, "twice"),
        ({"q_ranges": Mask.causal(20), "k_ranges": None}, "must have the lengths of q and k (got mask 20 x 20"),
        ({"k_ranges": None}, "or ranges with as many k_ranges beside them (got list and no k_ranges)"),
        ({"q_ranges": "causal", "k_ranges": None}, "q_ranges must be a Mask, or ranges with as many k_ranges"),
        ({"softmax_scale": "small"}, "flex_flash_attn_func: softmax_scale must be a number or None (got str)"),
        ({"out_dtype": np.float16}, "out must be float32"),
        ({"q": [[[1.0]]]}, "q must be a tensor or a NumPy array (got list)"),
    ],
)
def test_wrong_input_is_named(change, text):
    q, k, v = operands(0)
    arguments = {"q": q, "k": k, "v": v, "q_ranges": [(0, 24)], "k_ranges": [(0, 24)], **change}
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        flex_flash_attn_func(**arguments)


def test_backends_are_listed():
    names = [info.name for info in tangram.list_backends()]
    assert "reference" in names and all(info.detail for info in tangram.list_backends())
