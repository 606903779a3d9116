# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Borders and ranges in GPU memory that are overwritten where torch counts no version. Needs a Hopper GPU."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import InvalidArgument, flex_flash_attn_func  # noqa: E402
from tangram.flash_attn import flash_attn_varlen_func  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]


def operands(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(24, 4, 64), (24, 2, 64), (24, 2, 64)]
    return [torch.randn(shape, generator=generator).to("cuda", torch.bfloat16).requires_grad_() for shape in shapes]


def overwritten(tensor, values):
    """Writes like a kernel or a collective: without a new version."""
    tensor.data.copy_(torch.tensor(values, dtype=tensor.dtype))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_device_ranges_overwritten_without_a_version_give_nan_and_the_next_call_raises(packed, strided):
    """The host does not wait for the GPU. The old mask was used, without an error."""
    q, k, v = operands(21)
    cu = torch.zeros(6, dtype=torch.int32, device="cuda")[::2] if strided else torch.zeros(3, device="cuda").int()

    def attend(borders):
        if packed:
            return flash_attn_varlen_func(q, k, v, borders, borders, return_attn_probs=True)[:2]
        pairs = borders.as_strided((2, 2), (borders.stride(0),) * 2)
        out, meta = flex_flash_attn_func(q, k, v, pairs, pairs)
        return out, meta.lse

    cu.copy_(torch.tensor([0, 8, 24]))
    first = [x.clone() for x in attend(cu)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            out, lse = attend(cu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, first[0])
    with torch.cuda.stream(torch.cuda.Stream()):  # on another stream than the first call
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        assert torch.equal(attend(cu)[0], first[0])
    torch.cuda.synchronize()
    overwritten(cu, [0, 16, 24])
    assert all(bool(x.isnan().all()) for x in attend(cu))
    with pytest.raises(InvalidArgument, match="in GPU memory must keep their values"):
        attend(cu)
    want = attend(torch.tensor([0, 16, 24], dtype=torch.int32, device="cuda"))
    assert all(torch.equal(a, b) for a, b in zip(attend(cu), want, strict=True))


def test_replays_of_a_graph_whose_ranges_were_overwritten_give_nan():
    q, k, v = (x.detach() for x in operands(22))
    ranges = torch.tensor([[0, 24]], dtype=torch.int32, device="cuda")
    want = flex_flash_attn_func(q, k, v, ranges, ranges)[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    overwritten(ranges, [[0, 12]])
    graph.replay()
    torch.cuda.synchronize()
    assert bool(out.isnan().all())
    with pytest.raises(InvalidArgument, match="in GPU memory must keep their values"):
        flex_flash_attn_func(q, k, v, ranges, ranges)


def test_the_backward_pass_of_a_poisoned_call_raises():
    q, k, v = operands(23)
    ranges = torch.tensor([[0, 24]], dtype=torch.int32, device="cuda")
    flex_flash_attn_func(q, k, v, ranges, ranges)
    overwritten(ranges, [[0, 12]])
    out, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
    torch.cuda.synchronize()
    with pytest.raises(InvalidArgument, match="in GPU memory must keep their values"):
        out.sum().backward()


def test_a_compiled_graph_gives_nan_too():
    q, k, v = (x.detach() for x in operands(24))
    compiled = torch.compile(lambda r: flex_flash_attn_func(q, k, v, r, r)[0], backend="aot_eager")
    ranges = torch.tensor([[0, 24]], dtype=torch.int32, device="cuda")
    assert torch.equal(compiled(ranges), compiled(ranges))
    overwritten(ranges, [[0, 12]])
    assert bool(compiled(ranges).isnan().all())
    with pytest.raises(InvalidArgument, match="in GPU memory must keep their values"):
        compiled(ranges)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_where_the_host_waits_anyway_values_are_read_each_time(dtype):
    """Tensors on the host, and float32, which is computed there."""
    for device in ("cuda", "cpu"):
        if device == "cuda" and dtype != torch.float32:
            continue
        q, k, v = (x.detach().to(device, dtype) for x in operands(25))
        ranges = torch.tensor([[0, 24]], dtype=torch.int32, device="cuda")
        for end in (24, 12, 7):
            overwritten(ranges, [[0, end]])
            with pytest.warns(UserWarning) if device == "cuda" else contextlib.nullcontext():
                out, _ = flex_flash_attn_func(q, k, v, ranges, ranges)
            assert (out[end:] == 0).all() and (out[:end] != 0).any(-1).all()


def test_memory_that_dlpack_shows_anew_is_read_anew():
    q, k, v = operands(26)
    owner = torch.tensor([0, 8, 24], dtype=torch.int32, device="cuda")
    for middle in (8, 16, 5):
        overwritten(owner, [0, middle, 24])
        cu = torch.from_dlpack(owner)
        want = flash_attn_varlen_func(q, k, v, [0, middle, 24], [0, middle, 24])
        assert torch.equal(flash_attn_varlen_func(q, k, v, cu, cu), want)
