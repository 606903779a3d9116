# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that keep attention, meters and FLOPs over ranks; checkpointing_test.py starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tangram  # noqa: E402
from ranks.as_device import as_device  # noqa: E402
from ranks.step_checks import DIM, HEADS, HEADS_KV, NUMBERS, RANGES, whole  # noqa: E402
from reference import typed_cells  # noqa: E402
from tangram import DistAttnConfig, MovementConfig, OverlapConfig, magi  # noqa: E402

TOTAL = 150
CELLS = typed_cells(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL)
MASK = tangram.Mask.from_ranges(RANGES[0], RANGES[1], NUMBERS, TOTAL, TOTAL)

KEEPS = OverlapConfig(2, 2, keep_remote_kv=True)
CONFIGS = {
    "kv": None,
    "kept K/V": DistAttnConfig(overlap=KEEPS),
    "qo": DistAttnConfig(movement=MovementConfig("qo", head_groups=HEADS_KV)),
    "ulysses": DistAttnConfig(strategy="ulysses"),
    "ulysses, kept": DistAttnConfig(strategy="ulysses", overlap=OverlapConfig(keep_remote_kv=True)),
}
OPTIONS = {
    "plain": {},
    "sinks": {"sink": (2, HEADS), "softcap": 2.0, "return_max_logits": True},
    "row sinks": {"sink": (None, 2, HEADS), "sink_layout": "ssh", "softmax_scale": 0.3},
    "float32": {"dtype": torch.bfloat16, "grad_dtype": torch.float32, "out_dtype": torch.float32},
}


def by_policy(function, *x):
    return checkpoint(function, *x, use_reentrant=False, context_fn=tangram.checkpoint_policy())


def kept(function, *x):
    return checkpoint(tangram.keep_attention(function), *x, use_reentrant=False)


def kept_reentrant(function, *x):
    return checkpoint(tangram.keep_attention(function), *x, use_reentrant=True)


def plain(function, *x):
    return function(*x)


def reentrant(function, *x):
    return checkpoint(function, *x, use_reentrant=True)


def nonreentrant(function, *x):
    return checkpoint(function, *x, use_reentrant=False)


def key_of(config, mask=MASK):
    return tangram.mask_key(mask, HEADS, HEADS_KV, DIM, chunk_size=16, dist_attn_config=config)


def layer_of(key, options, calc=tangram.calc_attn):
    """Two calls of attention, on this rank's rows."""

    def layer(q, k, v, sink=None):
        for _ in range(2):
            out, meta = calc(q, k, v, key, sink=sink, **options)
            q = q + out.to(q.dtype)
        if meta.max_logits is not None:
            q = q + meta.max_logits[:, None].detach()
        return q * 2

    return layer


def step(run, layer, inputs):
    """(results and gradients, passes forward, rows of bytes that this rank sent)."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with tangram.meter() as measured:
        out = run(layer, *inputs)
        out.float().square().sum().backward()
    report = measured.report()
    assert report.num_backward == 2
    return [out.detach(), *(x.grad for x in inputs)], report


def check_passes():
    for config_name, config in CONFIGS.items():
        key = key_of(config)
        for name, given in OPTIONS.items():
            options = dict(given)
            dtype = options.pop("dtype", torch.float32)
            inputs = [tangram.dispatch(x.detach(), key) for x in whole(TOTAL, 1, dtype)]
            sink = options.pop("sink", None)
            if sink is not None:
                generator = torch.Generator().manual_seed(7)
                shape = [inputs[0].shape[0] if n is None else n for n in sink]
                inputs.append(torch.randn(shape, generator=generator))
            layer = layer_of(key, options)
            traffic = []
            results = {}
            for run in (plain, reentrant, by_policy, kept, kept_reentrant):
                before = key.group.group.traffic()
                results[run], report = step(run, layer, inputs)
                traffic.append(key.group.group.traffic() - before)
                assert report.num_forward == (4 if run is reentrant else 2), (config_name, name, run)
                assert report.waited_s is not None and 0 <= report.waited_s <= report.attention_s
            for ours in list(results.values())[1:]:
                for a, b in zip(ours, results[plain], strict=True):
                    if config is not None and config.overlap.keep_remote_kv:
                        # Stages of the backward pass come in another order where rows are not there yet.
                        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 0.05)
                    else:
                        assert torch.equal(a, b), (config_name, name)
            moved = torch.tensor(traffic)
            dist.all_reduce(moved)
            once, twice, *keeping = moved.tolist()
            if "kept" not in config_name:
                assert keeping == [once] * 3 and once < twice, moved
            else:  # without the forward pass there are no rows of it: the backward pass fetches all
                assert all(once <= rows <= twice for rows in keeping), moved


def check_published():
    """tangram.magi passes through."""
    ranges = [magi.AttnRanges.from_ranges(r) for r in RANGES[:2]]
    pad = magi.compute_pad_size(TOTAL, 2, 16)
    key = magi.magi_attn_flex_key(
        *ranges,
        RANGES[2],
        TOTAL,
        TOTAL,
        HEADS,
        HEADS_KV,
        DIM,
        pad_size=pad,
        chunk_size=16,
        cp_group_or_mesh=dist.group.WORLD,
    )
    inputs = [magi.dispatch(x.detach(), key) for x in whole(TOTAL, 1)]

    def layer(q, k, v):
        for _ in range(2):
            q = q + magi.calc_attn(q, k, v, key)[0]
        return q

    wanted, _ = step(plain, layer, inputs)
    for run in (by_policy, kept_reentrant):
        results, report = step(run, layer, inputs)
        assert report.num_forward == 2
        for a, b in zip(results, wanted, strict=True):
            assert torch.equal(a, b)


def check_buffer():
    """A DistMaskBuffer under a policy is the key that is set, and its backward pass is refused after the next one."""
    with as_device():
        keys = [key_of(None), key_of(None, tangram.Mask.varlen([0, 40, TOTAL], causal=True))]
        buffer = tangram.DistMaskBuffer(keys, dtype=torch.float32)
        inputs = [tangram.dispatch(x.detach(), keys[0]) for x in whole(TOTAL, 1)]
        buffer.set(keys[0])
        for run in (by_policy, kept_reentrant):
            wanted, _ = step(plain, layer_of(keys[0], {}), inputs)
            results, report = step(run, layer_of(buffer, {}), inputs)
            assert report.num_forward == 2 and report.waited_s is None
            for a, b in zip(results, wanted, strict=True):
                assert torch.equal(a, b)
        out = by_policy(layer_of(buffer, {}), *(x.detach().requires_grad_() for x in inputs))
        buffer.set(keys[1])
        try:
            out.sum().backward()
        except tangram.InvalidArgument as error:
            assert "must come before the DistMaskBuffer's next key is set" in str(error), error
        else:
            raise AssertionError("took the gradient of another key")


def check_kept_rows_on_gpus():
    """Rows that a forward pass kept are taken by the next one, also where that pass did not run."""
    with as_device():
        key = key_of(CONFIGS["kept K/V"])
        inputs = [tangram.dispatch(x.detach(), key) for x in whole(TOTAL, 1)]
        wanted, _ = step(plain, layer_of(key, {}), inputs)
        traffic = []
        for run in (reentrant, nonreentrant, by_policy, kept, kept_reentrant):
            before = key.group.group.traffic()
            results, report = step(run, layer_of(key, {}), inputs)
            traffic.append(key.group.group.traffic() - before)
            assert report.num_forward == (4 if run in (reentrant, nonreentrant) else 2)
            for a, b in zip(results, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        moved = torch.tensor(traffic)
        dist.all_reduce(moved)
        # The backward pass of the second call finds the rows of the recomputation, by either checkpoint.
        assert moved[0] == moved[1], moved


def check_compiled():
    key = key_of(None)
    inputs = [tangram.dispatch(x.detach(), key) for x in whole(TOTAL, 1)]
    layer = layer_of(key, {})
    wanted, _ = step(plain, layer, inputs)
    compiled = torch.compile(lambda *x: by_policy(layer, *x), backend="aot_eager", fullgraph=True)
    results, report = step(plain, compiled, inputs)
    assert report.num_forward == 2, report
    for a, b in zip(results, wanted, strict=True):
        torch.testing.assert_close(a, b)


def check_flops():
    """Ranks add up to the visible area, in every strategy, with masks of head groups too; passes count as they ran."""
    groups = [MASK, tangram.Mask.causal(TOTAL)]
    of_groups = (int(CELLS.sum()) + TOTAL * (TOTAL + 1) // 2) * HEADS // 2
    cases = [(config, MASK, int(CELLS.sum()) * HEADS) for config in CONFIGS.values()]
    cases.append((None, groups, of_groups))
    for config, mask, pairs in cases:
        key = key_of(config, mask)
        inputs = [tangram.dispatch(x.detach(), key) for x in whole(TOTAL, 1)]
        for run, forwards in ((plain, 2), (reentrant, 4), (by_policy, 2), (kept_reentrant, 2)):
            with FlopCounterMode(display=False) as counter:
                step(run, layer_of(key, {}), inputs)
            counts = counter.get_flop_counts()["Global"]
            ours = [counts[torch.ops.tangram.calc_attn], counts[torch.ops.tangram.calc_attn_backward]]
            total = torch.tensor(ours)
            dist.all_reduce(total)
            assert total.tolist() == [forwards * pairs * 4 * DIM, 2 * pairs * 10 * DIM], (config, run, total)


def main():
    dist.init_process_group("gloo")
    check_passes()
    check_published()
    check_buffer()
    check_kept_rows_on_gpus()
    check_compiled()
    check_flops()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
