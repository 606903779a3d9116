# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.magi: ranges, enumerations, configurations, helpers and variables, by what their published names promise."""

import logging
import random

import numpy as np
import pytest

from reference import typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import magi  # noqa: E402
from tangram.magi import AttnMaskType, AttnRange, AttnRanges  # noqa: E402
from tangram.magi._config import to_tangram  # noqa: E402
from tangram.magi._environment import Environment, read_environment  # noqa: E402
from tangram.magi._orders import in_any_order  # noqa: E402


def rows_of(ranges):
    """How often each row is covered."""
    counts = {}
    for each in ranges:
        for row in range(each.start, each.end):
            counts[row] = counts.get(row, 0) + 1
    return counts


def random_ranges(rng, most=6, rows=40):
    made = AttnRanges()
    for _ in range(rng.randint(0, most)):
        start = rng.randint(0, rows)
        made.append(AttnRange(start, start + rng.randint(0, 9)))
    return made


def test_a_range():
    r = AttnRange(3, 8)
    assert (r.start, r.end, r.seqlen, len(r), repr(r), r.to_naive_range()) == (3, 8, 5, 5, "[3, 8)", (3, 8))
    assert r == AttnRange.from_range([3, 8]) == AttnRange.from_range(r) == r.clone() and r != (3, 8)
    assert hash(r) == hash(AttnRange(3, 8)) and r.clone() is not r
    assert r.offset(-3) == AttnRange(0, 5)
    assert r.truncate(5) == AttnRange(5, 8) and r.truncate(end=5) == AttnRange(3, 5)
    assert r.truncate(9, 20) == AttnRange(9, 9) and r.truncate(0, 2).is_empty()
    assert r.intersect(AttnRange(6, 20)) == AttnRange(6, 8) and r.intersect(AttnRange(20, 30)).is_empty()
    assert r.intersect_size(AttnRange(0, 4)) == 1
    assert r.union(AttnRange(6, 12)) == [AttnRange(3, 12)] and r.union(AttnRange(4, 5)) == [r]
    assert r.union(AttnRange(8, 9)) == [r, AttnRange(8, 9)] and r.union_size(AttnRange(10, 12)) == 7
    assert AttnRange(4, 5).is_subrange_of(r) and not r.is_subrange_of(AttnRange(4, 5))
    assert r.is_overlap_with(AttnRange(7, 9)) and not r.is_overlap_with(AttnRange(8, 9))
    assert r.diff_by(AttnRange(0, 10)) == [AttnRange(0, 3), AttnRange(8, 10)] and r.diff_by(AttnRange(4, 5)) == []
    assert r.diff_by(AttnRange(0, 5)) == [AttnRange(0, 3)] and r.diff_by(AttnRange(20, 22)) == [AttnRange(20, 22)]
    assert r.is_valid_close(4, 4) and not r.is_valid_open(4, 4) and r.is_valid_open()
    for bad in ((5, 4), (1, 0)):
        with pytest.raises(magi.RangeError, match="start must not exceed end"):
            AttnRange(*bad)
    r.start = 9  # ends are moved one after the other
    r.end = 12
    assert r == AttnRange(9, 12)
    with pytest.raises(magi.RangeError, match=r"got start=13, end=12"):
        r.check_valid(start=13)


def test_ranges_as_a_list():
    ranges = AttnRanges.from_ranges([[5, 10], (0, 3), AttnRange(3, 4)])
    assert len(ranges) == ranges.size == 3 and ranges[0] == AttnRange(5, 10) and list(ranges)[1].end == 3
    assert ranges.to_naive_ranges() == [(5, 10), (0, 3), (3, 4)] and (ranges.start, ranges.end) == (0, 10)
    assert (ranges.total_seqlen, ranges.max_seqlen, ranges.points) == (9, 5, [0, 3, 4, 5, 10])
    assert ranges[1:].to_naive_ranges() == [(0, 3), (3, 4)] and ranges[1:][0] is ranges[1]
    assert ranges.sort().to_naive_ranges() == [(0, 3), (3, 4), (5, 10)] and not ranges.is_sorted()
    assert ranges.merge().to_naive_ranges() == [(0, 4), (5, 10)] and ranges.merge().is_merged()
    assert not ranges.sort().is_merged() and ranges.is_non_overlap() and repr(AttnRanges()) == "[[,)]"
    assert ranges == ranges.clone() and hash(ranges) == hash(ranges.clone()) and ranges.clone()[0] is not ranges[0]
    tensor = ranges.to_tensor()
    assert tensor.dtype == torch.int32 and tensor.tolist() == [[5, 10], [0, 3], [3, 4]]
    assert AttnRanges().to_tensor().shape == (0, 2)
    ranges.insert(9, AttnRange(1, 1))
    assert ranges.pop() == AttnRange(1, 1) and ranges.pop(0) == AttnRange(5, 10)
    ranges[0] = AttnRange(7, 8)
    ranges[0:1] = AttnRanges.from_ranges([(6, 8)])
    ranges.extend(AttnRanges.from_ranges([(9, 9)]))
    assert ranges.to_naive_ranges() == [(6, 8), (3, 4), (9, 9)]
    assert ranges.clear_empty().size == 2 and not AttnRanges() and AttnRanges().max_seqlen == 0
    for name in ("start", "end"):
        with pytest.raises(ValueError, match=f"AttnRanges.{name}: there must be a range"):
            getattr(AttnRanges(), name)
    with pytest.raises(IndexError):
        AttnRanges().pop()
    with pytest.raises(ValueError, match="a position takes an AttnRange"):
        ranges[0] = ranges


def test_documents_as_ranges():
    ranges = AttnRanges.from_cu_seqlens([0, 4, 9], 9)
    assert ranges.to_naive_ranges() == [(0, 4), (4, 9)] and ranges.is_cu_seqlens(9) and not ranges.is_cu_seqlens(10)
    assert ranges.to_cu_seqlens(9) == [0, 4, 9] and AttnRanges().to_cu_seqlens(0) == [0]
    assert magi.is_valid_cu_seqlens([], 5) and not magi.is_valid_cu_seqlens([0, 4, 4], 4)
    for borders in ([1, 4], [0, 4, 3], [0, 4]):
        with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to seq_len=5"):
            AttnRanges.from_cu_seqlens(borders, 5)


def test_sets_of_rows():
    rng = random.Random(0)
    for _ in range(300):
        a, b = random_ranges(rng), random_ranges(rng)
        of_a, of_b = rows_of(a), rows_of(b)
        holes, overlap = a.find_hole_ranges(b), a.find_overlap_ranges(b)
        assert set(rows_of(holes)) == set(of_a) - set(of_b) and set(rows_of(overlap)) == set(of_a) & set(of_b)
        assert set(rows_of(a.merge())) == set(of_a) and a.merge().clear_empty().is_non_overlap()
        assert a.intersect_size() == sum(n - 1 for n in of_a.values())
        both = {row: n + of_b[row] - 1 for row, n in of_a.items() if row in of_b}
        assert a.intersect_size_with(b) == sum(both.values())
        assert a.union_size_with(b) == sum(of_a.values()) + sum(of_b.values())
        assert set(rows_of(a.truncate(10, 20))) == {row for row in of_a if 10 <= row < 20}
        merged = a.merge().clear_empty()
        chunks = merged.chunk(4)
        assert [c.total_seqlen for c in chunks[:-1]] == [4] * (len(chunks) - 1)
        assert [row for c in chunks for row in rows_of(c)] == sorted(of_a)


def test_rows_laid_side_by_side():
    ranges = AttnRanges.from_ranges([(5, 10), (25, 30), (15, 20), (20, 22)])
    local, target = ranges.make_range_local(AttnRange(17, 22))
    assert (local, target) == (AttnRange(7, 12), AttnRange(15, 22))
    others = AttnRanges.from_ranges([(26, 28), (5, 6), (15, 15)])
    assert ranges.make_ranges_local(others).to_naive_ranges() == [(13, 15), (0, 1), (5, 5)]
    with pytest.raises(ValueError, match="must lie within one of the merged ranges"):
        ranges.make_range_local(AttnRange(9, 16))
    with pytest.raises(ValueError, match="must not overlap"):
        AttnRanges.from_ranges([(0, 4), (2, 6)]).chunk(2)


def test_mask_types():
    assert AttnMaskType("causal") is AttnMaskType.CAUSAL and AttnMaskType.BICAUSAL.value == "bi_causal"
    names = ("FULL", "CAUSAL", "INVCAUSAL", "BICAUSAL")
    assert [AttnMaskType.from_int_type(i).name for i in range(4)] == list(names)
    assert [AttnMaskType[name].to_int_type() for name in names] == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        AttnMaskType.from_int_type(4)
    assert magi.AttnOverlapMode("static") is magi.AttnOverlapMode.STATIC


def test_algorithms_are_those_of_tangram():
    names = {
        magi.MinHeapDispatchAlg(): "min_heap",
        magi.SequentialDispatchAlg(): "sequential",
        magi.SortedSequentialSelectAlg(): "sorted_sequential",
        magi.LBDispatchAlg(): "lower_bound",
        magi.DPDispatchAlg(): "dynamic_programming",
        magi.BSDispatchAlg(): "lower_bound",
        magi.ToppHeapDispatchAlg(): "min_heap",
        magi.BatchToppHeapDispatchAlg(top_p=0.0, num_of_select_chunk=1): "batch_topp",
        magi.RandomSelectDispatchAlg(): "random",
    }
    for algorithm, name in names.items():
        assert isinstance(algorithm, magi.DispatchAlg) and algorithm.tangram_name == name
        assert tangram.DispatchConfig(algorithm.tangram_name).algorithm == name
        assert algorithm == type(algorithm)() and isinstance(algorithm.type, magi.DispatchAlgType)
    assert magi.MinHeapDispatchAlg().is_partitions_returned and not magi.LBDispatchAlg().is_partitions_returned
    uneven = {type(each) for each in names if not each.is_equal_num_workloads}
    assert uneven == {magi.LBDispatchAlg, magi.DPDispatchAlg, magi.BSDispatchAlg}
    assert magi.DPDispatchAlg().is_optimal and magi.ToppHeapDispatchAlg().is_affinity_considered
    with pytest.raises(ValueError, match=r"ToppHeapDispatchAlg: top_p .* left at 0.0 \(got top_p=0.5\)"):
        magi.ToppHeapDispatchAlg(0.5).tangram_name  # noqa: B018
    for abstract in (magi.DispatchAlg, magi.OverlapAlg):
        with pytest.raises(TypeError, match="is abstract"):
            abstract()


HEADS = tangram.HeadConfig(8, 2, 64, 64)


def translated(overlap=None, env=None, dispatch=None, remote_rows=1 << 20):
    config = magi.DistAttnConfig(
        dispatch_config=dispatch or magi.DispatchConfig(), overlap_config=overlap or magi.OverlapConfig()
    )
    return to_tangram(config, env or Environment(), HEADS, 512, remote_rows)


def test_configurations_are_translated():
    plain = translated()
    assert plain.dispatch == tangram.DispatchConfig("min_heap", 512) and plain.overlap == tangram.OverlapConfig(1, 1)
    assert plain.movement == tangram.MovementConfig() and plain.cost == tangram.CostModel()
    overlap = magi.OverlapConfig(
        enable=True,
        mode=magi.AttnOverlapMode.STATIC,
        degree=3,
        min_chunk_size=512,
        max_num_chunks=64,
        alg=magi.UniformOverlapAlg(random_costs=False, random_seed=42),
    )
    assert translated(overlap).overlap.num_stages_fwd == translated(overlap).overlap.num_stages_bwd == 3
    assert translated(overlap, remote_rows=1100).overlap.num_stages_fwd == 2  # of 512 rows at least
    dynamic = magi.OverlapConfig(mode=magi.AttnOverlapMode.DYNAMIC, degree=None, alg=magi.GreedyOverlapAlg())
    assert translated(dynamic).overlap.num_stages_fwd == 0
    assert translated(magi.OverlapConfig(enable=False, degree=4)).overlap.num_stages_fwd == 1
    heads = tangram.HeadConfig(32, 8, 128, 128)
    plan = tangram.plan(tangram.Mask.causal(1 << 20), 8, heads=heads)  # four stages backward, by the planner
    bounded = magi.OverlapConfig(mode=magi.AttnOverlapMode.DYNAMIC, degree=None, dynamic_max_degree=2).bounded(plan)
    assert bounded.num_stages_bwd == 2 and bounded.num_stages_fwd <= 2
    assert dynamic.bounded(plan) is None and magi.OverlapConfig().bounded(plan) is None
    costs = translated(magi.OverlapConfig(calc_cost_factor=1e-3, comm_cost_factor=2e-3)).cost
    # 4 operations for each of 8 x 64 elements in 1e-9 s; 2 x 64 x 2 heads x 2 bytes in 2e-9 s.
    assert costs.forward_flops_per_s == pytest.approx(4 * 8 * 64 / 1e-9)
    assert costs.head_dim_rates == []  # the factor is that of these heads
    assert costs.link_bytes_per_s == pytest.approx(2 * 64 * 2 * 2 / 2e-9)
    moves = translated(env=Environment(qo_comm=True, flatten_head_groups=True)).movement
    assert (moves.algorithm, moves.head_groups) == ("auto", 2)
    tail = translated(env=Environment(bwd_hide_tail_reduce=True, sm_margin=8)).overlap
    assert tail.keep_remote_kv and tail.sm_margin == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: magi.OverlapConfig(degree=None), "a static overlap needs a degree"),
        (lambda: magi.OverlapConfig(mode=magi.AttnOverlapMode.DYNAMIC, degree=2), "a dynamic overlap has no degree"),
        (lambda: magi.OverlapConfig(degree=65), r"degree must lie in \[0, max_num_chunks\]"),
        (lambda: magi.OverlapConfig(min_chunk_size=0), "min_chunk_size must be positive"),
        (lambda: magi.OverlapConfig(True, "static"), "mode must be AttnOverlapMode.STATIC or DYNAMIC"),
        (lambda: magi.DispatchConfig(alg="min_heap"), "alg must be a dispatch algorithm"),
        (lambda: magi.DispatchConfig(uneven_shard=1), "uneven_shard must be True or False .got uneven_shard=1."),
        (lambda: magi.DispatchConfig(512, alg=None), "alg must be a dispatch algorithm"),
        (lambda: magi.DispatchConfig(512, chunk_size=256), "DispatchConfig: each argument may be given once"),
        (lambda: magi.DistAttnConfig(overlap_config=magi.DispatchConfig()), "must be a OverlapConfig of tangram.magi"),
        (lambda: translated(env=Environment(flatten_head_groups=True)), "MAGI_ATTENTION_QO_COMM=1"),
    ],
)
def test_what_a_configuration_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_buffers_of_other_transports_are_refused_where_they_would_count():
    config = magi.DistAttnConfig(grpcoll_config=magi.GrpCollConfig(num_sms=20))
    assert to_tangram(config, Environment(), HEADS, 512, 1024).overlap.num_stages_fwd == 1
    with pytest.raises(ValueError, match="GrpCollConfig: .*num_sms=20"):
        to_tangram(config, Environment(native_grpcoll=True), HEADS, 512, 1024)


def cells(q, k, types, seqlen_q, seqlen_k):
    return typed_cells(q.to_naive_ranges(), k.to_naive_ranges(), [t.to_int_type() for t in types], seqlen_q, seqlen_k)


def test_helpers():
    assert magi.compute_pad_size(total_seqlen_q=1000, cp_size=4, chunk_size=64) == 24
    x = torch.arange(24).view(2, 3, 4)
    assert torch.equal(magi.squash_batch_dim(x), x.view(6, 4))
    borders, same = magi.full_attention_to_varlen_attention(3, 5)
    assert borders is same and borders.tolist() == [0, 5, 10, 15]
    borders, _ = magi.infer_varlen_mask_from_batch(2, 4, device="cpu")
    assert borders.dtype == torch.int32 and borders.tolist() == [0, 4, 8]
    padded = magi.pad_at_dim(x, 1, 2, value=7)
    assert padded.shape == (2, 5, 4) and bool((padded[:, 3:] == 7).all())
    assert torch.equal(magi.unpad_at_dim(padded, 1, 2), x) and magi.pad_at_dim(x, 0, 1, side="left")[0].sum() == 0
    q, k, types = magi.apply_padding(
        AttnRanges.from_ranges([(0, 6)]), AttnRanges.from_ranges([(0, 6)]), [AttnMaskType.CAUSAL], 6, 2
    )
    assert q.to_naive_ranges() == [(0, 6), (6, 8)] and k.to_naive_ranges() == [(0, 6), (0, 0)]
    assert types == [AttnMaskType.CAUSAL, AttnMaskType.FULL]


def test_windows_as_ranges_and_types():
    for q_range, k_range, window in (((5, 15), (5, 15), (2, 3)), ((0, 6), (4, 20), (3, 0)), ((0, 9), (0, 4), (-1, 1))):
        q, k, types = magi.infer_attn_mask_from_sliding_window(AttnRange(*q_range), AttnRange(*k_range), window)
        assert isinstance(q, AttnRanges) and all(isinstance(kind, AttnMaskType) for kind in types)
        i, j = np.arange(20)[:, None], np.arange(20)[None, :]
        diagonal = j - i - (k_range[1] - q_range[1])
        want = (q_range[0] <= i) & (i < q_range[1]) & (k_range[0] <= j) & (j < k_range[1])
        want &= (diagonal >= -window[0]) | (window[0] < 0)
        want &= (diagonal <= window[1]) | (window[1] < 0)
        got = cells(q, k, types, 20, 20)
        alone = i < q_range[1] - (k_range[1] - k_range[0])  # rows before the first key
        assert np.array_equal(got, want & ~alone)


def test_documents_as_ranges_and_types():
    cu = torch.tensor([0, 7, 12], dtype=torch.int32)
    q, k, types, total_q, total_k = magi.infer_attn_mask_from_cu_seqlens(cu, cu, causal=True)
    assert q.to_naive_ranges() == k.to_naive_ranges() == [(0, 7), (7, 12)] and (total_q, total_k) == (12, 12)
    assert types == [AttnMaskType.CAUSAL] * 2
    q, k, types, *_ = magi.infer_attn_mask_from_cu_seqlens(cu, cu, window_size=(2, 0), global_window_size=1)
    i, j = np.arange(12)[:, None], np.arange(12)[None, :]
    same = (i < 7) == (j < 7)
    want = same & (j <= i) & ((i - j <= 2) | (j == np.where(i < 7, 0, 7)))
    assert np.array_equal(cells(q, k, types, 12, 12), want)
    # The first document has more queries than keys: its first three rows see nothing.
    q, k, types, *_ = magi.infer_attn_mask_from_cu_seqlens(cu, [0, 4, 9], window_size=(1, 9))
    i, j = np.arange(12)[:, None], np.arange(9)[None, :]
    want = np.where(i < 7, (j < 4) & (j >= i - 4) & (i >= 3), (j >= 4) & (j >= i - 4))
    assert np.array_equal(cells(q, k, types, 12, 9), want)
    with pytest.raises(ValueError, match="causal"):
        magi.infer_attn_mask_from_cu_seqlens(cu, cu, causal=True, window_size=(2, 0))
    with pytest.raises(ValueError, match=r"window_size must be two integers.*got window_size=3"):
        magi.infer_attn_mask_from_cu_seqlens(cu, cu, window_size=3)


def test_variables_are_translated(caplog):
    assert read_environment({"PATH": "/bin"}) == Environment() and not caplog.records
    of = {
        "SDPA_BACKEND": "1",
        "DETERMINISTIC_MODE": "1",
        "SANITY_CHECK": "1",
        "PROFILE_MODE": "1",
        "QO_COMM": "1",
        "FLATTEN_HEAD_GROUPS": "1",
        "HIERARCHICAL_COMM": "1",
        "NATIVE_GRPCOLL": "1",
        "FFA_FORWARD_SM_MARGIN": "4",
        "FFA_BACKWARD_SM_MARGIN": "6",
        "BWD_HIDE_TAIL_REDUCE": "1",
        "FORWARD_HIGH_PRECISION_REDUCE": "1",
        "BACKWARD_HIGH_PRECISION_REDUCE": "0",
        "DSINK_ALL_REDUCE_OP": "avg",
        "DIST_ATTN_RUNTIME_DICT_SIZE": "7",
        "MIN_CHUNKS_PER_RANK": "3",
        "PRECISION": "fp32",
    }
    env = read_environment({f"MAGI_ATTENTION_{name}": value for name, value in of.items()})
    assert env == Environment(
        kernel_backend="sdpa",
        backend="reference",
        precision="float32",
        deterministic=True,
        sanity_check=True,
        profile=True,
        qo_comm=True,
        flatten_head_groups=True,
        hierarchical_comm=True,
        native_grpcoll=True,
        bwd_hide_tail_reduce=True,
        sm_margin=6,
        dsink_reduce="avg",
        max_keys=7,
        min_chunks_per_rank=3,
    )
    assert not caplog.records


def test_build_switches_are_ignored_with_one_line(caplog):
    with caplog.at_level(logging.WARNING, logger="tangram.magi"):
        read_environment({"MAGI_ATTENTION_PREBUILD_FFA": "0", "MAGI_ATTENTION_BUILD_DEBUG": "1"})
    (record,) = caplog.records
    assert "MAGI_ATTENTION_BUILD_DEBUG, MAGI_ATTENTION_PREBUILD_FFA" in record.getMessage()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("QO_COMM", "yes", "MAGI_ATTENTION_QO_COMM: must be 0 or 1"),
        ("DSINK_ALL_REDUCE_OP", "max", "must be one of none, sum, avg"),
        ("FFA_FORWARD_SM_MARGIN", "-1", "must be a whole number from 0 on"),
        ("KERNEL_BACKEND", "fa4", "the backend fa4 is not there"),
        (
            "PRECISION",
            "fp64",
            "only the dense reference computes tensors of 64 bits: set MAGI_ATTENTION_SDPA_BACKEND=1",
        ),
    ],
)
def test_variables_that_cannot_be_honoured_are_refused(name, value, message):
    with pytest.raises(tangram.Error, match=message):
        read_environment({f"MAGI_ATTENTION_{name}": value})


def test_a_backend_is_chosen_by_one_variable():
    of = {"MAGI_ATTENTION_KERNEL_BACKEND": "ffa", "MAGI_ATTENTION_SDPA_BACKEND": "1"}
    with pytest.raises(ValueError, match=r"unset all but one .got ffa, 1 and 0"):
        read_environment(of)
    assert read_environment(of | {"MAGI_ATTENTION_SDPA_BACKEND": "0"}).backend is None


def test_orders_of_arguments():
    @in_any_order("c", lambda value: value == "group", "a b c d", "a c d b")
    def function(a, b=1, c=None, d=4):
        return a, b, c, d

    assert function(0, 2, "group") == (0, 2, "group", 4) and function(0, "group", 5, 6) == (0, 6, "group", 5)
    assert function(0, b=3) == (0, 3, None, 4) and function(0, 2) == (0, 2, None, 4)
    with pytest.raises(ValueError, match="each argument may be given once .*got b twice"):
        function(0, 2, "group", b=1)
    with pytest.raises(ValueError, match="function: knows the arguments a, b, c, d .*got e"):
        function(0, e=1)
    with pytest.raises(ValueError, match="takes a, b, c, d by position"):
        function(0, 1, "group", 3, 4)


def test_names_that_are_not_there_say_what_to_take():
    with pytest.raises(ImportError, match="calc_dsa is not there: .* takes index_attn_indices"):
        from tangram.magi import calc_dsa  # noqa: F401
    with pytest.raises(ImportError, match="DistAttnRuntimeDict is not there: take dist_attn_runtime_dict_mgr"):
        from tangram.magi import DistAttnRuntimeDict  # noqa: F401
    with pytest.raises(ImportError):
        from tangram.magi import nothing  # noqa: F401
    assert set(magi.__all__) <= set(dir(magi))
