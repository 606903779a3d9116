# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""One captured training step over packs that change. Needs a Hopper GPU."""

import gc
import os
import random
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import HeadConfig, InvalidArgument, Mask, MaskBuffer, flex_flash_attn_func  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

ROWS, HEADS = 4096, HeadConfig(16, 2, 64, 64, "bfloat16")
PACKS = 1000 if os.environ.get("TANGRAM_TEST_LONG") == "1" else 60
MIB = 1 << 20


def operands(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(ROWS, 16, 64), (ROWS, 2, 64), (ROWS, 2, 64), (ROWS, 16, 64)]
    return [torch.randn(s, generator=generator).to("cuda", torch.bfloat16) for s in shapes]


def pack(rng):
    count = rng.choice([1, 3, 12, 60])
    return Mask.varlen([0, *sorted(rng.sample(range(1, ROWS), count)), ROWS], causal=rng.random() < 0.8)


def step(leaves, dout, mask):
    """out and the gradients."""
    out, _ = flex_flash_attn_func(*leaves, mask, deterministic=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]  # else the leaves keep the stream they were used on


def captured(leaves, dout, buffer):
    """A graph and its results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(leaves, dout, buffer)  # loads kernels
    torch.cuda.current_stream().wait_stream(stream)
    gc.collect()  # a graph that ends while another is captured spoils it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(leaves, dout, buffer)
    return graph, results


def assert_close(results, expected):
    """Tolerance of a mask of its own, some of whose query tiles may be computed in parts, with sums rounded
    otherwise."""
    for one, other in zip(results, expected, strict=True):
        assert (one - other).float().norm() <= 4e-3 * other.float().norm()


def make(**options):
    return MaskBuffer(ROWS, ROWS, HEADS, max_documents=128, deterministic=True, **options)


def test_one_graph_replays_with_any_pack():
    rng = random.Random(1)
    *tensors, dout = operands()
    leaves = [t.requires_grad_() for t in tensors]
    buffer = make()
    buffer.set(pack(rng))
    graph, results = captured(leaves, dout, buffer)
    for number in range(PACKS):
        mask = pack(rng)
        buffer.set(mask)
        eager = step(leaves, dout, buffer)
        for result in results:
            result.detach().fill_(float("nan"))
        buffer.set(pack(rng))
        buffer.set(mask)
        graph.replay()
        for one, other in zip(results, eager, strict=True):
            assert torch.equal(one, other), number
        if number % 10 == 0:
            assert_close(results, step(leaves, dout, mask))


def test_replays_one_behind_the_other_do_not_wait():
    rng = random.Random(2)
    *tensors, dout = operands(2)
    leaves = [t.requires_grad_() for t in tensors]
    packs = [pack(rng) for _ in range(20)]
    buffer = make()
    buffer.set(packs[0])
    graph, results = captured(leaves, dout, buffer)

    def kept(wait):
        sums = []
        for mask in packs:
            buffer.set(mask)
            graph.replay()
            sums.append([r.detach().clone() for r in results])
            if wait:
                torch.cuda.synchronize()
        return sums

    expected = kept(wait=True)
    for one, other in zip(kept(wait=False), expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_memory_does_not_grow_with_masks():
    rng = random.Random(3)
    *tensors, dout = operands(3)
    leaves = [t.requires_grad_() for t in tensors]
    buffer = make()
    buffer.set(pack(rng))
    graph, _ = captured(leaves, dout, buffer)

    def used():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def most_bytes(masks):
        """Most against most: the local memory of kernels, 66 MiB here, comes and goes as CUDA likes."""
        most = 0
        for _ in range(masks):
            buffer.set(pack(rng))
            graph.replay()
            most = max(most, used())
        return most

    before = most_bytes(50)
    assert most_bytes(200) <= before


def test_a_graph_forbids_what_it_would_not_see():
    *tensors, dout = operands(4)
    leaves = [t.requires_grad_() for t in tensors]
    buffer = MaskBuffer(ROWS, ROWS, HEADS, max_documents=4, deterministic=True)
    buffer.set(Mask.causal(ROWS))
    graph, results = captured(leaves, dout, buffer)
    with pytest.raises(InvalidArgument, match=r"MaskBuffer.reserve: CUDA graphs that were captured"):
        buffer.reserve(max_documents=512)
    with pytest.raises(InvalidArgument, match=r"MaskBuffer.set: the mask must fit the buffer, a larger max_documents"):
        buffer.set(Mask.varlen([*range(0, ROWS, 65), ROWS], causal=True))
    graph.replay()
    assert_close(results, step(leaves, dout, Mask.causal(ROWS)))
    other_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other_graph):
        with pytest.raises(InvalidArgument, match="masks are set between replays"):
            buffer.set(Mask.full(ROWS))
        flex_flash_attn_func(*tensors, buffer)
    del graph, other_graph, results
    torch.cuda.synchronize()
    for _ in range(50):  # CUDA says on a thread of its own that a graph has ended
        try:
            return buffer.reserve(max_documents=256)
        except InvalidArgument:
            time.sleep(0.1)
    pytest.fail("the graphs are gone, and still hold the buffer")


def test_a_buffer_may_go_before_its_graph():
    *tensors, dout = operands(5)
    leaves = [t.requires_grad_() for t in tensors]
    mask = Mask.varlen([0, 1000, ROWS], causal=True)
    expected = step(leaves, dout, mask)
    buffer = make()
    buffer.set(mask)
    graph, results = captured(leaves, dout, buffer)
    del buffer
    filled = [torch.full((MIB,), float("nan"), device="cuda") for _ in range(16)]
    graph.replay()
    assert_close(results, expected)
    del filled


def test_default_calls_agree_and_streams_are_ordered():
    *tensors, dout = operands(6)
    leaves = [t.requires_grad_() for t in tensors]
    buffer = MaskBuffer(ROWS, ROWS, HEADS, max_documents=128, deterministic=False)
    for seed in range(8):
        mask = pack(random.Random(seed))
        expected = step(leaves, dout, mask)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            buffer.set(mask)
        out, _ = flex_flash_attn_func(*leaves, buffer)
        assert_close([out, *torch.autograd.grad(out, leaves, dout)], expected)


def replayed_and_eager(set_mask, change, wanted, rounds, **capacity):
    """A graph that holds set_mask and a step gives, whatever change() puts there, what wanted() gives eagerly."""
    *tensors, dout = operands(3)
    leaves = [t.requires_grad_() for t in tensors]
    buffer = MaskBuffer(ROWS, ROWS, HEADS, deterministic=False, **capacity)

    def both(mask):
        out, _ = flex_flash_attn_func(*leaves, mask)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]

    def step():
        set_mask(buffer)
        return both(buffer)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for number in range(rounds):
        change(number)
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        buffer.check_errors()
        assert_close(results, both(wanted()))
    return buffer, graph, results


def test_a_graph_reads_the_documents_that_stand_in_a_tensor():
    rng = random.Random(5)
    lists = torch.full((65,), ROWS, dtype=torch.int32, device="cuda")
    lists[0] = 0
    ends = []

    def change(_):
        ends[:] = [0, *sorted(rng.sample(range(1, ROWS), rng.choice([1, 3, 12, 60]))), ROWS]
        lists.copy_(torch.tensor(ends + [ROWS] * (65 - len(ends)), dtype=torch.int32))

    buffer, graph, results = replayed_and_eager(
        lambda b: b.set_cu_seqlens(lists, causal=True), change, lambda: Mask.varlen(ends), PACKS // 4, max_documents=64
    )
    lists[1:3] = torch.tensor([50, 40], dtype=torch.int32)
    graph.replay()
    torch.cuda.synchronize()
    assert all((result == 0).all() for result in results), "the mask shows nothing"
    with pytest.raises(InvalidArgument, match=r"must not decrease \(got cu_seqlens_q\[2\]=40 after 50; found on"):
        buffer.check_errors()
    buffer.check_errors()
    with pytest.raises(InvalidArgument, match="contiguous tensor of int32 or int64"):
        buffer.set_cu_seqlens([0, ROWS], causal=True)
    with pytest.raises(InvalidArgument, match="on the buffer's GPU"):
        buffer.set_cu_seqlens(lists.cpu(), causal=True)
    with pytest.raises(InvalidArgument, match=r"a larger max_documents makes room \(got 65 documents, room for 64"):
        buffer.set_cu_seqlens(torch.zeros(66, dtype=torch.int32, device="cuda"), causal=True)


def test_deterministic_buffers_repeat_masks_of_the_gpu():
    rng = random.Random(9)
    *tensors, dout = operands(4)
    leaves = [t.requires_grad_() for t in tensors]
    buffer = make()
    for _ in range(4):
        ends = [0, *sorted(rng.sample(range(1, ROWS), 20)), ROWS]
        buffer.set_cu_seqlens(torch.tensor(ends, dtype=torch.int32, device="cuda"), causal=True)
        first = step(leaves, dout, buffer)
        assert_close(first, step(leaves, dout, Mask.varlen(ends, causal=True)))
        for _ in range(3):
            for one, other in zip(step(leaves, dout, buffer), first, strict=True):
                assert torch.equal(one, other)
    buffer.check_errors()


@pytest.mark.parametrize(("block", "causal"), [(128, False), (64, True), (16, False)])
def test_a_graph_reads_the_blocks_that_a_model_has_chosen(block, causal):
    torch.manual_seed(block)
    count, width = ROWS // block, 6
    scores = torch.zeros(count, count, device="cuda")

    def choose():
        chosen = scores.tril() + torch.eye(count, device="cuda") * 9 if causal else scores
        return chosen.topk(width, dim=1).indices

    replayed_and_eager(
        lambda b: b.set_blocks(choose(), block, causal=causal),
        lambda _: scores.uniform_(),
        lambda: Mask.from_block_indices(ROWS, ROWS, block, block, choose().cpu().numpy(), causal=causal),
        4,
        max_documents=64,
        max_slices=count * width,
    )


@pytest.mark.parametrize(
    ("block", "head_groups", "causal"),
    [(16, 1, False), (32, 2, False), (64, 2, True), (64, 1, False), (128, 1, False), (128, 2, False), (128, 2, True)],
)
def test_a_graph_reads_blocks_of_head_groups(block, head_groups, causal):
    torch.manual_seed(block)
    count, width = ROWS // block, 6
    scores = torch.zeros(head_groups, count, count, device="cuda")

    def choose():
        chosen = scores.tril() + torch.eye(count, device="cuda") * 9 if causal else scores
        return chosen.topk(width, dim=-1).indices

    def masks():
        tables = choose().cpu().numpy()
        made = [Mask.from_block_indices(ROWS, ROWS, block, block, table, causal=causal) for table in tables]
        return made[0] if head_groups == 1 else made

    buffer, graph, results = replayed_and_eager(
        lambda b: b.set_blocks(choose(), block, causal=causal),
        lambda _: scores.uniform_(),
        masks,
        4,
        block_size=block,
        head_groups=head_groups,
        max_slices=head_groups * count * width,
    )
    *tensors, _ = operands(3)
    built = flex_flash_attn_func(*tensors, buffer)[0]
    buffer.set(masks())
    assert_close([flex_flash_attn_func(*tensors, buffer)[0]], [built])
    if not causal:
        assert torch.equal(flex_flash_attn_func(*tensors, masks())[0], built), "the bits of masks of their own"
    wrong = choose()
    wrong[-1, 3, 0] = count
    buffer.set_blocks(wrong, block, causal=causal)
    torch.cuda.synchronize()
    of_group = " of head group 1" if head_groups == 2 else ""
    with pytest.raises(InvalidArgument, match=rf"must lie in \[0, {count}\) \(got {count} in query block 3{of_group};"):
        buffer.check_errors()
    wrong[-1, 3, :2] = 1
    buffer.set_blocks(wrong, block, causal=False)
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match=rf"must not repeat \(got 1 in query block 3{of_group};"):
        buffer.check_errors()
    with pytest.raises(InvalidArgument, match="made for blocks"):
        buffer.set_cu_seqlens(torch.zeros(2, dtype=torch.int32, device="cuda"), causal=True)
    leaf = tensors[0].requires_grad_()
    buffer.set_blocks(choose(), block, causal=causal)
    capped = flex_flash_attn_func(leaf, *tensors[1:], buffer, softcap=5.0)[0].sum()
    if block == 128 and head_groups == 1:
        capped.backward()
        return
    with pytest.raises(InvalidArgument, match="must be without softcap"):
        capped.backward()


def test_a_graph_reads_typed_ranges():
    rng = random.Random(6)
    q, k = (torch.zeros(40, 2, dtype=torch.int64, device="cuda") for _ in range(2))
    types = torch.zeros(40, dtype=torch.int64, device="cuda")
    lists = []

    def change(_):
        ends = [0, *sorted(rng.sample(range(1, ROWS), 19)), ROWS]
        rows = [[a, b] for a, b in zip(ends, ends[1:], strict=False)]
        lists[:] = [rows, [r if rng.random() < 0.8 else [0, r[0]] for r in rows], [rng.choice([0, 1]) for _ in rows]]
        for tensor, values in zip((q, k, types), lists, strict=True):
            tensor.zero_()
            tensor[:20] = torch.tensor(values)

    buffer, graph, _ = replayed_and_eager(
        lambda b: b.set_ranges(q, k, types), change, lambda: Mask.from_ranges(*lists, ROWS, ROWS), 6, max_slices=400
    )
    q[3, 1] = ROWS + 1
    graph.replay()
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match=r"q_ranges\[3\] must lie in \[0, seqlen_q\)"):
        buffer.check_errors()
    q[3, 1] = q[3, 0] + 1
    q[30], k[30], types[30] = q[3], k[3], 0  # once more
    graph.replay()
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match=r"must not cover a cell twice \(got slices 3 and 30"):
        buffer.check_errors()
    with pytest.raises(InvalidArgument, match="all lists must have one dtype"):
        buffer.set_ranges(q, k.int(), types)
