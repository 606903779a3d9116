# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.MaskBuffer on the host: the mask that was set last, and what is refused."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import tangram
from reference import attention, mask_cells
from tangram import HeadConfig, InvalidArgument, Mask, MaskBuffer, flex_flash_attn_func

ROWS = 48
HEADS = HeadConfig(4, 2, 16, 16, "float32")
MASKS = [Mask.causal(ROWS), Mask.varlen([0, 5, 30, ROWS], causal=True), Mask.full(ROWS), Mask(ROWS, ROWS, [])]


def arrays(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, heads, 16)).astype(np.float32) for heads in (4, 2, 2)]


def make(**options):
    return MaskBuffer(ROWS, ROWS, HEADS, device="cpu", **options)


def test_calls_take_the_mask_that_was_set_last():
    tensors, buffer = arrays(), make()
    for number, mask in enumerate(MASKS, 1):
        buffer.set(mask)
        assert buffer.num_masks == number
        out, meta = flex_flash_attn_func(*tensors, buffer)
        wanted, wanted_meta = flex_flash_attn_func(*tensors, mask)
        assert np.array_equal(out, wanted)
        assert np.array_equal(meta.lse, wanted_meta.lse)


def test_a_batch_is_a_mask_of_all_its_rows():
    q, k, v = (x.reshape(2, ROWS // 2, *x.shape[1:]) for x in arrays())
    mask = Mask.varlen([0, 10, ROWS // 2, ROWS], causal=True)
    buffer = make()
    buffer.set(mask)
    out, _ = flex_flash_attn_func(q, k, v, buffer, layout="bshd")
    assert np.array_equal(out, flex_flash_attn_func(q, k, v, mask, layout="bshd")[0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda b: b.set(Mask.causal(ROWS + 1)),
            "MaskBuffer.set: the mask must have the lengths of the buffer, 48 x 48",
        ),
        (lambda b: b.set([(0, 3)]), r"MaskBuffer.set: mask must be a Mask \(got list\)"),
        (lambda b: flex_flash_attn_func(*arrays(), make()), "MaskBuffer.set must come first"),
        (
            lambda b: flex_flash_attn_func(*arrays(rows=ROWS - 1), b),
            "the tensors must be those that the MaskBuffer is for",
        ),
        (lambda b: flex_flash_attn_func(*arrays(), b, [(0, 1)]), "a MaskBuffer must stand alone, without k_ranges"),
        (lambda b: flex_flash_attn_func(*arrays(), b, deterministic=True), "a MaskBuffer made with deterministic=True"),
        (lambda b: flex_flash_attn_func(*arrays(), b, backend="reference"), "device and backend must be those of the"),
        (
            lambda b: b.reserve(0),
            r"MaskBuffer.reserve: max_documents must be positive .* \(got max_documents=0, max_slices=0\)",
        ),
        (
            lambda b: make(max_documents=-1),
            r"MaskBuffer: max_documents must be positive .* \(got max_documents=-1, max_slices=0\)",
        ),
        (lambda b: MaskBuffer(ROWS, ROWS, 4), "MaskBuffer: heads must be a HeadConfig"),
        (lambda b: MaskBuffer(ROWS, ROWS, HEADS, device="gpu"), "MaskBuffer: device must be cpu, cuda or a number"),
        (lambda b: MaskBuffer(ROWS, ROWS, HEADS, backend="none"), "backend must be None"),
    ],
)
def test_what_is_refused_names_itself(call, text):
    buffer = make()
    buffer.set(MASKS[0])
    with pytest.raises(InvalidArgument, match=text):
        call(buffer)
    assert np.isfinite(flex_flash_attn_func(*arrays(), buffer)[0]).all()


def test_reserve_forgets_the_mask():
    buffer = make()
    buffer.set(MASKS[0])
    buffer.reserve(max_documents=3, max_slices=9)
    with pytest.raises(InvalidArgument, match="MaskBuffer.set must come first"):
        flex_flash_attn_func(*arrays(), buffer)


def test_lists_of_documents_are_masks():
    tensors, buffer = arrays(), make(max_documents=4)
    ends, keys = [0, 5, 5, 30, ROWS], [0, 9, 20, 20, ROWS]

    def out(mask):
        return flex_flash_attn_func(*tensors, mask)[0]

    causal, whole = out(Mask.varlen(ends)), out(Mask.varlen(ends, causal=False))
    for lists, options, wanted in [
        ([ends], {}, causal),
        ([np.array(ends, np.int32)], {"causal": False}, whole),
        ([ends, keys], {}, out(Mask.varlen(ends, keys))),
        ([ends], {"window": (3, 2), "causal": False}, out(Mask.sliding_window(ends, (3, 2)))),
        ([ends], {"window": (3, 2)}, out(Mask.sliding_window(ends, (3, 0)))),
    ]:
        buffer.set_cu_seqlens(*lists, **({"causal": True} | options))
        assert np.array_equal(out(buffer), wanted)
    assert buffer.num_masks == 5
    buffer.check_errors()
    for lists, text in [
        ([[0, 30, 20, ROWS]], r"^MaskBuffer.set_cu_seqlens: cu_seqlens_q must not decrease"),
        ([[0, ROWS - 1]], r"^MaskBuffer.set_cu_seqlens: the mask must have the lengths of the buffer"),
        ([ends, [0, ROWS]], r"must be \[documents \+ 1\] and of one dtype \(got \[5\] and \[2\], 64 and 64 bits\)"),
        ([[]], r"must be \[documents \+ 1\] .*\(got \[0\] and \[0\]"),
        ([[[0, 5], [30, ROWS]]], r"must be \[documents \+ 1\] .*\(got \[2, 2\] and \[2, 2\]"),
        ([[0.5, ROWS]], r"must be whole numbers"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            buffer.set_cu_seqlens(*lists, causal=True)


def test_blocks_are_masks():
    tensors, buffer = arrays(), make(max_slices=99)
    table = [[0, 2], [1, -1], [2, 0]]
    for causal in (False, True):
        wanted = Mask.from_block_indices(ROWS, ROWS, 16, 16, [[0, 2], [1], [2, 0]], causal=causal)
        for indices in (table, np.array(table, np.int64), np.array(table, np.int32)):
            buffer.set_blocks(indices, 16, causal=causal)
            assert np.array_equal(flex_flash_attn_func(*tensors, buffer)[0], flex_flash_attn_func(*tensors, wanted)[0])
    for indices, size, text in [
        (table, 0, "block_size must be positive"),
        (table, 15, r"must be \[query blocks, width\] with 4 query blocks \(got \(3, 2\)\)"),
        ([[0], [3], [1]], 16, r"^MaskBuffer.set_blocks: indices must lie in \[0, 3\) \(got 3 in query block 1\)"),
        ([[0, 0], [1, 2], [1, 2]], 16, "indices must not repeat"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            buffer.set_blocks(indices, size, causal=False)


def test_head_groups_have_blocks_of_their_own():
    rng = np.random.default_rng(2)
    heads = HeadConfig(32, 4, 16, 16, "float32")  # blocks of 16 want eight to share a K/V head
    tensors = [rng.standard_normal((ROWS, n, 16)).astype(np.float32) for n in (32, 4, 4)]
    buffer = MaskBuffer(ROWS, ROWS, heads, device="cpu", block_size=16, head_groups=2, max_slices=12)
    table = np.array([[[0, 2], [1, -1], [2, 0]], [[1, -1], [0, 1], [2, 1]]])
    for causal in (False, True):
        masks = [Mask.from_block_indices(ROWS, ROWS, 16, 16, rows, causal=causal) for rows in table]
        wanted = flex_flash_attn_func(*tensors, masks)[0]
        for set_masks in (lambda b, c=causal: b.set_blocks(table, 16, causal=c), lambda b, m=masks: b.set(m)):
            set_masks(buffer)
            assert np.array_equal(flex_flash_attn_func(*tensors, buffer)[0], wanted)
    for indices, text in [
        (table[0], r"must be \[2, query blocks, width\] with 3 query blocks \(got \(3, 2\)\)"),
        (table[:, :2], r"with 3 query blocks \(got \(2, 2, 2\)\)"),
        (np.full((2, 3, 1), 3), r"indices must lie in \[0, 3\) \(got 3 in query block 0 of head group 0\)"),
        (
            table[:, :, :1].repeat(3, 2),
            r"fit the buffer, a larger max_slices makes room \(got 2 x 3 query blocks of up to 3",
        ),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            buffer.set_blocks(indices, 16, causal=False)
    with pytest.raises(InvalidArgument, match=r"a mask for each of the buffer's head groups, 2 \(got 1\)"):
        buffer.set(masks[0])
    for options, text in [
        ({"head_groups": 2}, r"made for blocks \(got head_groups=2, block_size=0\)"),
        ({"head_groups": 3, "block_size": 16}, r"must divide num_heads_kv \(got head_groups=3, num_heads_kv=4\)"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            MaskBuffer(ROWS, ROWS, heads, device="cpu", **options)


def test_what_no_row_chose_reaches_nothing():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(5)
    heads = HeadConfig(32, 4, 16, 16, "float32")
    arrays_of = [rng.standard_normal((ROWS, n, 16)).astype(np.float32) for n in (32, 4, 4, 32)]
    # Two head groups: a block that chose nothing, one whose first row sees itself alone, blocks that no query chose.
    table = np.array([[[0], [-1], [2]], [[0], [1], [-1]]])
    q, k, v, dout = arrays_of
    k[16:32, :2] = v[16:32, :2] = k[32:, 2:] = v[32:, 2:] = np.nan
    for causal in (False, True):
        masks = [Mask.from_block_indices(ROWS, ROWS, 16, 16, rows, causal=causal) for rows in table]
        buffer = MaskBuffer(ROWS, ROWS, heads, device="cpu", block_size=16, head_groups=2, max_slices=12)
        buffer.set_blocks(table, 16, causal=causal)
        for mask in (buffer, masks):
            leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
            out, _ = flex_flash_attn_func(*leaves, mask)
            out.backward(torch.from_numpy(dout))
            for group in range(2):
                of_q, of_kv = slice(16 * group, 16 * group + 16), slice(2 * group, 2 * group + 2)
                clean = [np.nan_to_num(x[:, of]) for x, of in ((q, of_q), (k, of_kv), (v, of_kv))]
                want = attention(*clean, mask_cells(masks[group]), dout=dout[:, of_q])
                for got, exact in (
                    (out.detach()[:, of_q], want.out),
                    (leaves[0].grad[:, of_q], want.dq),
                    (leaves[1].grad[:, of_kv], want.dk),
                    (leaves[2].grad[:, of_kv], want.dv),
                ):
                    np.testing.assert_allclose(got.numpy(), exact, atol=1e-5)  # float32: sums of up to 32 products


def test_typed_ranges_are_masks():
    tensors, buffer = arrays(), make(max_slices=9)
    q, k, types = [[0, 20], [20, 48], [0, 20]], [[0, 20], [10, 48], [30, 48]], [1, 3, 0]
    for kinds in (types, None):
        wanted = Mask.from_ranges(q, k, kinds or "full", ROWS, ROWS)
        for dtype in (np.int32, np.int64):
            buffer.set_ranges(np.array(q, dtype), np.array(k, dtype), kinds)
            assert np.array_equal(flex_flash_attn_func(*tensors, buffer)[0], flex_flash_attn_func(*tensors, wanted)[0])
    for lists, text in [
        ((q, k[:2]), r"^MaskBuffer.set_ranges: .* must be \[n, 2\] .*\(got q_ranges=\[3, 2\], k_ranges=\[2, 2\]\)"),
        ((q, k, [1]), r"types \[n\] \(got q_ranges=\[3, 2\], k_ranges=\[3, 2\], types=\[1\]\)"),
        ((q, [[0, 20], [10, 49], [30, 48]]), "k_range must lie in"),
        ((q, [[0, 31], [10, 48], [30, 48]]), "must not cover a cell twice"),
        ((q, k, [1, 4, 0]), "type must be 0"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            buffer.set_ranges(*lists)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ranges_of_another_shape_are_not_taken_for_another_mask(dtype):
    """They were, if they had as many numbers as pairs: begins and ends apart, say."""
    tensors, buffer = arrays(), make(max_slices=9)
    begins_and_ends = np.array([[0, 10, 30], [10, 30, ROWS]], dtype)
    pairs = np.ascontiguousarray(begins_and_ends.T)
    buffer.set_ranges(pairs, pairs)
    wanted = flex_flash_attn_func(*tensors, Mask.from_ranges(pairs, pairs, "full", ROWS, ROWS))[0]
    for q, k, types in (
        (begins_and_ends, begins_and_ends, None),
        (pairs, begins_and_ends, None),
        (pairs.ravel(), pairs.ravel(), None),
        (pairs[None], pairs[None], None),
        (pairs, pairs, [[0], [0], [0]]),
        (pairs, pairs, 0),
    ):
        with pytest.raises(InvalidArgument, match=r"^MaskBuffer.set_ranges: q_ranges and k_ranges must be \[n, 2\]"):
            buffer.set_ranges(q, k, types)
        assert np.array_equal(flex_flash_attn_func(*tensors, buffer)[0], wanted)
    for none in ([], np.zeros((0, 2), dtype)):
        buffer.set_ranges(none, none)
        assert not flex_flash_attn_func(*tensors, buffer)[0].any()


def test_memory_use_shows_buffers_that_exist():
    def entries():
        gc.collect()
        return sum(row.entries for row in tangram.memory_use() if row.name == "mask_buffers")

    before = entries()
    buffer = make()
    assert entries() == before + 1
    del buffer
    assert entries() == before


def test_numpy_alone_is_enough():
    make_one = "import sys, tangram; tangram.MaskBuffer(8, 8, tangram.HeadConfig(dtype='float32'), device='cpu')"
    subprocess.run([sys.executable, "-c", f"{make_one}; assert 'torch' not in sys.modules"], check=True)


def test_gradients_are_those_of_the_mask_of_the_forward_pass():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    buffer = make()

    def leaves():
        return [torch.from_numpy(x).requires_grad_() for x in arrays(1)]

    def gradients(mask):
        tensors = leaves()
        out, _ = flex_flash_attn_func(*tensors, mask)
        return torch.autograd.grad(out, tensors, torch.ones_like(out))

    for mask in MASKS:
        buffer.set(mask)
        for one, other in zip(gradients(buffer), gradients(mask), strict=True):
            assert torch.equal(one, other)
    tensors = leaves()
    out, _ = flex_flash_attn_func(*tensors, buffer)
    buffer.set(MASKS[0])
    with pytest.raises(InvalidArgument, match=r"got the gradient of mask 4, with mask 5 set"):
        out.sum().backward()
    forward_only = make(with_gradients=False)
    forward_only.set(MASKS[0])
    out, _ = flex_flash_attn_func(*leaves(), forward_only)
    with pytest.raises(InvalidArgument, match="must be for this pass"):
        out.sum().backward()


def test_torch_compile_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    buffer = make()
    buffer.set(MASKS[0])
    tensors = [torch.from_numpy(x) for x in arrays()]
    compiled = torch.compile(lambda *t: flex_flash_attn_func(*t, buffer)[0], backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="outside torch.compile"):
        compiled(*tensors)


def test_a_copy_of_a_module_shares_its_buffer():
    """It shares a process group too: calls of both read what `set` puts there."""
    import copy
    import pickle

    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Module()
    module.buffer = MaskBuffer(24, 24, HeadConfig(2, 2, 16, 16, "float32"), max_documents=4)
    copied = copy.deepcopy(module)
    assert copied.buffer is module.buffer
    module.buffer.set(Mask.varlen([0, 10, 24]))
    q, k, v = torch.randn(3, 24, 2, 16).unbind(0)
    want, _ = flex_flash_attn_func(q, k, v, Mask.varlen([0, 10, 24]))
    assert torch.equal(flex_flash_attn_func(q, k, v, copied.buffer)[0], want)
    with pytest.raises(TypeError, match="a MaskBuffer is memory of its device: make one anew"):
        pickle.dumps(module.buffer)
