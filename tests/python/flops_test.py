# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FLOPs that torch's counter sees, against cells counted one by one."""

import random
import subprocess
import sys

import numpy as np
import pytest

from masks import random_typed
from reference import typed_cells

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tangram  # noqa: E402
from tangram import Mask, flash_attn, flex_flash_attn_func  # noqa: E402


def operands(rows=24, heads=4, heads_kv=2, dim=16, dim_v=8):
    shapes = [(rows, heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v)]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def counted(function, *inputs):
    """FLOPs of both passes."""
    with FlopCounterMode(display=False) as counter:
        function(*inputs).sum().backward()
    return [n for packet, n in counter.get_flop_counts()["Global"].items() if "tangram" in str(packet)]


def flops(cells, heads=4, dim=16, dim_v=8):
    """Two products forward, five backward, each 2 * dim a cell."""
    pairs = int(cells.sum()) * heads
    return [pairs * 2 * (dim + dim_v), pairs * 2 * (3 * dim + 2 * dim_v)]


def test_only_visible_cells_count():
    for seed in range(20):
        ranges = random_typed(random.Random(seed))
        wanted = flops(typed_cells(*ranges, 24, 24))
        mask = Mask.from_ranges(*ranges, 24, 24)
        tensors = [
            torch.tensor(r, dtype=torch.int32).reshape(shape) for r, shape in zip(ranges, ((-1, 2), (-1, 2), -1))
        ]
        for given in (ranges, (mask,), tensors):
            assert counted(lambda *x, g=given: flex_flash_attn_func(*x, *g)[0], *operands()) == wanted


def test_compiled_calls_count_the_same():
    ranges = random_typed(random.Random(3))
    wanted = flops(typed_cells(*ranges, 24, 24))
    mask = Mask.from_ranges(*ranges, 24, 24)
    tensors = [torch.tensor(r, dtype=torch.int32) for r in ranges]
    for given in (ranges, (mask,), tensors, ([mask, mask],)):
        compiled = torch.compile(lambda *x, g=given: flex_flash_attn_func(*x, *g)[0], backend="aot_eager")
        compiled(*operands())  # compiles outside of the counter
        assert counted(compiled, *operands()) == wanted


def test_head_groups_batches_buffers_and_documents_count():
    ranges = random_typed(random.Random(5))
    cells = typed_cells(*ranges, 24, 24)
    triangle = np.tril(np.ones((24, 24), bool))
    masks = [Mask.from_ranges(*ranges, 24, 24), Mask.causal(24)]
    both = [a + b for a, b in zip(flops(cells, 2), flops(triangle, 2), strict=True)]
    assert counted(lambda *x: flex_flash_attn_func(*x, masks)[0], *operands()) == both

    batch = [torch.randn(3, 24, n, d).requires_grad_() for n, d in ((4, 16), (2, 16), (2, 8))]
    thrice = [3 * n for n in flops(triangle)]
    assert counted(lambda *x: flash_attn.flash_attn_func(*x, causal=True), *batch) == thrice

    buffer = tangram.MaskBuffer(24, 24, tangram.HeadConfig(4, 2, 16, 8, "float32"), device="cpu")
    buffer.set(masks[0])
    assert counted(lambda *x: flex_flash_attn_func(*x, buffer)[0], *operands()) == flops(cells)
    buffer.set_cu_seqlens([0, 10, 24], causal=True)
    with pytest.warns(UserWarning, match="FLOPs of a mask that a MaskBuffer took from tensors are not counted"):
        assert counted(lambda *x: flex_flash_attn_func(*x, buffer)[0], *operands()) == [0, 0]


def test_named_keys_count():
    lists = torch.randint(-1, 24, (24, 2, 1)).int()
    lists[:4] = -1
    wanted = [n // 2 for n in flops((lists >= 0).numpy(), dim_v=16)]  # 2 query heads for each list
    inputs = operands(dim_v=16)
    assert counted(lambda *x: tangram.token_attn_func(*x, lists)[0], *inputs) == wanted


def test_results_are_the_same_under_a_counter():
    ranges = random_typed(random.Random(7))
    q, k, v = operands()
    results = []
    for watched in (False, True):
        with FlopCounterMode(display=False) if watched else torch.enable_grad():
            out, meta = flex_flash_attn_func(q, k, v, *ranges, return_max_logits=True)
            grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        results.append([out.detach(), meta.lse, meta.max_logits, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_counter_that_began_before_the_first_call_counts():
    program = """
import torch
from torch.utils.flop_counter import FlopCounterMode
import tangram
q = torch.randn(8, 1, 4)
with FlopCounterMode(display=False) as counter:
    tangram.flex_flash_attn_func(q, q, q, tangram.Mask.causal(8))
assert counter.get_total_flops() == 36 * 16, counter.get_total_flops()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
