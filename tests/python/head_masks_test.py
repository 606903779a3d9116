# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A list of masks, one for each of equal groups of heads, where a mask is taken."""

import pickle

import numpy as np
import pytest

import tangram
from reference import attention, mask_cells
from tangram import DistAttnConfig, HeadConfig, Mask, MovementConfig

TOTAL, HEADS, HEADS_KV, DIM = 70, 4, 2, 8
MASKS = [Mask.causal(TOTAL), Mask.varlen([0, 30, TOTAL], causal=False)]
ROWS, COLUMNS = np.arange(TOTAL)[:, None], np.arange(TOTAL)[None, :]
CELLS = [COLUMNS <= ROWS, (ROWS < 30) == (COLUMNS < 30)]


def operands():
    rng = np.random.default_rng(0)
    q, dout = rng.standard_normal((2, TOTAL, HEADS, DIM), dtype=np.float32)
    k, v = rng.standard_normal((2, TOTAL, HEADS_KV, DIM), dtype=np.float32)
    return q, k, v, rng.standard_normal((1, HEADS), dtype=np.float32), dout


def expected(name):
    q, k, v, sink, dout = operands()
    parts = []
    for g, cells in enumerate(CELLS):
        of_q, of_kv = slice(2 * g, 2 * g + 2), slice(g, g + 1)
        one = attention(q[:, of_q], k[:, of_kv], v[:, of_kv], cells, sink=sink[:, of_q], dout=dout[:, of_q])
        parts.append(getattr(one, name))
    return np.concatenate(parts, 0 if name == "max_logits" else 1)


def test_arrays():
    q, k, v, sink, _ = operands()
    out, meta = tangram.flex_flash_attn_func(q, k, v, MASKS, sink=sink, return_max_logits=True)
    np.testing.assert_allclose(out, expected("out"), atol=1e-5)
    np.testing.assert_allclose(meta.lse, expected("lse"), atol=1e-5)
    np.testing.assert_allclose(meta.max_logits, expected("max_logits"), atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_with_gradients(compiled):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v, sink, dout = (torch.from_numpy(x) for x in operands())
    leaves = [x.requires_grad_() for x in (q, k, v, sink)]

    def attend(q, k, v, sink):
        return tangram.flex_flash_attn_func(q, k, v, MASKS, sink=sink)[0]

    run = torch.compile(attend, backend="aot_eager", fullgraph=True) if compiled else attend
    out = run(*leaves)
    out.backward(dout)
    for name, got in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad), ("dsink", sink.grad)):
        np.testing.assert_allclose(got.numpy(), expected(name), atol=1e-4, err_msg=name)


def test_plans():
    heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM)
    masks = [Mask.causal(128), Mask.sliding_window(128, (9, 0))]
    for movement in ("kv", "qo", "auto"):
        config = DistAttnConfig(movement=MovementConfig(movement))
        plan = tangram.plan(masks, 2, heads=heads, config=config)
        assert plan.mask.area == sum(mask.area for mask in masks)
        assert "2 of as many head groups, 128 x 128 rows" in plan.explain()
        assert plan == tangram.plan_async(tuple(masks), 2, heads=heads, config=config).result(timeout=60)
        assert plan.q_dispatch == tangram.plan(masks[0], 2, heads=heads).q_dispatch
        with pytest.raises(ValueError, match="cannot be pickled"):
            pickle.dumps(plan)
    assert "head" in plan.to_json()


def test_what_fits_nothing_is_refused():
    q, k, v, _, _ = operands()
    for masks, arguments, text in (
        (
            MASKS * 2,
            {},
            "flex_flash_attn_func: the number of masks must divide the heads .got 4 masks, 4 query",
        ),
        (MASKS, {"k_ranges": [(0, TOTAL)]}, "must stand alone, without k_ranges and attn_type_map .got k_ranges too"),
        ([MASKS[0], (0, TOTAL)], {}, "must hold nothing else"),
        ([MASKS[0], Mask.causal(TOTAL + 1)], {}, "must have the lengths of q and k"),
    ):
        with pytest.raises(tangram.InvalidArgument, match=text):
            tangram.flex_flash_attn_func(q, k, v, masks, **arguments)
    with pytest.raises(tangram.InvalidArgument, match=r"must have shape .rows, heads, dim."):
        tangram.flex_flash_attn_func(q[0], k, v, MASKS)
    with pytest.raises(tangram.InvalidArgument, match="need movement.algorithm kv, qo or auto"):
        config = DistAttnConfig(movement=MovementConfig("network_flow"))
        tangram.plan(MASKS, 2, heads=HeadConfig(HEADS, HEADS_KV, DIM, DIM), config=config)


def block_choices(rng, groups, blocks, width):
    """Indices [groups, blocks, width] padded by -1; some query blocks see nothing."""
    indices = np.full((groups, blocks, width), -1, np.int32)
    for rows in indices:
        for row in rows:
            chosen = rng.permutation(blocks)[: rng.integers(0, width + 1)]
            row[: len(chosen)] = chosen
    return indices


@pytest.mark.parametrize("layout", ["shd", "bshd"])
def test_blocks_that_each_key_head_chose(layout):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(2)
    rows, block, heads, heads_kv = 60, 8, 8, 4
    masks = tangram.masks_from_block_indices(rows, rows, block, block, block_choices(rng, heads_kv, 8, 3), causal=True)
    batch = 2 if layout == "bshd" else 1
    q, dout = torch.randn(2, batch * rows, heads, DIM)
    k, v = torch.randn(2, batch * rows, heads_kv, DIM)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    shaped = [x.view(batch, rows, -1, DIM) if layout == "bshd" else x for x in leaves]
    out, _ = tangram.flex_flash_attn_func(*shaped, masks, layout=layout)
    out.backward(dout.view(out.shape))
    for b in range(batch):
        of = slice(b * rows, (b + 1) * rows)
        for g, mask in enumerate(masks):
            heads_of = slice(2 * g, 2 * g + 2)
            given = [x[of, h].detach().numpy() for x, h in ((q, heads_of), (k, slice(g, g + 1)), (v, slice(g, g + 1)))]
            want = attention(*given, mask_cells(mask), dout=dout[of, heads_of].numpy())
            got = out.detach().reshape(batch * rows, heads, DIM)[of, heads_of]
            np.testing.assert_allclose(got.numpy(), want.out, atol=1e-5)
            np.testing.assert_allclose(q.grad[of, heads_of].numpy(), want.dq, atol=1e-4)
            np.testing.assert_allclose(k.grad[of, g : g + 1].numpy(), want.dk, atol=1e-4)
            np.testing.assert_allclose(v.grad[of, g : g + 1].numpy(), want.dv, atol=1e-4)


def test_equal_masks_and_a_list_of_one_are_that_mask():
    q, k, v, _, _ = operands()
    want, _ = tangram.flex_flash_attn_func(q, k, v, MASKS[0])
    for masks in ([MASKS[0]], [Mask.causal(TOTAL), Mask.causal(TOTAL)]):
        out, _ = tangram.flex_flash_attn_func(q, k, v, masks)
        np.testing.assert_array_equal(out, want)


def test_all_heads_are_one_attention():
    backend = tangram.Backend("cpu")
    heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM, "float32")
    attend = tangram.FlexAttention(MASKS, heads, backend)
    q, k, v, _, _ = operands()
    out, lse = np.empty_like(q), np.empty((TOTAL, HEADS), np.float32)
    attend.forward(q, k, v, out, lse)
    np.testing.assert_allclose(out, tangram.flex_flash_attn_func(q, k, v, MASKS)[0], atol=0)
    for wrong in ([], [MASKS[0], Mask.causal(TOTAL + 1)], [MASKS[0]] * 4):
        with pytest.raises(tangram.InvalidArgument, match="^FlexAttention: "):
            tangram.FlexAttention(wrong, heads, backend)


def test_auto_takes_the_only_strategy_that_has_masks_of_head_groups():
    masks = [Mask.causal(256), Mask.sliding_window(256, (16, 0))]
    heads = HeadConfig(4, 2, 16)
    auto, plain = (
        tangram.plan(masks, 4, heads=heads, config=DistAttnConfig(strategy=strategy))
        for strategy in ("auto", "tangram")
    )
    assert auto == plain and auto.config.strategy == plain.config.strategy
    with pytest.raises(tangram.InvalidArgument, match="need strategy tangram, or auto, which takes it .got ring."):
        tangram.plan(masks, 4, heads=heads, config=DistAttnConfig(strategy="ring"))
