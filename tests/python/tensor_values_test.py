# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Borders and ranges that are overwritten where torch counts no version: the mask is that of the values."""

import ctypes
import gc
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

import tangram  # noqa: E402
from tangram import _core, _cuda, _flash_attend, _prepared, _tensor_values, magi  # noqa: E402
from tangram import flash_attn as fa  # noqa: E402
from tangram import flash_attn_interface as fa3  # noqa: E402

ROWS = 24


def operands(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, 2, 16, generator=generator) for _ in range(3)]


def by_array_made_anew(values, array):
    array[...] = values
    return torch.from_numpy(array)


def by_bytes_made_anew(values, array):
    array[...] = values
    return torch.frombuffer(memoryview(array).cast("B"), dtype=torch.int32).view(array.shape)


def by_array_of_one_tensor(values, array, tensors={}):  # noqa: B006: that is what it is for
    tensor = tensors.setdefault(id(array), (torch.from_numpy(array), array))[0]
    array[...] = values
    return tensor


def by_data(values, array, tensors={}):  # noqa: B006
    tensor = tensors.setdefault(id(array), (torch.from_numpy(array), array))[0]
    tensor.data.copy_(torch.tensor(values))
    return tensor


def by_dlpack(values, array, tensors={}):  # noqa: B006
    tensor = tensors.setdefault(id(array), (torch.zeros(array.shape, dtype=torch.int32), array))[0]
    torch.from_dlpack(tensor).copy_(torch.tensor(values))
    return tensor


def by_address(values, array, tensors={}):  # noqa: B006
    tensor = tensors.setdefault(id(array), (torch.zeros(array.shape, dtype=torch.int32), array))[0]
    ctypes.memmove(tensor.data_ptr(), np.asarray(values, np.int32).tobytes(), tensor.nbytes)
    return tensor


def by_shared_memory(values, array, tensors={}):  # noqa: B006
    """Writes like another process."""
    if id(array) not in tensors:
        tensor = torch.zeros(array.shape, dtype=torch.int32).share_memory_()
        tensors[id(array)] = tensor, array, torch.empty(0, dtype=torch.int32).set_(tensor.untyped_storage())
    tensor, _, other = tensors[id(array)]
    other.copy_(torch.tensor(values).flatten())
    return tensor


def by_strided_view(values, array, tensors={}):  # noqa: B006
    """View of every second integer of an array."""
    whole = tensors.setdefault(id(array), (np.zeros((*array.shape, 2), np.int32), array))[0]
    whole[..., 0] = values
    return torch.from_numpy(whole)[..., 0]


def by_inference_tensor(values, array, tensors={}):  # noqa: B006
    with torch.inference_mode():
        tensor = tensors.setdefault(id(array), (torch.zeros(array.shape, dtype=torch.int32), array))[0]
        tensor.copy_(torch.tensor(values))
    return tensor


WAYS = [value for name, value in list(globals().items()) if name.startswith("by_")]
ways = pytest.mark.parametrize("write", WAYS, ids=lambda way: way.__name__)


@ways
@pytest.mark.parametrize("function", [fa.flash_attn_varlen_func, fa3.flash_attn_varlen_func], ids=["fa2", "fa3"])
@pytest.mark.parametrize("side", ["q", "k", "both"])
def test_borders_overwritten_without_a_version_are_read_again(function, side, write):
    q, k, v = operands()
    array = np.zeros(3, np.int32)
    for middle in (4, 12, 4, 7):
        listed = [0, middle, ROWS]
        cu = write(listed, array)
        cu_q, cu_k = (cu if side in (each, "both") else [0, 9, ROWS] for each in "qk")
        want_q, want_k = (listed if side in (each, "both") else [0, 9, ROWS] for each in "qk")
        out = function(q, k, v, cu_q, cu_k, ROWS, ROWS, causal=True)
        assert torch.equal(out, function(q, k, v, want_q, want_k, ROWS, ROWS, causal=True)), middle


@ways
@pytest.mark.parametrize("function", [tangram.flex_flash_attn_func, magi.flex_flash_attn_func], ids=["own", "magi"])
def test_ranges_and_types_overwritten_without_a_version_are_read_again(function, write):
    q, k, v = operands()
    arrays = np.zeros((2, 2), np.int32), np.zeros((2, 2), np.int32), np.zeros(2, np.int32)
    for middle, kind in ((4, 0), (12, 0), (12, 1), (4, 1)):
        ranges, types = [[0, middle], [middle, ROWS]], [kind, 0]
        given = write(ranges, arrays[0]), write(ranges, arrays[1]), write(types, arrays[2])
        want = tangram.flex_flash_attn_func(q, k, v, ranges, ranges, types)[0]
        assert torch.equal(function(q, k, v, *given)[0], want), (middle, kind)
        batched = [x[None] for x in (q, k, v)]
        out, _ = tangram.flex_flash_attn_func(*batched, *given, layout="bshd")
        assert torch.equal(out[0], want)


@pytest.mark.parametrize("rows_of_tensors", [False, True])
def test_ranges_in_lists_of_tensors_are_read_again(rows_of_tensors):
    """Elements of a tensor that stood in a list compared equal to themselves, whatever they held."""
    q, k, v = operands()
    cu = torch.tensor([0, 4, ROWS])
    wants = {}
    for middle in (4, 12):
        listed = [(0, middle), (middle, ROWS)]
        wants[middle] = tangram.flex_flash_attn_func(q, k, v, listed, listed)[0]
    for middle in (4, 12, 4):  # one call after the other: the latest key was compared by its elements
        cu[1] = middle
        ranges = [cu[:2], cu[1:]] if rows_of_tensors else [(cu[0], cu[1]), (cu[1], cu[2])]
        assert torch.equal(tangram.flex_flash_attn_func(q, k, v, ranges, ranges)[0], wants[middle]), middle


def test_ranges_of_a_compiled_graph_are_read_again():
    q, k, v = operands()
    compiled = torch.compile(lambda r: tangram.flex_flash_attn_func(q, k, v, r, r)[0], backend="aot_eager")
    array = np.zeros((2, 2), np.int32)
    ranges = torch.from_numpy(array)
    for middle in (4, 12, 4):
        array[...] = [[0, middle], [middle, ROWS]]
        want = tangram.flex_flash_attn_func(q, k, v, array.tolist(), array.tolist())[0]
        assert torch.equal(compiled(ranges), want)


def test_equal_values_are_one_entry_whichever_tensor_holds_them(monkeypatch):
    q, k, v = operands()
    first = fa.flash_attn_varlen_func(q, k, v, *[torch.tensor([0, 5, ROWS], dtype=torch.int32)] * 2)
    ranges = torch.tensor([[0, 5], [5, ROWS]])
    tangram.flex_flash_attn_func(q, k, v, ranges, ranges)
    count = len(_prepared.by_ranges)
    monkeypatch.setattr(_flash_attend, "_make_mask", None)
    monkeypatch.setattr(_prepared, "FlexAttention", None)
    assert torch.equal(fa.flash_attn_varlen_func(q, k, v, *[torch.tensor([0, 5, ROWS], dtype=torch.int32)] * 2), first)
    assert torch.equal(tangram.flex_flash_attn_func(q, k, v, ranges.clone(), ranges.clone())[0], first)
    assert len(_prepared.by_ranges) == count


class FakeWatchedValues:
    """The comparison on a GPU, in host memory and at once."""

    changed = False

    def __init__(self, values, device):
        self._values = values

    def poison_if_changed(self, results, stream):
        assert stream == 77
        if any(ctypes.string_at(now, n) != ctypes.string_at(known, n) for now, known, n in self._values):
            for data, num_bytes in results:
                ctypes.memset(data, 255, num_bytes)
            FakeWatchedValues.changed = True

    @classmethod
    def take(cls):
        changed, cls.changed = cls.changed, False
        return changed


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Tensors of ranges and borders are named as those in GPU memory; how often they were read."""
    _prepared.clear_cache()
    reads = []
    values = _tensor_values.Watched.values

    def named(tensor, device):
        return tensor, _cuda.place_of(tensor)

    def counted(self, place):
        reads.append(place)
        return values(self, place).clone()

    monkeypatch.setattr(_tensor_values, "named", named)
    monkeypatch.setattr(_prepared, "_named_tensor", named)
    monkeypatch.setattr(_tensor_values.Watched, "values", counted)
    monkeypatch.setattr(_cuda, "stream_of", lambda tensor: 77)
    monkeypatch.setattr(_cuda, "is_capturing", lambda: False)
    monkeypatch.setattr(_core, "WatchedValues", FakeWatchedValues)
    monkeypatch.setattr(_core, "take_changed_values", FakeWatchedValues.take)
    yield reads
    _prepared.clear_cache()


def attend_packed(q, k, v, cu):
    return fa.flash_attn_varlen_func(q, k, v, cu, cu, causal=True, return_attn_probs=True)[:2]


def attend_ranges(q, k, v, cu):
    ranges = cu.as_strided((2, 2), (1, 1))  # [[0, middle], [middle, ROWS]]
    out, meta = tangram.flex_flash_attn_func(q, k, v, ranges, ranges, return_max_logits=True)
    assert bool(meta.max_logits.isnan().any()) == bool(out.isnan().any())
    return out, meta.lse


@pytest.mark.parametrize("attend", [attend_packed, attend_ranges])
def test_on_a_gpu_a_call_whose_values_have_changed_gives_nan_and_the_next_one_raises(as_on_gpu, attend):
    """Neither waits for the GPU: the results came of the mask of before, and nothing told so."""
    q, k, v = operands()
    cu = torch.tensor([0, 4, ROWS], dtype=torch.int32)
    first = attend(q, k, v, cu)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(attend(q, k, v, cu), first, strict=True))
    count = len(as_on_gpu)
    assert count > 0  # and none in later calls
    cu.data[1] = 12
    poisoned = attend(q, k, v, cu)
    assert all(bool(x.isnan().all()) for x in poisoned) and len(as_on_gpu) == count
    with pytest.raises(tangram.InvalidArgument, match=r"must keep their values .*x.clone\(\)"):
        attend(q, k, v, cu)
    want = attend(q, k, v, torch.tensor([0, 12, ROWS], dtype=torch.int32))
    assert all(torch.equal(a, b) for a, b in zip(attend(q, k, v, cu), want, strict=True))  # read anew


def test_on_a_gpu_the_backward_pass_of_a_poisoned_call_raises(as_on_gpu):
    q, k, v = (x.requires_grad_() for x in operands())
    ranges = torch.tensor([[0, 4], [4, ROWS]], dtype=torch.int32)
    tangram.flex_flash_attn_func(q, k, v, ranges, ranges)
    ranges.data[:, :] = torch.tensor([[0, 5], [5, ROWS]])
    out, _ = tangram.flex_flash_attn_func(q, k, v, ranges, ranges)
    with pytest.raises(tangram.InvalidArgument, match="flex_flash_attn_func: ranges and cu_seqlens in GPU memory must"):
        out.sum().backward()


def test_on_a_gpu_versions_and_new_storages_are_seen_before(as_on_gpu):
    q, k, v = operands()
    memory = np.array([0, 4, ROWS], np.int32)
    for middle in (4, 12, 5):
        memory[1] = middle
        cu = torch.from_dlpack(memory)  # a new tensor of version 0 at the same address
        want = attend_packed(q, k, v, [0, middle, ROWS])
        assert all(torch.equal(a, b) for a, b in zip(attend_packed(q, k, v, cu), want, strict=True))
    cu = torch.tensor([0, 4, ROWS], dtype=torch.int32)
    for middle in (4, 12):
        cu[1] = middle
        want = attend_packed(q, k, v, [0, middle, ROWS])
        assert all(torch.equal(a, b) for a, b in zip(attend_packed(q, k, v, cu), want, strict=True))
    assert not FakeWatchedValues.take()


def test_caches_keep_no_storage_of_which_borders_and_ranges_were_views():
    """Values are 12 bytes of a storage of a MiB, and what a cache said to hold was the values."""
    q, k, v = operands()
    storages = []
    for middle in range(1, 20):
        large = torch.zeros(1 << 18, dtype=torch.int32)
        storages.append(StorageWeakRef(large.untyped_storage()))
        borders, ranges = large[5:8], large[20:24].view(2, 2)
        borders.copy_(torch.tensor([0, middle, ROWS]))
        ranges.copy_(torch.tensor([[0, middle], [middle, ROWS]]))
        packed = fa.flash_attn_varlen_func(q, k, v, borders, borders, causal=True)
        assert torch.equal(packed, tangram.flex_flash_attn_func(q, k, v, ranges, ranges, [1, 1])[0])
        del large, borders, ranges
    gc.collect()
    assert all(storage.expired() for storage in storages)


def test_what_watched_tensors_keep_alive_is_counted_once():
    """In GPU memory a tensor is known by its storage, which lives as long as it is known."""
    large, other = torch.zeros(1 << 18, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    assert _tensor_values.bytes_of_storages([large[5:8], large[20:24].view(2, 2), other[1:]]) == (1 << 20) + 32
    watched = SimpleNamespace(num_bytes=1 << 20)
    packed = _flash_attend._Packed(tangram.Mask.causal(ROWS), ROWS, ROWS, 1)
    assert _flash_attend._bytes_of(packed._replace(watched=watched)) == _flash_attend._bytes_of(packed) + (1 << 20)


def test_errors_are_checked_in_a_process_without_a_group(monkeypatch):
    """It asked for torch.distributed, without which calls on one GPU may go wrong too."""
    assert not dist.is_initialized()
    tangram.check_errors()
    monkeypatch.setattr(_tensor_values, "_core", SimpleNamespace(take_changed_values=lambda: True))
    with pytest.raises(tangram.InvalidArgument, match="check_errors: ranges and cu_seqlens in GPU memory must keep"):
        tangram.check_errors()
