# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The functions over ranks under torch.compile."""

from __future__ import annotations

import torch

import tangram


def check_compiled(group):
    """A graph without breaks, for any number of keys."""
    compiled_steps = 0

    def backend(graph, _):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    def step(q, k, v, key, sink):
        out, meta = tangram.calc_attn(q * 2, k, v, key, sink=sink, softcap=3.0, return_max_logits=True)
        return (out * 3).sum(), meta.max_logits

    compiled = [torch.compile(step, backend=b, fullgraph=True) for b in (backend, "aot_eager")]
    for left in range(5):
        key = tangram.mask_key(tangram.Mask.sliding_window(64, (left, 0)), 2, 2, 8, group, chunk_size=8)
        generator = torch.Generator().manual_seed(10 * left + key.rank)
        inputs = [torch.randn(key.rows("q").per_rank, 2, 8, generator=generator).requires_grad_() for _ in range(3)]
        inputs.append(torch.ones(2, 2).requires_grad_())
        results = []
        for run in (step, *compiled):
            loss, peaks = run(*inputs[:3], key, inputs[3])
            results.append([loss.detach(), peaks, *torch.autograd.grad(loss, inputs)])
        for others in results[1:]:
            for ours, wanted in zip(others, results[0], strict=True):
                torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    assert compiled_steps <= 2, compiled_steps  # for one key, and for all others


def check_compiled_steps(group):
    """A whole step, from the tensors that all ranks hold and back to them, in one graph."""
    compiled_steps = 0

    def backend(graph, _):
        nonlocal compiled_steps
        compiled_steps += 1
        return graph

    def step(x, labels, key):
        q = tangram.dispatch(x, key) * 2
        out = tangram.calc_attn(q, q[:, :2], q[:, :2], key)[0]
        whole = tangram.undispatch(tangram.roll(out, key, -3), key)
        return (whole * whole).sum(), tangram.dispatch(labels, key, pad_value=-100)

    compiled = [torch.compile(step, backend=b, fullgraph=True) for b in (backend, "aot_eager")]
    for total in (60, 75, 90, 100):
        key = tangram.mask_key(tangram.Mask.sliding_window(total, (9, 0)), 4, 2, 8, group, chunk_size=8)
        x = torch.randn(total, 4, 8, generator=torch.Generator().manual_seed(total)).requires_grad_()
        results = []
        for run in (step, *compiled):
            loss, labels = run(x, torch.arange(total), key)
            results.append([loss.detach(), labels, *torch.autograd.grad(loss, x)])
        for others in results[1:]:
            for ours, wanted in zip(others, results[0], strict=True):
                torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-4)
    assert compiled_steps <= 3, compiled_steps
