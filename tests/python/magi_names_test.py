# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.magi: names and arguments of versions that differ, each by a value."""

import random

import numpy as np
import pytest

from reference import attention, typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

from tangram import magi  # noqa: E402
from tangram.magi import AttnMaskType, AttnRange, AttnRanges, AttnRectangle, AttnRectangles, _flex, _key  # noqa: E402
from tangram.magi._environment import Environment, read_environment  # noqa: E402

ROWS, HEADS, HEADS_KV, DIM = 24, 4, 2, 16


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def operands(seed=0, rows=ROWS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, n, DIM, generator=generator, dtype=dtype) for n in (HEADS, HEADS_KV, HEADS_KV)]


def key_of(group, total=64, chunk_size=16, **dispatch):
    config = magi.DistAttnConfig(magi.DispatchConfig(**dispatch))
    one = AttnRanges.from_ranges([(0, total)])
    given = (one, one, "causal", total, total, HEADS, HEADS_KV, DIM, 0, chunk_size, group, config)
    return magi.magi_attn_flex_key(*given)


def test_configurations_in_the_orders_of_both_versions():
    alg, mode = magi.SequentialDispatchAlg(), magi.AttnOverlapMode.STATIC
    assert magi.DispatchConfig(alg, 512, True) == magi.DispatchConfig(512, True, alg)
    config = magi.DispatchConfig(512, alg=alg)
    assert (config.chunk_size, config.uneven_shard, config.alg) == (512, False, alg)
    assert magi.DispatchConfig(None, False) == magi.DispatchConfig() and hash(config) != hash(magi.DispatchConfig())
    of_1_0, later = (True, mode, 3, 4, 128, 32), (mode, 3, 4, 128, 32)
    assert magi.OverlapConfig(*of_1_0) == magi.OverlapConfig(*later)
    config = magi.OverlapConfig(*later, magi.GreedyOverlapAlg(), 2.0, 3.0)
    assert (config.enable, config.degree, config.dynamic_max_degree, config.min_chunk_size) == (True, 3, 4, 128)
    assert (config.max_num_chunks, config.calc_cost_factor, config.comm_cost_factor) == (32, 2.0, 3.0)
    shuffled = magi.OverlapConfig(alg=magi.UniformOverlapAlg(random_costs=True, random_seed=1), degree=2)
    assert shuffled.num_stages(4096) == magi.OverlapConfig(degree=2).num_stages(4096) == 2


def test_uneven_shards_where_they_are_even(group):
    assert key_of(group, 64, uneven_shard=True).uneven_shard and not key_of(group, 64).uneven_shard
    with pytest.raises(ValueError, match=r"magi_attn_flex_key: uneven_shard=True .*append 8 rows, .*chunk_size=16\)"):
        key_of(group, 72, uneven_shard=True)


def test_fields_that_programs_read_of_a_key(group, monkeypatch):
    key = key_of(group)
    flags = {
        "is_deterministic_mode_enable": False,
        "is_hierarchical_comm_enable": False,
        "is_qo_comm_enable": False,
        "is_native_grpcoll_enable": False,
        "is_flatten_head_groups_enable": False,
        "is_auto_range_merge_enable": True,
        "is_sdpa_backend_enable": False,
        "is_fa4_backend_enable": False,
        "kernel_backend": magi.MagiAttentionKernelBackend.FFA,
        "precision": None,
    }
    assert {name: getattr(key, name) for name in flags} == flags
    variables = {"KERNEL_BACKEND": "sdpa_ol", "PRECISION": "fp64", "DETERMINISTIC_MODE": "1"}
    variables = {f"MAGI_ATTENTION_{name}": value for name, value in variables.items()}
    monkeypatch.setattr(_key, "env", read_environment(variables))
    key = key_of(group)
    assert key.kernel_backend is magi.MagiAttentionKernelBackend.SDPA_OL and key.is_sdpa_backend_enable
    assert key.precision is magi.MagiAttentionPrecision.FP64 and key.is_deterministic_mode_enable
    assert key.precision.to_torch_dtype() is torch.float64


def test_managers_are_kept_by_key(group):
    magi.clear_cache(group)
    keys = [key_of(group, total) for total in (64, 80, 96)]
    assert magi.dist_attn_runtime_dict_mgr.keys(group) == magi.dist_attn_runtime_dict_mgr.keys() == keys
    manager = magi.DistAttnRuntimeMgr(keys[0])
    assert manager.num_heads_q == HEADS and manager.dist_attn_config == keys[0].dist_attn_config
    magi.dist_attn_runtime_dict_mgr[keys[0]] = manager
    with pytest.raises(ValueError, match="must be that of its key"):
        magi.dist_attn_runtime_dict_mgr[keys[1]] = manager
    own = magi.DistAttnRuntimeDictManager(max_size_per_group=2)
    for key in keys:
        own[key] = magi.DistAttnRuntimeMgr(key)
    assert own.keys(group) == keys[1:] and keys[0] not in own and own.get(keys[0], manager) is manager
    assert own[keys[1]].key is keys[1] and own.get_most_recent_key(group) is keys[1]
    own.clear(group)
    assert own.keys() == []
    with pytest.raises(KeyError):
        own[keys[1]]
    with pytest.raises(ValueError, match="cp_group must be a process group"):
        own.get_most_recent_key(None)
    with pytest.raises(AttributeError, match=r"attn_solver is not there: the plan is key.inner.plan"):
        _ = manager.attn_solver


def test_a_manager_in_the_order_of_1_0(group):
    one = AttnRanges.from_ranges([(0, 64)])
    mask = (one, one, [AttnMaskType.CAUSAL], 64, 64)
    of_1_0 = magi.init_dist_attn_runtime_mgr(*mask, 16, group, True, True, True, magi.DistAttnConfig(), None, 4, 2)
    later = magi.init_dist_attn_runtime_mgr(*mask, 4, 2, None, 16, group)
    assert of_1_0 == later and of_1_0.key.chunk_size == 16 and of_1_0.num_heads_kv == 2
    with pytest.raises(ValueError, match="init_dist_attn_runtime_mgr: is_q_permutable must be True"):
        magi.init_dist_attn_runtime_mgr(*mask, 16, group, True, False, True)
    with pytest.raises(ValueError, match="ref_dispatch_meta_q must be None, make_flex_key_for_new_mask"):
        magi.init_dist_attn_runtime_mgr(*mask, 4, 2, DIM, 16, group, ref_dispatch_meta_q=later)


def test_keys_named_by_tokens_and_by_rows():
    """Versions do not agree on what index_attn_indices name; with one head both are one."""
    q, k, v = operands(1)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.stack([torch.randperm(ROWS, generator=generator)[:6] for _ in range(2)]) for _ in q])
    tokens[3, 1, 2:] = -1
    rows = torch.where(tokens >= 0, tokens * HEADS_KV + torch.arange(HEADS_KV)[None, :, None], -1)

    def out(indices, values, head=None):
        of_q, head = (slice(None), slice(None)) if head is None else (slice(0, 2), head)
        given = {"index_attn_indices": indices.int(), "index_attn_values": values}
        return magi.flex_flash_attn_func(q[:, of_q], k[:, head], v[:, head], **given)[0]

    assert torch.equal(out(rows, "rows"), out(tokens, "tokens"))
    for head in range(HEADS_KV):
        cells = np.zeros((ROWS, ROWS), bool)
        for row in range(ROWS):
            cells[row, tokens[row, head][tokens[row, head] >= 0].numpy()] = True
        of_q, of_kv = slice(2 * head, 2 * head + 2), slice(head, head + 1)
        want = attention(q[:, of_q].numpy(), k[:, of_kv].numpy(), v[:, of_kv].numpy(), cells).out
        np.testing.assert_allclose(out(rows, "rows")[:, of_q].numpy(), want, atol=1e-5)
    one = slice(0, 1)
    assert torch.equal(out(tokens[:, one], None, one), out(tokens[:, one], "rows", one))
    for indices, values, text in (
        (tokens, None, r"index_attn_values must say what .*\(got index_attn_values=None, 2 heads\)"),
        (tokens, "physical", r"must be 'tokens' or 'rows' \(got index_attn_values='physical'\)"),
        (rows + 1, "rows", r"a key must be token \* 2 \+ head \(got key \d+ for query 0, K/V head 0\)"),
    ):
        with pytest.raises(ValueError, match=text):
            out(indices, values)


@pytest.mark.parametrize("layout", [None, "sh", "ssh"])
def test_float64_under_the_published_reference(monkeypatch, layout):
    """What float32 rounds away stays, and rows that see nothing are zeros with gradients of zero."""
    q, k, v = (x.requires_grad_() for x in operands(5, dtype=torch.float64))
    ranges = ([(0, 10), (12, 24)], [(0, 24), (3, 20)], [1, 3])
    cells = typed_cells(*ranges, ROWS, ROWS)
    generator = torch.Generator().manual_seed(7)
    shape = {"sh": (2, HEADS), "ssh": (ROWS, 2, HEADS)}.get(layout)
    sink = None if layout is None else torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    options = {"sink": sink, "sink_layout": layout or "sh", "softmax_scale": 0.3, "softcap": 2.0}
    with pytest.raises(ValueError, match="float64"):
        magi.flex_flash_attn_func(q, k, v, *ranges, **options)
    monkeypatch.setattr(_flex, "env", Environment(kernel_backend="sdpa", backend="reference"))
    out, meta = magi.flex_flash_attn_func(q, k, v, *ranges, **options, return_max_logits=True)
    dout = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    out.backward(dout)
    given = [x.detach().numpy() for x in (q, k, v)]
    of_sink = None if sink is None else sink.detach().numpy()
    want = attention(*given, cells, scale=0.3, softcap=2.0, sink=of_sink, dout=dout.numpy())
    got = {"out": out, "lse": meta.lse, "max_logits": meta.max_logits, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    got |= {} if sink is None else {"dsink": sink.grad}
    for name, value in got.items():
        assert value.dtype == torch.float64, name
        np.testing.assert_allclose(value.detach().numpy(), getattr(want, name), atol=1e-12, err_msg=name)
    for wrong, text in ((torch.zeros(2, 3), "got .2, 3."), (torch.zeros(1, 2, HEADS), "got .1, 2, 4.")):
        with pytest.raises(ValueError, match=f"sink must be .*{text}"):
            layouts = {2: "sh", 3: "ssh"}
            magi.flex_flash_attn_func(q, k, v, *ranges, sink=wrong, sink_layout=layouts[wrong.ndim])


def test_slices_of_ranges_past_the_end():
    """The ends that are named count, as published: one past the end lets the list grow."""
    four = AttnRanges.from_ranges([(6, 8), (8, 9)])
    ranges = AttnRanges.from_ranges([(0, 3), (3, 4)])
    ranges[1:3] = four
    assert ranges.to_naive_ranges() == [(0, 3), (6, 8), (8, 9)]
    ranges[-2:-1] = AttnRanges.from_ranges([(5, 6)])
    assert ranges.to_naive_ranges() == [(0, 3), (5, 6), (8, 9)]
    ranges[:2] = four
    assert ranges.to_naive_ranges() == [(6, 8), (8, 9), (8, 9)]
    for place in (slice(2, 5), slice(0, 1), slice(None)):
        with pytest.raises(ValueError, match="a slice takes as many AttnRanges as it names"):
            ranges[place] = four


def test_ranges_merged_on_a_grid():
    ranges = AttnRanges.from_ranges([(33, 40), (5, 9), (17, 30), (64, 64)])
    assert ranges.merge_with_split_alignment(8).to_naive_ranges() == [(0, 40), (64, 64)]
    assert ranges.merge_with_split_alignment(16).to_naive_ranges() == [(0, 48), (64, 64)]
    assert ranges.merge_with_split_alignment() == ranges.merge()
    with pytest.raises(ValueError, match=r"split_alignment must be a whole number from 1 on \(got split_alignment=0\)"):
        ranges.merge_with_split_alignment(0)


def cells_of_rectangle(rect, size=40):
    i, j = np.arange(size)[:, None], np.arange(size)[None]
    q, k, d = rect.q_range, rect.k_range, rect.d_range
    return (i >= q.start) & (i < q.end) & (j >= k.start) & (j < k.end) & (j - i >= d.start) & (j - i <= d.end)


def test_rectangles_are_their_cells():
    rng = random.Random(3)
    for _ in range(300):
        q0, k0 = rng.randrange(20), rng.randrange(20)
        q, k = AttnRange(q0, q0 + rng.randrange(1, 20)), AttnRange(k0, k0 + rng.randrange(1, 20))
        kind = rng.randrange(4)
        if kind == 3 and q.seqlen > k.seqlen:
            continue
        rect = AttnRectangle(q, k, mask_type=kind)
        want = typed_cells([q.to_naive_range()], [k.to_naive_range()], [kind], 40, 40)
        assert np.array_equal(cells_of_rectangle(rect), want) and rect.area() == want.sum()
        # Shrunk to what has cells.
        for axis, own in ((1, rect.q_range), (0, rect.k_range)):
            seen = np.flatnonzero(want.any(axis))
            assert (own.start, own.end) == (seen[0], seen[-1] + 1)
        assert [rect.is_full(), rect.is_causal(), rect.is_inv_causal(), rect.is_bi_causal()][kind] or rect.is_full()
        typed = rect.to_qk_range_mask_type()
        again = typed_cells(*([x.to_naive_range() for x in part] for part in list(zip(*typed))[:2]),
                            [x[2] for x in typed], 40, 40)  # fmt: skip
        assert np.array_equal(again, want)
        at = rng.randrange(40)
        parts = [part for part in rect.cut_q(at) if part is not None]
        assert np.array_equal(sum(cells_of_rectangle(part).astype(int) for part in parts), want)
        parts = [part for part in rect.cut_k(at) if part is not None]
        assert np.array_equal(sum(cells_of_rectangle(part).astype(int) for part in parts), want)
        inside = rect.get_rect_within_q_segment(at, at + 7)
        rows = want & (np.arange(40) >= at)[:, None] & (np.arange(40) < at + 7)[:, None]
        assert np.array_equal(rows, cells_of_rectangle(inside) if inside is not None else np.zeros_like(want))
    assert AttnRectangle(AttnRange(0, 4), AttnRange(0, 4), AttnRange(-1, 1)).area() == 10
    with pytest.raises(ValueError, match=r"there must be a row, a key and a diagonal"):
        AttnRectangle(AttnRange(0, 4), AttnRange(0, 4), AttnRange(9, 9))


def test_rectangles_as_a_list():
    q, k, kinds = [(0, 8), (8, 20), (20, 20), (20, 24)], [(0, 8), (4, 20), (0, 8), (0, 2)], [1, 0, 0, 3]
    rects = AttnRectangles.from_ranges(q, k, kinds)
    assert len(rects) == rects.size == 2  # those without cells are left out
    assert rects.area() == 36 + 12 * 16 and rects.total_seqlen_qo() == rects.total_seqlen_kv() == 20
    assert rects.get_qo_ranges_union().to_naive_ranges() == [(0, 20)]
    above, below = rects.cut_q(10)
    assert (above.area(), below.area()) == (36 + 2 * 16, 10 * 16) and rects.cut_k(0)[0].is_empty()
    assert rects.get_rects_within_k_segment(4, 6).area() == 4 + 3 + 12 * 2
    made = AttnRectangles()
    made.extend(rects, check=True)
    made.append(rects[0])
    made[2] = rects[1]
    assert made[:2] == rects and hash(made[:2]) == hash(rects) and list(made)[2] == rects[1] and made.is_valid()
    assert repr(AttnRectangles()) == "[-1, -1) x [-1, -1): None" and "[0, 8) x [0, 8)" in repr(rects)
    with pytest.raises(ValueError, match=r"must be equally long \(got 1, 1 and 2\)"):
        AttnRectangles.from_ranges(q[:1], k[:1], [0, 1])


def test_helpers_of_masks():
    corner = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.int32)
    assert torch.equal(magi.AttnMask.make_causal_mask(2, 4), corner)
    assert magi.AttnMask.make_causal_mask(2, 4, "top-left").tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert magi.AttnMask.make_causal_mask(4, 2).tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    with pytest.raises(ValueError, match="align must be 'bottom-right' or 'top-left'"):
        magi.AttnMask.make_causal_mask(2, 2, "middle")
    mask, same = magi.from_mask(corner), magi.from_mask(corner)
    assert mask == same and hash(mask) == hash(same) and mask != magi.from_mask(corner[:1])
    assert repr(mask).startswith("AttnMask(2 x 4, area=7, q_ranges=[[0, 2)]")
    with pytest.raises(magi._mask.NotAvailable, match="visualize: nothing is drawn here"):
        mask.visualize("mask.png")


CU = torch.tensor([0, 10, ROWS], dtype=torch.int32)


def packed_cells(causal):
    borders = [(0, 10), (10, ROWS)]
    return typed_cells(borders, borders, [int(causal)] * 2, ROWS, ROWS)


@pytest.mark.parametrize("function", ["fa2", "fa3", "fa4"])
@pytest.mark.parametrize("layout", ["sh", "ssh"])
def test_functions_with_sinks_over_packed_documents(function, layout):
    q, k, v = (x.requires_grad_() for x in operands(8))
    shape = (2, HEADS) if layout == "sh" else (ROWS, 2, HEADS)
    sink = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    attend = getattr(magi, f"{function}_varlen_func_with_sink")
    out, lse, *rest = attend(q, k, v, CU, CU, 14, 14, sink, layout, causal=True, return_attn_probs=True)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    out.backward(dout)
    given = [x.detach().numpy() for x in (q, k, v)]
    want = attention(*given, packed_cells(True), sink=sink.detach().numpy(), dout=dout.numpy())
    np.testing.assert_allclose(out.detach().numpy(), want.out, atol=1e-5)
    np.testing.assert_allclose(lse.T.detach().numpy(), want.lse, atol=1e-5)
    np.testing.assert_allclose(sink.grad.numpy(), want.dsink, atol=1e-4)
    np.testing.assert_allclose(k.grad.numpy(), want.dk, atol=1e-4)
    assert rest == ([None] if function == "fa2" else [])


@pytest.mark.parametrize("function", ["fa2", "fa3", "fa4"])
def test_functions_with_sinks_over_batches(function):
    q, k, v = (x.view(2, ROWS // 2, -1, DIM) for x in operands(9))
    attend = getattr(magi, f"{function}_func_with_sink")
    generator = torch.Generator().manual_seed(3)
    of_each = torch.randn(2, ROWS // 2, 3, HEADS, generator=generator)
    for sink, layout in ((of_each[0, 0], "sh"), (of_each, "ssh")):
        out = attend(q, k, v, sink, layout, softmax_scale=0.2, causal=True)
        for i in range(2):
            rows = sink if layout == "sh" else sink[i]
            cells = np.tri(ROWS // 2, dtype=bool)
            want = attention(*(x[i].numpy() for x in (q, k, v)), cells, scale=0.2, sink=rows.numpy()).out
            np.testing.assert_allclose(out[i].numpy(), want, atol=1e-5)
    with pytest.raises(ValueError, match=f"^{function}_func_with_sink: sink_layout must be 'sh' or 'ssh'"):
        attend(q, k, v, of_each[0, 0], "shd")
    with pytest.raises(ValueError, match=f"^{function}_func_with_sink: sink must be .*got sink=.2, 12, 3, 2."):
        attend(q, k, v, of_each[..., :2], "ssh")


def test_packed_tensors_with_sinks():
    q, k, v = operands(10)
    q, sink = q[:, :HEADS_KV], torch.randn(2, HEADS_KV, generator=torch.Generator().manual_seed(4))
    rows = {"sink": sink, "causal": True}
    want = magi.fa2_varlen_func_with_sink(q, k, v, CU, CU, 14, 14, **rows)
    kv, qkv = torch.stack([k, v], 1), torch.stack([q, k, v], 1)
    assert torch.equal(magi.fa2_varlen_kvpacked_func_with_sink(q, kv, CU, CU, 14, 14, **rows), want)
    assert torch.equal(magi.fa2_varlen_qkvpacked_func_with_sink(qkv, CU, 14, **rows), want)
    batch = magi.fa2_func_with_sink(q[None], k[None], v[None], **rows)
    assert torch.equal(magi.fa2_kvpacked_func_with_sink(q[None], kv[None], **rows), batch)
    assert torch.equal(magi.fa2_qkvpacked_func_with_sink(qkv[None], **rows), batch)
    assert torch.equal(magi.fa3_qkvpacked_func_with_sink(qkv[None], **rows), batch)
    beside = torch.cat([q, k, v], 1)[None]
    assert torch.equal(magi.fa3_qkvpacked_func_with_sink(beside, num_heads_q=HEADS_KV, **rows), batch)
    with pytest.raises(ValueError, match="fa3_qkvpacked_func_with_sink: qkv must be a tensor .*num_heads_q=5"):
        magi.fa3_qkvpacked_func_with_sink(beside, num_heads_q=5, **rows)


def test_functions_with_sinks_before_there_were_layouts():
    """Then a number stood behind sink: dropout_p of FlashAttention 2."""
    q, k, v = (x[None] for x in operands(12))
    sink = torch.randn(2, HEADS, generator=torch.Generator().manual_seed(4))
    want = magi.fa2_func_with_sink(q, k, v, sink, softmax_scale=0.2, causal=True)
    assert torch.equal(magi.fa2_func_with_sink(q, k, v, sink, 0.0, 0.2, True), want)
    assert torch.equal(magi.fa2_func_with_sink(q, k, v, sink, "sh", 0.0, 0.2, True), want)
    assert torch.equal(magi.fa3_func_with_sink(q, k, v, sink, 0.2, True), want)
    with pytest.raises(ValueError, match="fa2_func_with_sink: dropout is not supported"):
        magi.fa2_func_with_sink(q, k, v, sink, 0.1)
    with pytest.raises(ValueError, match="fa3_func_with_sink: qv is not supported"):
        magi.fa3_func_with_sink(q, k, v, sink, qv=q)
    with pytest.raises(ImportError, match="fa4_qkvpacked_func_with_sink is not there: 1.1.1 dropped it"):
        from tangram.magi import fa4_qkvpacked_func_with_sink  # noqa: F401
