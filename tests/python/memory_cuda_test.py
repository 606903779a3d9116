# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Masks keep no memory but their lists, and calls compute in a workspace that belongs to no mask. Needs a Hopper
GPU."""

import os
import random
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import Mask, flex_flash_attn_func  # noqa: E402
from tangram._prepared import clear_cache  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

MIB = 1 << 20
LONG = os.environ.get("TANGRAM_TEST_LONG") == "1"


def operands(rows, heads=16, heads_kv=2, dim=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim)]
    return [torch.randn(s, generator=generator).to("cuda", torch.bfloat16).requires_grad_() for s in shapes]


def pack(rng, rows):
    return of_documents([0, *sorted(rng.sample(range(16, rows, 16), rng.randint(2, 12))), rows], rows)


def of_documents(ends, rows):
    assert ends[-1] == rows
    return Mask.varlen(ends, causal=True)


def step(tensors, mask, **options):
    """out and the gradients."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out, _ = flex_flash_attn_func(*leaves, mask, deterministic=True, **options)
    out.backward(torch.ones_like(out))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def poison():
    """Fills what torch's allocator has free with NaN, which the next call computes in."""
    free = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    blocks = []
    for size in (free // 2, free // 4, free // 8, *[MIB] * 8):
        blocks.append(torch.full((max(size // 4, 1),), float("nan"), device="cuda"))
    del blocks


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


def live_bytes():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


# Between two of 300 masks it was found 66 MiB lower: 256 bytes for each of 132 x 2,048 threads, the local memory of
# some kernel, which CUDA gives back and takes again as it likes. So most is compared with most, over many steps: what
# masks left behind would add up in each.
def test_memory_stays_the_same_however_many_masks_there_were():
    rng, rows = random.Random(0), 4096
    tensors = operands(rows)
    clear_cache()

    def most_bytes(masks):
        """In use behind any of so many steps."""
        most = 0
        for _ in range(masks):
            step(tensors, pack(rng, rows))
            most = max(most, live_bytes())
        return most

    first, full = most_bytes(20), most_bytes(280)
    assert full - first < 250 * MIB, "a mask keeps less than 1 MiB"
    # The cache of 256 masks is full; what is left are its lists of other lengths, in blocks of 2 MiB.
    assert most_bytes(700 if LONG else 200) <= full + 8 * MIB


def test_masks_in_turns_and_between_forward_and_backward():
    rows = 2048
    masks = [of_documents([0, rows], rows), of_documents([0, 500, 1100, rows], rows)]
    tensors = [operands(rows, seed=1), operands(rows, seed=2)]
    alone = [step(t, mask) for t, mask in zip(tensors, masks, strict=True)]
    leaves = [[x.detach().requires_grad_() for x in t] for t in tensors]
    for _ in range(3):
        outs = []
        for t, mask in zip(leaves, masks, strict=True):
            poison()
            outs.append(flex_flash_attn_func(*t, mask, deterministic=True)[0])
        for t, out, expected in zip(leaves, outs, alone, strict=True):
            poison()
            grads = torch.autograd.grad(out, t, torch.ones_like(out))
            assert_equal([out, *grads], expected)


def test_streams_and_threads_share_no_memory():
    rows = 2048
    masks = [of_documents([0, rows], rows), of_documents([0, 700, rows], rows)]
    tensors = [operands(rows, seed=seed) for seed in (1, 2)]
    expected = [step(t, mask) for t, mask in zip(tensors, masks, strict=True)]
    torch.cuda.synchronize()
    got = [None, None]

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                got[i] = step(tensors[i], masks[i])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(got, expected, strict=True):
        assert_equal(a, b)


def test_a_mask_is_dropped_while_its_kernels_run():
    rng, rows = random.Random(3), 4096
    tensors = operands(rows)
    mask = pack(rng, rows)
    expected = step(tensors, mask)
    for _ in range(5):
        got = step(tensors, mask)
        clear_cache()
        poison()
        assert_equal(got, expected)


def test_activation_checkpointing_and_an_exception_between():
    from torch.utils.checkpoint import checkpoint

    rows = 1024
    first, second = of_documents([0, rows], rows), of_documents([0, 300, rows], rows)
    tensors = operands(rows)
    expected = step(tensors, first)
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = checkpoint(lambda *t: flex_flash_attn_func(*t, first, deterministic=True)[0], *leaves, use_reentrant=False)
    with pytest.raises(tangram.InvalidArgument):
        flex_flash_attn_func(*tensors, Mask.varlen([0, 10], causal=True))
    step(tensors, second)
    poison()
    out.backward(torch.ones_like(out))
    assert_equal([out.detach(), *(leaf.grad for leaf in leaves)], expected)


def test_an_empty_cache_of_torch_between_forward_and_backward():
    rows = 2048
    mask, tensors = of_documents([0, 900, rows], rows), operands(rows)
    expected = step(tensors, mask)
    leaves = [t.detach().requires_grad_() for t in tensors]
    out, _ = flex_flash_attn_func(*leaves, mask, deterministic=True)
    torch.cuda.empty_cache()
    out.backward(torch.ones_like(out))
    torch.cuda.empty_cache()
    assert_equal([out.detach(), *(leaf.grad for leaf in leaves)], expected)


def test_a_graph_outlives_the_mask_it_was_captured_with():
    rng, rows = random.Random(5), 2048
    mask, tensors = pack(rng, rows), operands(rows)
    expected = step(tensors, mask)
    leaves = [t.detach().requires_grad_() for t in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = flex_flash_attn_func(*leaves, mask, deterministic=True)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
    del mask
    clear_cache()
    for seed in range(3):  # whose lists would lie where those of the mask were
        step(operands(rows, seed=seed), pack(rng, rows))
    poison()
    for result in (out, *grads):
        result.detach().fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_equal([out, *grads], expected)
    before = live_bytes()
    del graph, out, grads
    step(tensors, pack(rng, rows))  # frees what graphs kept that are gone
    assert live_bytes() <= before + 2 * MIB


def test_backward_may_be_captured_after_forward_alone_has_run():
    rows = 1024
    mask, tensors = of_documents([0, 400, rows], rows), operands(rows)
    with torch.no_grad():
        flex_flash_attn_func(*tensors, mask, deterministic=True)
    leaves = [t.detach().requires_grad_() for t in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = flex_flash_attn_func(*leaves, mask, deterministic=True)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
    graph.replay()
    assert_equal([out, *grads], step(tensors, of_documents([0, 400, rows], rows)))


def test_memory_use_names_what_masks_hold():
    clear_cache()
    rows = 2048
    step(operands(rows), of_documents([0, 400, rows], rows))
    row = next(r for r in tangram.memory_use() if r.name == "masks")
    assert row.entries == 1
    assert 0 < row.num_bytes < MIB
