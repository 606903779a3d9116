# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.magi: programs of the published API as one rank (ranks/published_checks.py runs them as several), what is
refused, and variables."""

import warnings

import numpy as np
import pytest

from reference import attention, typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from ranks import published_checks as published  # noqa: E402
from tangram import magi  # noqa: E402
from tangram.magi import AttnRanges, _api, _flex, _key  # noqa: E402
from tangram.magi._environment import Environment  # noqa: E402

TOTAL, HEADS, HEADS_KV, DIM = published.TOTAL, published.HEADS, published.HEADS_KV, published.DIM
ONE = AttnRanges.from_ranges([(0, TOTAL)])


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def env(monkeypatch):
    """Other variables for a while."""

    def use(**values):
        for module in (_api, _flex, _key):
            monkeypatch.setattr(module, "env", Environment(**values))

    return use


@pytest.mark.parametrize(
    "check", ["flex", "orders", "documents_and_new_masks", "partial_gradients", "managers", "float64", "clearing"]
)
def test_programs_of_the_published_api(group, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        getattr(published, f"check_{check}")(group)


def flex_key(group, **changes):
    given = {
        "q_ranges": ONE,
        "k_ranges": ONE,
        "attn_mask_type": "causal",
        "total_seqlen_q": TOTAL,
        "total_seqlen_k": TOTAL,
        "num_heads_q": HEADS,
        "num_heads_kv": HEADS_KV,
        "head_dim": DIM,
        "pad_size": 0,
        "chunk_size": 16,
        "cp_group_or_mesh": group,
    }
    return magi.magi_attn_flex_key(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_mask_type": "casual"}, r"'full', 'causal', 'bi_causal', 'inv_causal' \(got attn_mask_type='casual'\)"),
        ({"attn_mask_type": ["full", "full"]}, r"one for each of the 1 ranges \(got 2\)"),
        ({"k_ranges": AttnRanges()}, "q_ranges and k_ranges must be equally long"),
        ({"q_ranges": 5}, r"q_ranges must be AttnRanges, or pairs \(start, end\)"),
        ({"q_ranges": AttnRanges.from_ranges([(0, 151)])}, r"must end within total_seqlen_q \(got end=151"),
        ({"total_seqlen_k": 160}, "total_seqlen_q and total_seqlen_k must be equal"),
        ({"cp_group_or_mesh": 4}, r"must be a ProcessGroup or a DeviceMesh .*\(got int\)"),
        ({"is_same_source": False}, r"is_same_source must be True.*got is_same_source=False"),
        ({"is_k_permutable": False}, "is_k_permutable must be True"),
        ({"chunk_size": 0}, r"chunk_size must be a whole number from 1 on \(got chunk_size=0\)"),
        ({"pad_size": -1}, r"pad_size must be a whole number from 0 on \(got pad_size=-1\)"),
        ({"dist_attn_config": {"degree": 2}}, "dist_attn_config must be a DistAttnConfig of tangram.magi"),
        (
            {"dist_attn_config": magi.DistAttnConfig(magi.DispatchConfig(chunk_size=32))},
            r"chunk_size may be given once \(got chunk_size=16, DispatchConfig\(chunk_size=32\)\)",
        ),
        (
            {"dist_attn_config": magi.DistAttnConfig(magi.DispatchConfig(magi.ToppHeapDispatchAlg(0.9)))},
            "ToppHeapDispatchAlg: top_p has no counterpart",
        ),
    ],
)
def test_what_a_key_cannot_be_is_refused_by_name(group, changes, message):
    with pytest.raises(ValueError, match=message):
        flex_key(group, **changes)


def test_keys_are_values(group):
    key, same, other = flex_key(group), flex_key(group), flex_key(group, attn_mask_type="full")
    assert key == same and hash(key) == hash(same) and key != other
    padded = flex_key(group, pad_size=10)
    assert (padded.pad_size, padded.total_seqlen_k, padded.q_ranges[-1].start) == (10, TOTAL + 10, TOTAL)
    computed = flex_key(group, pad_size=3)  # which does not make whole chunks
    assert computed.pad_size == 10
    made = magi.init_dist_attn_runtime_key(
        padded.q_ranges,
        padded.k_ranges,
        padded.attn_mask_type,
        padded.total_seqlen_q,
        padded.total_seqlen_k,
        HEADS,
        HEADS_KV,
        DIM,
        padded.pad_size,
        padded.chunk_size,
        group,
        None,
        magi.DistAttnConfig(),
    )
    assert made == padded
    of_1_0 = (padded.pad_size, padded.chunk_size, group, None, magi.DistAttnConfig(), HEADS, HEADS_KV)
    typed = (padded.q_ranges, padded.k_ranges, padded.attn_mask_type, padded.total_seqlen_q, padded.total_seqlen_k)
    of_1_0_key = magi.init_dist_attn_runtime_key(*typed, *of_1_0)
    assert (of_1_0_key.pad_size, of_1_0_key.num_heads_kv, of_1_0_key.head_dim) == (10, HEADS_KV, None)
    with pytest.raises(ValueError, match="calc_attn: key must be a key of tangram.magi"):
        magi.calc_attn(*published.whole(0), key.inner)


def test_keys_are_found_by_the_ranks_of_a_group(group):
    """A program has the mesh in one place and its process group in another."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("cp",))
    key = flex_key(mesh)
    for each in (mesh, key.cp_group, group, None):
        assert magi.get_most_recent_key(each) == key
    other = flex_key(group, attn_mask_type="full")
    assert magi.get_most_recent_key(mesh) == other
    magi.clear_cache(group)
    with pytest.raises(ValueError, match="get_most_recent_key: a key must have been made for this group"):
        magi.get_most_recent_key(mesh)
    with pytest.raises(ValueError, match=r"get_most_recent_key: cp_group_or_mesh must be .*got int"):
        magi.get_most_recent_key(4)


def test_values_of_another_dim_than_keys(group):
    key = flex_key(group, head_dim_v=8)
    assert key.inner.config.heads.head_dim_v == 8 and key.head_dim_v == 8
    q, k, _ = published.whole(4)
    v = torch.randn(TOTAL, HEADS_KV, 8, generator=torch.Generator().manual_seed(5))
    out, _ = magi.calc_attn(*(magi.dispatch(x, key) for x in (q, k, v)), key)
    causal = typed_cells([(0, TOTAL)], [(0, TOTAL)], [1], TOTAL, TOTAL)
    want = attention(*(x.detach().numpy() for x in (q, k, v)), causal)
    np.testing.assert_allclose(magi.undispatch(out, key).detach().numpy(), want.out, atol=1e-4)


def test_errors_carry_the_name_that_was_called(group):
    cu = [0, 4, 3]
    with pytest.raises(ValueError, match="^magi_attn_varlen_key: cu_seqlens_q must not decrease"):
        magi.magi_attn_varlen_key(cu, cu, HEADS, HEADS_KV, DIM, 0, 16, group)
    with pytest.raises(ValueError, match="^magi_attn_flex_key: .*num_heads_q must be a positive multiple"):
        flex_key(group, num_heads_q=3)
    twice = AttnRanges.from_ranges([(0, TOTAL), (0, 9)])
    given = (twice, twice, "full", TOTAL, TOTAL, HEADS, HEADS_KV, DIM, 0, 16, group)
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ValueError, match="^magi_attn_flex_dispatch: slices must not cover a cell twice"),
    ):
        magi.magi_attn_flex_dispatch(torch.zeros(TOTAL), *given)
    key = flex_key(group)
    with pytest.raises(ValueError, match="^make_flex_key_for_new_mask_after_dispatch: .*cover a cell twice"):
        magi.make_flex_key_for_new_mask_after_dispatch(twice, twice, "full", key)
    with pytest.raises(ValueError, match=r"roll: shift must be an integer .got shift=0.5"):
        magi.roll(magi.dispatch(torch.arange(TOTAL), key), 0.5, 0, key)


def test_a_mesh_of_two_dimensions(group, env):
    assert magi.init_hierarchical_mesh(1, 1, 1) is None
    env(hierarchical_comm=True)
    assert magi.init_hierarchical_mesh(1, 1, 1).mesh_dim_names == ("inter", "intra")
    with pytest.raises(ValueError, match=r"world_size_inter_node \* world_size_intra_node .got 4, 1 and 2"):
        magi.init_hierarchical_mesh(4, 1, 2)


def test_variables_reach_the_calls(group, env):
    env(backend="reference", dsink_reduce="sum", min_chunks_per_rank=5)
    key = flex_key(group, chunk_size=None)
    assert key.chunk_size == 30  # 150 rows in five chunks
    tensors = published.whole(2)
    out, _ = magi.calc_attn(*(magi.dispatch(x, key) for x in tensors), key)
    cells = typed_cells([(0, TOTAL)], [(0, TOTAL)], [1], TOTAL, TOTAL)
    exact = attention(*(x.detach().numpy() for x in tensors), cells).out.astype(np.float32)
    # float64 inside: what is left is the rounding of results below 4.
    np.testing.assert_allclose(magi.undispatch(out, key).detach().numpy(), exact, atol=5e-7)
    env(precision="bfloat16")
    rounded, _ = magi.calc_attn(*(magi.dispatch(x, key) for x in tensors), key)
    assert rounded.dtype == torch.float32 and torch.equal(rounded, rounded.bfloat16().float())
    env(qo_comm=True)
    assert flex_key(group).inner.config.movement.algorithm == "auto"
    env(hierarchical_comm=True)
    with pytest.raises(ValueError, match="must be a DeviceMesh of two dimensions"):
        flex_key(group)


def flex_operands(seed=0, rows=24):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, n, DIM, generator=generator) for n in (HEADS, HEADS_KV, HEADS_KV)]


def test_flex_flash_attn_func_in_the_order_of_1_0():
    tensors = flex_operands()
    ranges = [torch.tensor(r, dtype=torch.int32) for r in ([[0, 10], [10, 24]], [[0, 24], [3, 20]])]
    types, sink = torch.tensor([1, 3], dtype=torch.int32), torch.randn(2, HEADS)
    want, meta = magi.flex_flash_attn_func(
        *tensors, *ranges, types, sink=sink, softmax_scale=0.3, softcap=2.0, deterministic=True, sm_margin=4
    )
    for given in ((sink, 0.3, 2.0, True, 4, True), (sink, "sh", 0.3, 2.0, True, 4)):
        out, again = magi.flex_flash_attn_func(*tensors, *ranges, types, *given)
        assert torch.equal(out, want) and torch.equal(again.lse, meta.lse) and again.max_logits is None
    cells = typed_cells(*(r.tolist() for r in (*ranges, types)), 24, 24)
    expected = attention(*(x.numpy() for x in tensors), cells, scale=0.3, softcap=2.0, sink=sink.numpy())
    np.testing.assert_allclose(want.numpy(), expected.out, atol=1e-4)
    lists = [AttnRanges.from_ranges(r.tolist()) for r in ranges]
    assert torch.equal(magi.flex_flash_attn_func(*tensors, *lists, [1, 3], sink, 0.3, 2.0)[0], want)
    early = magi.flex_flash_attn_func(*tensors, *lists, [1, 3], 0.3, 2.0, True, 4)[0]  # before there were sinks
    assert torch.equal(early, magi.flex_flash_attn_func(*tensors, *lists, [1, 3], softmax_scale=0.3, softcap=2.0)[0])
    with pytest.raises(ValueError, match="sinks have no values .*got sink_layout='shd'"):
        magi.flex_flash_attn_func(*tensors, *ranges, types, sink=sink, sink_layout="shd")
    with pytest.raises(ValueError, match="needs q_ranges and k_ranges, or index_attn_indices"):
        magi.flex_flash_attn_func(*tensors)


def test_keywords_beside_arguments_by_position_count(monkeypatch):
    """They were dropped, and results were those of the defaults."""
    tensors, ranges = flex_operands(), ([(0, 24)], [(0, 24)], [1])
    sink, indices = torch.randn(2, HEADS), torch.zeros(24, HEADS_KV, 1, dtype=torch.int32)

    def out(*given, **named):
        return magi.flex_flash_attn_func(*tensors, *ranges, *given, **named)[0]

    for given, named in (
        ({"sink": None}, {"softmax_scale": 2.0}),
        ({"sink": sink}, {"softcap": 2.0}),
        ({"softmax_scale": 0.3}, {"sink": sink}),
        ({"softmax_scale": 0.3, "softcap": 2.0}, {"sink": sink.expand(24, 2, HEADS), "sink_layout": "ssh"}),
    ):
        wanted = out(**given, **named)
        assert torch.equal(out(*given.values(), **named), wanted), named
        assert not torch.equal(out(**given), wanted), named
    assert magi.flex_flash_attn_func(*tensors, *ranges, None, return_max_logits=True)[1].max_logits is not None
    options = {}
    monkeypatch.setattr("tangram.flex.flex_flash_attn_func", lambda *_, **given: options.update(given) or (sink, None))
    out(None, deterministic=True, sm_margin=4)
    assert options["deterministic"] is True and options["sm_margin"] == 4
    monkeypatch.undo()
    for given, named, text in (
        ((None,), {"index_attn_indices": indices}, "index_attn_indices stand for the mask alone"),
        ((sink,), {"sink_layout": "bogus"}, "got sink_layout='bogus'"),
        ((0.25,), {"softmax_scale": 2.0}, "may be given once .got softmax_scale twice"),
        ((0.25,), {"softmax_scales": 2.0}, "knows the arguments q, k, .*got softmax_scales"),
        ((sink, *range(20)), {}, "by position .got 27 positional arguments"),
    ):
        with pytest.raises(ValueError, match=f"^flex_flash_attn_func: .*{text}"):
            out(*given, **named)


def test_options_that_choose_kernels_change_nothing():
    ranges = [[(0, 10), (10, 24)], [(0, 24), (3, 20)]]

    def results(**options):
        leaves = [x.requires_grad_() for x in flex_operands(2)]
        out, meta = magi.flex_flash_attn_func(*leaves, *ranges, [1, 3], **options)
        return [out, meta.lse, *torch.autograd.grad(out.square().sum(), leaves)]

    plain = results()
    options = {name: True for name in ("auto_range_merge", "range_merge", "swap_ab", "pack_gqa", "cat_gqa")}
    options |= {name: True for name in ("sparse_load", "block_sparse", "index_attn", "swap_bwd_qk_loop")}
    options |= {f"disable_{name}_atomic_reduction": True for name in ("fwd", "bwd_dkv", "bwd_dq")}
    options |= {"profile_mode": True, "ref_block_size": (64, 64), "max_seqlen_q": 14, "max_seqlen_k": 24}
    for name, value in options.items():
        for got, want in zip(results(**{name: value}), plain, strict=True):
            assert torch.equal(got, want), name


def test_keys_by_their_indices():
    q, k, v = (x.requires_grad_() for x in flex_operands(3))
    generator = torch.Generator().manual_seed(1)
    indices = torch.stack([torch.stack([torch.randperm(24, generator=generator)[:8] for _ in range(2)]) for _ in q])
    indices[3, 1, 2:] = -1
    indices[5, 0] = -1  # sees nothing
    out, meta = magi.flex_flash_attn_func(
        q, k, v, index_attn_indices=indices.int(), index_attn_values="tokens", return_max_logits=True
    )
    dout = torch.randn(out.shape, generator=generator)
    out.backward(dout)
    for head in range(HEADS_KV):
        cells = np.zeros((24, 24), bool)
        for row in range(24):
            cells[row, indices[row, head][indices[row, head] >= 0].numpy()] = True
        of_q, of_kv = slice(2 * head, 2 * head + 2), slice(head, head + 1)
        given = (q[:, of_q], k[:, of_kv], v[:, of_kv])
        want = attention(*(x.detach().numpy() for x in given), cells, dout=dout[:, of_q].numpy())
        np.testing.assert_allclose(out[:, of_q].detach().numpy(), want.out, atol=1e-4)
        np.testing.assert_allclose(meta.lse[:, of_q].numpy(), want.lse, atol=1e-4)
        np.testing.assert_allclose(k.grad[:, of_kv].numpy(), want.dk, atol=1e-4)
    repeats = indices.int().clone()
    repeats[0, 0, :2] = 4
    for bad, message in (
        (repeats, "must name a key once, .*got key 4 twice for query 0, K/V head 0"),
        (
            indices.int() + 24,
            r"index_attn_indices must name rows of k, or -1 for none \(got key .* for query 0, K/V head 0",
        ),
        (
            indices.int()[:, :1],
            r"index_attn_indices must be int32 or int64 .* = \[24, 2, topk\] \(got int32\[24, 1, 8\]\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            magi.flex_flash_attn_func(q, k, v, index_attn_indices=bad, index_attn_values="tokens")
    with pytest.raises(ValueError, match=r"stand for the mask alone, .*got q_ranges, k_ranges beside them"):
        magi.flex_flash_attn_func(q, k, v, [(0, 24)], [(0, 24)], index_attn_indices=indices.int())
