# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Plans from Python."""

import copy
import doctest
import json
import pickle
import subprocess
import sys
import threading
import time
import timeit

import numpy as np
import pytest

import tangram
from reference import mask_cells
from tangram import (
    CostModel,
    DispatchConfig,
    DistAttnConfig,
    HeadConfig,
    HeadDimRate,
    Mask,
    MovementConfig,
    OverlapConfig,
    Plan,
    _values,
)


def test_a_plan_computes_every_cell_once_and_assigns_all_rows():
    mask = Mask.varlen([0, 300, 340, 1024])
    plan = tangram.plan(mask, 4, config=DistAttnConfig(dispatch=DispatchConfig(algorithm="min_heap", chunk_size=64)))
    rows = [np.concatenate([np.arange(*r) for r in plan.q_dispatch.rows_of_rank(rank)]) for rank in range(4)]
    assert [len(r) for r in rows] == [256] * 4
    assert (np.sort(np.concatenate(rows)) == np.arange(1024)).all()
    cells = mask_cells(mask)
    assert [rank.area for rank in plan.ranks] == [cells[r].sum() for r in rows]
    areas = np.array([rank.area for rank in plan.ranks])
    assert plan.balance == pytest.approx(areas.max() / areas.mean())
    for rank in plan.ranks:
        for stages in (rank.forward, rank.backward):
            assert sum(stage.area for stage in stages) == rank.area
    seen = [cells[r].any(axis=0) for r in rows]
    needed = sum(int(s.sum()) - int(s[r].sum()) for s, r in zip(seen, rows, strict=True))
    assert plan.rows_moved == needed


def test_values_have_the_dim_of_keys_unless_given():
    """HeadConfig(8, 2, 64) had values of dim 128, and a plan counted their bytes."""
    heads = HeadConfig(8, 2, 64)
    assert heads == HeadConfig(8, 2, 64, 64) and heads.head_dim_v == 64
    assert HeadConfig(8, 2, 192, 128).head_dim_v == 128 and HeadConfig(8, 2).head_dim_v == 128
    assert tangram.plan(Mask.causal(2048), 4, heads=heads).config.heads.head_dim_v == 64


def test_json_comes_back_equal():
    heads = HeadConfig(num_heads_q=8, num_heads_kv=2, head_dim=64, head_dim_v=64, dtype="float16")
    config = DistAttnConfig(overlap=OverlapConfig(num_stages_fwd=2, num_stages_bwd=2, keep_remote_kv=True))
    plan = tangram.plan(Mask.causal(2048), 4, heads=heads, config=config)
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert plan.config.heads == heads and plan.config.overlap == config.overlap
    broken = json.loads(text)
    broken["ranks"] = broken["ranks"][:-1]
    with pytest.raises(tangram.InvalidArgument):
        Plan.from_json(json.dumps(broken))


@pytest.mark.parametrize("text", [b"\xff\xfe", b'{"a": "\xff"}', "\udcff", '{"a": "\u00e9\ud800"}', '{"\u00e9'])
def test_a_plan_that_is_no_utf8_is_an_invalid_argument(text):
    with pytest.raises(tangram.InvalidArgument):
        Plan.from_json(text)


def test_a_plan_is_read_from_bytes_too():
    plan = tangram.plan(Mask.causal(64), 2)
    assert Plan.from_json(plan.to_json().encode()) == plan
    with pytest.raises(TypeError, match="text must be str or bytes"):
        Plan.from_json(7)


def test_what_is_no_mask_is_named():
    for wrong in (None, "causal", []):
        with pytest.raises(tangram.InvalidArgument, match=f"^plan: mask must be a Mask.*got {type(wrong).__name__}"):
            tangram.plan(wrong, 2)


def test_help_of_the_package_lists_what_it_offers_and_its_example_runs():
    assert {"Mask", "plan", "flex_flash_attn_func", "calc_attn", "mask_key"} <= set(dir(tangram))
    assert all(not name.startswith("_") or name == "__version__" for name in dir(tangram))
    failures, count = doctest.testmod(tangram)
    assert count >= 5 and failures == 0


def test_strategies_by_name():
    heads = HeadConfig(num_heads_q=16, num_heads_kv=8, head_dim=64, head_dim_v=64)
    for strategy in ("ulysses", "hcms", "ring", "all_gather", "usp", "loong_train"):
        config = DistAttnConfig(strategy=strategy)
        plan = tangram.plan(Mask.causal(2048), 4, heads=heads, config=config)
        assert plan.config.strategy == strategy and plan.candidates == []
        assert f"strategy: {strategy}" in plan.explain()
        assert Plan.from_json(plan.to_json()) == plan
    config = DistAttnConfig(strategy="loong_train", ulysses_degree=2, inner_ring_size=2, cp_size=8)
    assert (config.ulysses_degree, config.inner_ring_size, config.head_chunks) == (2, 2, [])
    assert DistAttnConfig(strategy="hcms", head_chunks=[1, 2, 1]).head_chunks == [1, 2, 1]
    assert DistAttnConfig(strategy="usp") != DistAttnConfig(strategy="ring")
    assert hash(DistAttnConfig(strategy="usp")) == hash(DistAttnConfig(strategy="usp"))
    assert "strategy='usp', ulysses_degree=0" in repr(DistAttnConfig(strategy="usp"))


def test_no_field_of_a_config_is_lost_on_the_way_to_the_plan():
    heads = HeadConfig(num_heads_q=4, num_heads_kv=2, head_dim=64, head_dim_v=64)
    mask = Mask.varlen(range(0, 1025, 64))
    whole, cut = (DistAttnConfig(strategy="hybrid_cp", document_rows=rows) for rows in (64, 16))
    plans = [tangram.plan(mask, 4, heads=heads, config=config) for config in (whole, cut)]
    assert [plan.config.document_rows for plan in plans] == [64, 16]
    assert "16 document(s) of 1024 query rows" in plans[0].explain()  # whole on one rank
    assert "16 document(s) of 1024 query rows" in plans[1].explain().split("sub-groups of 4 ranks")[1]
    ring = DistAttnConfig(strategy="loong_train", ulysses_degree=1, inner_ring_size=2)
    assert tangram.plan(Mask.causal(1024), 4, heads=heads, config=ring).config.inner_ring_size == 2
    moving = DistAttnConfig(movement=MovementConfig("qo", head_groups=2), reduce_dtype="bfloat16")
    plan = tangram.plan(Mask.causal(1024), 4, heads=heads, config=moving)
    assert plan.config.movement == moving.movement and plan.config.reduce_dtype == "bfloat16"


def test_auto_chooses_and_says_why():
    heads = HeadConfig(num_heads_q=16, num_heads_kv=16, head_dim=64, head_dim_v=64)
    slow = CostModel(link_bytes_per_s=1e9)
    auto = DistAttnConfig(strategy="auto", cost=slow)
    window = tangram.plan(Mask.sliding_window(4096, (64, 0)), 8, heads=heads, config=auto)
    full = tangram.plan(Mask.full(4096), 8, heads=heads, config=auto)
    assert window.config.strategy == "tangram" and full.config.strategy in ("ulysses", "hcms")
    for plan in (window, full):
        layout, time, impossible = plan.candidates[0]
        assert layout.split(",")[0] == plan.config.strategy and impossible == ""
        assert time is not None and time.forward_s == plan.predicted.forward_s
        assert f"Strategy {layout}: the least predicted step" in plan.explain()
    six = tangram.plan(Mask.full(6 * 128), 6, heads=heads, config=auto)
    assert any(time is None and "num_heads_q" in why for _, time, why in six.candidates)


def test_rates_are_those_of_the_class_of_head_dims():
    def forward_s(head_dim, head_dim_v, cost):
        heads = HeadConfig(16, 16, head_dim, head_dim_v)
        return tangram.plan(Mask.causal(4096), 1, heads=heads, config=DistAttnConfig(cost=cost)).predicted.forward_s

    rates = CostModel().head_dim_rates
    classes = [(rate.head_dim, rate.head_dim_v) for rate in rates]
    assert classes == [(32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
    assert rates[3] == HeadDimRate(128, 128) and (rates[3].forward, rates[3].backward) == (1, 1)
    default, one_rate = CostModel(), CostModel(head_dim_rates=[])
    assert forward_s(128, 128, default) == forward_s(128, 128, one_rate)
    for rate in rates:
        measured, plain = (forward_s(rate.head_dim, rate.head_dim_v, cost) for cost in (default, one_rate))
        assert measured * rate.forward == pytest.approx(plain)
    # A class computes all of its columns, and values may be narrower.
    assert forward_s(72, 96, default) == pytest.approx(forward_s(96, 96, default))
    own = CostModel(head_dim_rates=[HeadDimRate(64, 32, forward=0.5, backward=2.0)])
    assert forward_s(64, 32, own) == pytest.approx(2 * forward_s(64, 32, one_rate))
    plan = tangram.plan(Mask.causal(4096), 2, config=DistAttnConfig(cost=own))
    assert Plan.from_json(plan.to_json()).config.cost == own != one_rate
    assert eval(repr(own), vars(tangram)) == own and hash(own) != hash(one_rate)
    with pytest.raises(tangram.InvalidArgument, match=r"HeadDimRate: rates\[0\] must have finite, positive factors"):
        HeadDimRate(64, 64, forward=0.0)
    with pytest.raises(TypeError, match="head_dim_rates must be HeadDimRates"):
        CostModel(head_dim_rates=[(64, 64, 1.0, 1.0)])


def test_cost_models_know_nodes():
    flat, nodes = CostModel(), CostModel(ranks_per_node=2, between_bytes_per_s=25e9, between_sms=2)
    assert flat.ranks_per_node == 0 and nodes.sms == flat.sms == 132
    assert eval(repr(nodes), vars(tangram)) == nodes != flat and hash(nodes) != hash(flat)
    mask = Mask.varlen([0, 700, 1100, 1800, 2048], causal=True)
    plan = tangram.plan(mask, 4, config=DistAttnConfig(cost=nodes))
    assert Plan.from_json(plan.to_json()).config.cost == nodes
    with pytest.raises(tangram.InvalidArgument, match="cost.ranks_per_node must divide cp_size"):
        tangram.plan(mask, 4, config=DistAttnConfig(cost=CostModel(ranks_per_node=3)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (lambda: DistAttnConfig(strategy="rings"), "must be one of auto, tangram, "),
        (lambda: DistAttnConfig(strategy="auto", inner_ring_size=2), "strategy auto chooses ulysses_degree"),
        (lambda: DistAttnConfig(strategy="usp", ulysses_degree=3), "needs ulysses_degree that divide cp_size"),
        (
            lambda: DistAttnConfig(strategy="ulysses", ulysses_degree=2),
            "^plan: strategy.ulysses_degree needs strategy usp or loong_train .got ulysses.",
        ),
        (
            lambda: DistAttnConfig(ulysses_degree=2),
            "strategy.ulysses_degree needs strategy usp or loong_train .got tangram.",
        ),
        (lambda: DistAttnConfig(strategy="auto", document_rows=64), "strategy auto chooses ulysses_degree"),
        (lambda: DistAttnConfig(movement=MovementConfig("kv", head_groups=2)), "movement.head_groups needs a movement"),
        (lambda: DistAttnConfig(strategy="hcms", head_chunks=[2]), "must add up to the 1 K/V heads"),
        (
            lambda: DistAttnConfig(strategy="ring", document_rows=64),
            "strategy.document_rows needs strategy hybrid_cp .got ring.",
        ),
    ],
)
def test_what_strategies_cannot_do_is_a_value_error(config, text):
    heads = HeadConfig(num_heads_q=4, num_heads_kv=4, head_dim=64, head_dim_v=64)
    with pytest.raises(ValueError, match=text):
        tangram.plan(Mask.causal(1024), 4, heads=heads, config=config())


def test_explain_names_what_matters():
    text = tangram.plan(Mask.causal(2048), 4).explain()
    for word in ("balance", "rank", "stage"):
        assert word in text.lower()


def test_plans_are_cached_and_planned_ahead():
    mask = Mask.varlen([0, 700, 4096])
    ahead = tangram.plan_async(mask, 8)
    assert ahead.result(timeout=60) == tangram.plan(mask, 8)
    cache = tangram.PlanCache(capacity=2)
    config = DistAttnConfig(cp_size=2)
    assert cache.most_recent() is None
    first = cache.get(mask, config)
    assert cache.get(Mask.varlen([0, 700, 4096]), DistAttnConfig(cp_size=2)) == first
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)
    assert cache.most_recent() == first


def test_planning_lets_other_threads_run():
    lengths = np.random.default_rng(0).integers(200, 3000, 400)
    cu = np.concatenate([[0], np.cumsum(lengths)])
    total = int(cu[-1]) // 8192 * 8192
    mask = Mask.varlen([int(c) for c in cu if c < total] + [total])
    done, ticks = threading.Event(), []

    def count():
        while not done.is_set():
            ticks.append(1)
            time.sleep(0)  # lets the GIL go

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # from here on a thread loses the GIL only where it lets go
    try:
        thread.start()
        before, deadline = len(ticks), time.monotonic() + 30
        # One plan takes milliseconds: a busy machine may not wake the other thread in time, so plan until it does.
        while len(ticks) == before and time.monotonic() < deadline:
            tangram.plan(mask, 64)
        during = len(ticks) - before
        done.set()
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
    assert during > 0


def test_configs_are_values_and_name_wrong_fields():
    assert OverlapConfig(num_stages_fwd=2) == OverlapConfig(num_stages_fwd=2) != OverlapConfig()
    assert hash(DistAttnConfig(cp_size=2)) == hash(DistAttnConfig(cp_size=2))
    assert "num_stages_fwd=2" in repr(DistAttnConfig(overlap=OverlapConfig(num_stages_fwd=2)))
    assert DistAttnConfig(planner="any") == DistAttnConfig(movement=MovementConfig("auto"))
    assert DistAttnConfig(planner="kv") == DistAttnConfig()
    with pytest.raises(ValueError, match=r"planner must be 'kv' or 'any' .got 'all'"):
        DistAttnConfig(planner="all")
    with pytest.raises(ValueError, match="takes planner or movement"):
        DistAttnConfig(planner="kv", movement=MovementConfig("qo"))
    moving = DistAttnConfig(movement=MovementConfig("qo", head_groups=2))
    assert moving.movement.head_groups == 2 and moving != DistAttnConfig()
    with pytest.raises(ValueError, match="kv, qo"):
        MovementConfig("both")
    ordered = OverlapConfig(launch_order="kernel_barrier")
    assert ordered.launch_order == "kernel_barrier" and ordered != OverlapConfig()
    with pytest.raises(ValueError, match="high_priority"):
        OverlapConfig(launch_order="fast")
    wrong = DistAttnConfig(overlap=OverlapConfig(launch_order="high_priority", sm_margin=8))
    with pytest.raises(ValueError, match="sm_margin goes with launch_order"):
        tangram.plan(Mask.causal(1024), 2, config=wrong)
    with pytest.raises(ValueError, match="min_heap"):
        DispatchConfig(algorithm="nonsense")
    with pytest.raises(ValueError, match="1000"):
        tangram.plan(Mask.causal(1000), 3)
    with pytest.raises(AttributeError):
        OverlapConfig().num_stages_fwd = 3


def test_values_are_copied_and_pickled():
    config = DistAttnConfig(
        cp_size=4,
        heads=HeadConfig(num_heads_q=8, num_heads_kv=2, head_dim=64, head_dim_v=32, dtype="float32"),
        dispatch=DispatchConfig("random", chunk_size=64, seed=3),
        overlap=OverlapConfig(1, 2, keep_remote_kv=True, launch_order="sm_margin", sm_margin=16),
        cost=tangram.CostModel(link_bytes_per_s=1e9, head_dim_rates=[HeadDimRate(64, 32, 0.5, 0.25)]),
        reduce_dtype="bfloat16",
        movement=MovementConfig("qo", head_groups=2),
    )
    strategy = DistAttnConfig(
        strategy="hybrid_cp", ulysses_degree=2, inner_ring_size=3, head_chunks=[1, 2], document_rows=64
    )
    mask = Mask.varlen([0, 100, 1024])
    values = [
        config,
        strategy,
        config.heads,
        config.dispatch,
        config.overlap,
        config.movement,
        config.cost,
        config.cost.head_dim_rates[0],
        mask,
        mask.slices[0],
        tangram.Range(1, 5),
    ]
    values += [tangram.plan(mask, 4, heads=config.heads, config=config), tangram.MaskType.CAUSAL]
    for value in values:
        for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert other == value and type(other) is type(value), value
    options = pickle.loads(pickle.dumps(tangram.AttnOptions(softmax_scale=0.5, softcap=2.0, deterministic=True)))
    assert (options.softmax_scale, options.softcap, options.deterministic, options.sm_margin) == (0.5, 2.0, True, 0)


def test_pickles_of_masks_hold_no_object_for_each_slice():
    """20,000 documents: a pickle took 40 times as long as one of arrays, and a copy as long as a pickle."""
    mask = Mask.varlen(list(range(0, 20_001 * 16, 16)), causal=True)
    text = pickle.dumps(mask)
    numbers = list(range(6 * 20_000))

    def seconds(value):
        return min(timeit.repeat(lambda: pickle.dumps(value), timer=time.process_time, number=1, repeat=5))

    assert seconds(mask) < 3 * seconds(numbers)
    again = pickle.loads(text)
    assert again == mask and again is not mask and again.area == mask.area and len(text) < 50 * len(mask.slices)
    assert copy.copy(mask) is mask and copy.deepcopy([mask])[0] is mask
    for empty in (Mask(4, 5, []), Mask.full(0)):
        assert pickle.loads(pickle.dumps(empty)) == empty
    slices = {"slices": mask.slices[:2], "seqlen_q": 64, "seqlen_k": 64}
    assert _values._make(Mask, slices) == Mask(64, 64, mask.slices[:2])  # what pickles of 0.1.0.dev hold
    with pytest.raises(ValueError, match="a pickle must hold whole slices, write it anew .got 47 bytes"):
        _values._make_mask(64, 64, bytes(47))


def test_what_is_printed_says_what_it_is():
    """It was the address of an object."""
    plan = tangram.plan(Mask.causal(512), 2)
    rank = plan.ranks[0]
    assert repr(rank) == (
        f"RankPlan(slices={len(rank.slices)}, area={rank.area}, kv_rows={rank.kv_rows}, "
        f"remote_kv_rows={rank.remote_kv_rows}, forward={len(rank.forward)}, backward={len(rank.backward)} stages)"
    )
    predicted = plan.predicted
    assert repr(predicted).startswith(f"PredictedTime(forward_s={predicted.forward_s:.4g}, backward_s=")
    cpu = next(info for info in tangram.list_backends() if info.name == "cpu")
    assert repr(cpu) == f"AttnBackendInfo(name='cpu', available=True, detail={cpu.detail!r})"


def test_pad_size():
    for total in (1, 63, 64, 100, 512):
        pad = tangram.compute_pad_size(total, cp_size=2, chunk_size=64)
        assert 0 <= pad < 128 and (total + pad) % 128 == 0


def test_masks_and_plans_need_neither_torch_nor_numpy():
    program = (
        "import sys; sys.modules.update(torch=None, numpy=None)\n"
        "import tangram\n"
        "mask = tangram.Mask.varlen([0, 100, 1024])\n"
        "assert tangram.plan(mask, 2).cp_size == 2 and '<svg' in mask._repr_html_()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
