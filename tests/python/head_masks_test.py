# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A list of masks, one for each of equal groups of heads, where a mask is taken."""

import pickle

import numpy as np
import pytest

import tangram
from reference import attention
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
        assert plan == tangram.plan_ahead(tuple(masks), 2, heads=heads, config=config).result(timeout=60)
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
        (MASKS, {"k_ranges": [(0, TOTAL)]}, "need no k_ranges"),
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
