# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What a call costs on the CPU side: medians with a mask that is known, on tensors of one row, beside an empty op.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/overhead.py [--csv FILE]
Under `torchrun --nproc-per-node=2` calc_attn includes what the ranks tell each other, over one row each. With
`--device cuda`: flex_flash_attn_func on tensors in GPU memory, whose kernels are too short to be waited for; under
torchrun calc_attn over GPUs, which only enqueues.
"""

import argparse
import os
import statistics
import time
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import tangram
from tangram import _torch_group, _torch_pass
from tangram._runtime_key import DistAttnRuntimeKey, clear_keys

CALLS = 5000
LAYERS = 10


def warm_up_gpu():
    """An idle GPU runs at a fifth of its clock: calls that only enqueue would wait for it."""
    x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(2000):
        x @ x
    torch.cuda.synchronize()


def quantiles_us(seconds, share=1):
    """(median, fastest tenth): what other programs of a machine disturb least."""
    ordered = sorted(seconds)
    return statistics.median(ordered) * 1e6 / share, ordered[len(ordered) // 10] * 1e6 / share


def times_us(call, calls=CALLS, share=1, clock=time.perf_counter):
    times = []
    for i in range(calls):
        if i % 100 == 0 and torch.cuda.is_available():
            torch.cuda.synchronize()
        start = clock()
        call()
        times.append(clock() - start)
    return quantiles_us(times, share)


def measured(lines):
    """[(name, quantiles of one call)]."""
    return [(name, times_us(call, share=LAYERS if name.endswith("layers") else 1)) for name, call in lines]


@torch.library.custom_op("benchmark::empty", mutates_args=())
def empty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q)


class EmptyFunction(torch.autograd.Function):
    """What autograd itself costs with three inputs."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx, dout):
        q, k, v = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def of_layers(attend, q, k, v):
    """A function that runs the backward pass of a graph of LAYERS calls, as a model makes it: each takes the last one's
    result for its queries, keys and values of its own. Autograd wakes its thread once for all of them."""
    pairs = [(k.detach().clone().requires_grad_(), v.detach().clone().requires_grad_()) for _ in range(LAYERS)]
    out = q
    for pair in pairs:
        out = attend(out, *pair)
    leaves, dout = [q, *(x for pair in pairs for x in pair)], torch.ones_like(out)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def layer_lines(q, k, v, **functions):
    """The lines of one call's share in such a backward pass: (name, function of LAYERS calls)."""
    for name, attend in {"empty autograd function": EmptyFunction.apply, **functions}.items():
        yield f"{name}, backward, one of {LAYERS} layers", of_layers(attend, q, k, v)


def calls(key):
    """(name, function) of each line."""
    q, k, v = (torch.randn(1, 1, 8, requires_grad=True) for _ in range(3))
    ranges = [torch.tensor(r, dtype=torch.int32) for r in ([[0, 1]], [[0, 1]], [1])]
    dout = torch.ones(1, 1, 8)

    def backward(out):
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    yield "empty custom op, forward", lambda: empty(q, k, v)
    yield "empty autograd function, forward", lambda: EmptyFunction.apply(q, k, v)
    yield "flex_flash_attn_func, forward", lambda: tangram.flex_flash_attn_func(q, k, v, *ranges)
    yield "calc_attn, forward", lambda: tangram.calc_attn(q, k, v, key)
    yield "empty autograd function, backward", backward(EmptyFunction.apply(q, k, v))
    yield "flex_flash_attn_func, backward", backward(tangram.flex_flash_attn_func(q, k, v, *ranges)[0])
    yield "calc_attn, backward", backward(tangram.calc_attn(q, k, v, key)[0])
    yield from layer_lines(
        *(q, k, v),
        flex_flash_attn_func=lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, *ranges)[0],
        calc_attn=lambda q, k, v: tangram.calc_attn(q, k, v, key)[0],
    )
    yield from alone(q, k, v, tangram.Mask.causal(1), dout)


def alone(q, k, v, mask, dout):
    """The lines of what flex_flash_attn_func does itself, without what autograd does around it."""
    out, meta = tangram.flex_flash_attn_func(q, k, v, mask)
    attention = _torch_pass._attention(q, k, v, (mask, None, None), None)
    call = _torch_pass._Call(attention, "sh", _torch_pass._options(None, 0.0, False, 0), None, False)
    tensors = [t.detach() for t in (dout, q, k, v, out, meta.lse)]
    yield "flex_flash_attn_func, forward, alone", lambda: _torch_pass._forward(call, *tensors[1:4], None)
    yield "flex_flash_attn_func, backward, alone", lambda: _torch_pass._backward(call, *tensors, None)


def calls_on_gpu():
    """The lines of flex_flash_attn_func alone, with ranges on the device."""
    q, k, v = (torch.randn(16, 1, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    ranges = [torch.tensor(r, dtype=torch.int32, device="cuda") for r in ([[0, 16]], [[0, 16]], [1])]
    mask = tangram.Mask.causal(16)
    dout = torch.ones_like(q)

    def backward(out):
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    yield "empty custom op, forward", lambda: empty(q, k, v)
    yield "empty autograd function, forward", lambda: EmptyFunction.apply(q, k, v)
    yield "flex_flash_attn_func, forward", lambda: tangram.flex_flash_attn_func(q, k, v, *ranges)
    yield "flex_flash_attn_func with a Mask, forward", lambda: tangram.flex_flash_attn_func(q, k, v, mask)
    yield "empty autograd function, backward", backward(EmptyFunction.apply(q, k, v))
    yield "flex_flash_attn_func, backward", backward(tangram.flex_flash_attn_func(q, k, v, *ranges)[0])
    yield from layer_lines(
        q, k, v, flex_flash_attn_func=lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, *ranges)[0]
    )
    yield from alone(q, k, v, mask, dout)


class NoExecutor:
    """Takes a pass and does nothing: what is left is Python's part."""

    def forward(self, *_):
        pass

    backward = forward


def lines_over_gpus():
    """[(name, median)] of calc_attn over GPUs: host time of passes that are enqueued, and of a first pass."""
    from tangram import distributed

    warm_up_gpu()
    total = 1024 * dist.get_world_size()
    key = tangram.mask_key(tangram.Mask.causal(total), 16, 4, 128)
    rows = key.rows("q").per_rank
    shards = [torch.randn(rows, h, 128, device="cuda", dtype=torch.bfloat16).requires_grad_() for h in (16, 4, 4)]
    dout = torch.ones_like(shards[0])

    def times(call, calls=600, settle=30, share=1):
        """Times of calls that start on all ranks together with empty streams, `settle` calls after each such start."""
        spent = []
        for i in range(calls):
            if i % settle == 0:
                torch.cuda.synchronize()
                dist.barrier()
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        return quantiles_us(spent[min(calls // 4, 60) :], share)

    out, meta = tangram.calc_attn(*shards, key)
    attention = key.attention(torch.bfloat16, 128, None, shards[0].get_device())
    options = distributed._options(None, 0.0, False)
    tensors = [t.detach() for t in (*shards, out, meta.lse)]
    stream = torch.cuda.current_stream().cuda_stream
    grads = [torch.empty_like(t) for t in tensors[:3]]
    forward = (*tensors, None, None, "sh", None, options, stream)
    backward = (*tensors, dout, *grads, None, None, "sh", None, "sum", options, stream)
    windows = iter(range(100, 200))

    def first_pass():
        mask = tangram.Mask.sliding_window(total, (next(windows), 0))
        tangram.calc_attn(*shards, tangram.mask_key(mask, 16, 4, 128))

    def run_forward():
        tangram.calc_attn(*shards, key)

    def run_backward():
        torch.autograd.grad(out, shards, dout, retain_graph=True)

    layers = list(layer_lines(*shards, calc_attn=lambda q, k, v: tangram.calc_attn(q, k, v, key)[0]))
    lines = [
        ("calc_attn, forward", times(run_forward)),
        ("calc_attn, forward, alone", times(lambda: attention.forward(*forward))),
        ("calc_attn, backward", times(run_backward)),
        ("calc_attn, backward, alone", times(lambda: attention.backward(*backward))),
        *((name, times(call, 100, 2, LAYERS)) for name, call in layers),
    ]
    with patch.object(DistAttnRuntimeKey, "attention", lambda *_: NoExecutor()):
        out = tangram.calc_attn(*shards, key)[0]
        layers = layer_lines(*shards, calc_attn=lambda q, k, v: tangram.calc_attn(q, k, v, key)[0])
        (_, layer) = list(layers)[1]
        lines += [
            ("calc_attn without its executor, forward", times(run_forward)),
            ("calc_attn without its executor, backward", times(run_backward)),
            (f"calc_attn without its executor, backward, one of {LAYERS} layers", times(layer, 100, 2, LAYERS)),
        ]
    lines.append(("key of a new mask and its first pass", times(first_pass, 20, 1)))
    tangram.check_errors()
    return lines


def make_large_key():
    """A function that makes the key of 1 M tokens for 64 ranks anew; nothing is sent for it, so no peers are needed."""
    group = object.__new__(_torch_group.TorchGroup)
    group.rank, group.size, group.ranks, group.keys = 0, 64, list(range(64)), None
    _torch_group._groups["64 ranks"] = group
    total = 1 << 20
    borders = np.sort(np.random.default_rng(0).choice(total - 1, 2000, replace=False) + 1)
    cu_seqlens = torch.tensor([0, *borders.tolist(), total], dtype=torch.int32)

    def make():
        clear_keys()
        return tangram.magi_attn_varlen_key(cu_seqlens, cu_seqlens, 64, 8, 128, 0, "64 ranks", causal=True)

    return make


def report(lines, ranks, path):
    for name, (median, tenth) in lines:
        print(f"{name:64}{median:10.1f}, fastest tenth {tenth:10.1f} us")
    if path:
        with open(path, "w") as file:
            file.write("ranks,what,median_us,fastest_tenth_us\n")
            file.writelines(f'{ranks},"{name}",{median:.1f},{tenth:.1f}\n' for name, (median, tenth) in lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo")
        lines = lines_over_gpus()
        if dist.get_rank() == 0:
            report(lines, dist.get_world_size(), arguments.csv)
        dist.destroy_process_group()
        return
    if arguments.device == "cuda":
        warm_up_gpu()
        lines = measured(calls_on_gpu())
        report(lines, 1, arguments.csv)
        return
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    key = tangram.mask_key(tangram.Mask.full(ranks), 1, 1, 8, chunk_size=1)
    lines = measured(calls(key))
    make = make_large_key()
    numbers = np.random.default_rng(0).random(200_000)
    for name, call in (
        ("key of 1 M tokens, 2,001 documents, cp 64", make),
        ("beside it: sorting 200,000 doubles", lambda: np.sort(numbers)),
    ):
        lines.append((name, times_us(call, 20)))
        lines.append((f"{name}: processor time", times_us(call, 20, clock=time.process_time)))
    if dist.get_rank() == 0:
        report(lines, ranks, arguments.csv)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
