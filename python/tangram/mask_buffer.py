# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A mask that changes from step to step, under one captured CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from . import _core, _meter, _settings
from ._backends import backend_named, gpu_backends
from ._core import HeadConfig, Mask
from ._memory import MemoryRow, register_rows
from ._named import Named
from ._whole import whole
from .errors import InvalidArgument, NotAvailable

_buffers: WeakSet[MaskBuffer] = WeakSet()


class MaskOfBuffer:
    """What a call attends with while one mask is set: the backward pass must find the mask of its forward pass."""

    __slots__ = ("_buffer", "_core", "_number", "visible_pairs")

    def __init__(self, buffer: MaskBuffer, core: _core.MaskBuffer, number: int, visible_pairs: int | None) -> None:
        self._buffer, self._core, self._number = buffer, core, number
        self.visible_pairs = visible_pairs
        """(query, key) pairs over all query heads. None: the mask came from tensors, which the host does not read."""

    @property
    def forward_workspace_bytes(self) -> int:
        return self._core.forward_workspace_bytes

    def backward_workspace_bytes(self, deterministic: bool, plain: bool) -> int:
        return self._core.backward_workspace_bytes()

    def forward(self, *args: Any) -> None:
        self._core.forward(*args)

    def backward(self, *args: Any) -> None:
        if self._buffer.num_masks != self._number:
            raise InvalidArgument(
                "flex_flash_attn_func: the backward pass must come before the MaskBuffer's next mask is set (got the "
                f"gradient of mask {self._number}, with mask {self._buffer.num_masks} set)"
            )
        with Named("flex_flash_attn_func"):
            self._core.backward(*args)


class MaskBuffer:
    """Room for masks of one shape, one after the other; stands for the mask in `flex_flash_attn_func`.

    What a call puts on a GPU does not depend on the mask that is set. So a CUDA graph captured once, forward and
    backward, replays with any mask that fits.

        buffer = tangram.MaskBuffer(rows, rows, heads, max_documents=256)
        buffer.set(first_mask)
        with torch.cuda.graph(graph):
            out, _ = tangram.flex_flash_attn_func(q, k, v, buffer)
            out.backward(dout)
        for mask in packs:
            buffer.set(mask)
            graph.replay()

    `set` makes the lists of a mask on the calling thread and puts one copy on the current stream. It allocates nothing
    on the device, and waits only if the copies of the last four masks have not run yet. Calls and replays use the mask
    that was set last, in stream order. With several streams the caller orders replays; calls that are not captured are
    ordered by themselves. Replayed and not, calls give bitwise equal results, gradients where the buffer is
    deterministic. Masks that a GPU has computed, cu_seqlens, blocks of keys or ranges, are taken from there:
    `set_cu_seqlens`, `set_blocks`, `set_ranges`. Masks of few queries and long keys, which flex_flash_attn_func
    computes in parts, are slower here. Small blocks of keys, which it gathers, want a buffer that is made for them:

        buffer = tangram.MaskBuffer(rows, rows, heads, block_size=32, head_groups=8, max_slices=8 * rows // 32 * 16)
        buffer.set_blocks(scores.topk(16, dim=-1).indices, 32, causal=True)  # of [8, rows // 32, rows // 32]
    """

    def __deepcopy__(self, memo: object) -> MaskBuffer:
        """The buffer itself: a copy of a module shares what its calls and graphs read, as it does a process group."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a MaskBuffer is memory of its device: make one anew")

    def __init__(
        self,
        seqlen_q: int,
        seqlen_k: int,
        heads: HeadConfig,
        *,
        max_documents: int = 64,
        max_slices: int = 0,
        allow_fully_masked_rows: bool = True,
        block_size: int = 0,
        head_groups: int = 1,
        deterministic: bool | None = None,
        with_gradients: bool = True,
        device: Any = None,
        backend: str | None = None,
    ) -> None:
        """
        Args:
            seqlen_q, seqlen_k: rows of q and of k and v. heads: theirs, and the dtype.
            max_documents: maximum number of packed documents (row ranges that share no keys). Each adds one tile of 64
                queries to the backward workspace: 33 KB per query head of dim 128.
            max_slices: maximum number of slices of a mask; 0: as many as max_documents.
            allow_fully_masked_rows: whether masks may contain fully masked rows of q, such as padding. False saves the
                backward kernel a table lookup in each step. Masks that a GPU has computed
                need True, and so does `block_size`.
            block_size: above 0: masks are of blocks of `block_size` rows and keys, or of a multiple, at most
                `max_slices` blocks. Calls use the kernels that gather small blocks. They need head dims 64 or 128, a
                multiple of 16 keys, and blocks that 16 divides. 128 rows divided by the query heads that share a K/V
                head must divide a block too (16 rows for eight heads). The backward pass is without softcap and
                gradients of sinks, and not deterministic. Multiples of 128 without head_groups fill the steps of other
                kernels, without these limits. `max_documents` is not used.
            head_groups: with block_size, so many equal groups of heads have blocks of their own; divides the K/V heads.
            deterministic: of backward passes; those of the buffer are, or they are not. None: as `configure` says.
            with_gradients: False leaves out what backward passes need.
            device: of the tensors: a torch.device, its name or number. None: the current GPU if it has a backend, else
                the host. On the host each `set` prepares the mask anew, and refuses what a GPU would refuse.
            backend: None takes the best for the device.

        Raises:
            InvalidArgument: what the backend cannot do, or a capacity that is not positive. NotAvailable.
        """
        if not isinstance(heads, HeadConfig):
            raise InvalidArgument(f"MaskBuffer: heads must be a HeadConfig (got {type(heads).__name__})")
        seqlen_q, seqlen_k = (whole("MaskBuffer", n, v) for n, v in (("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)))
        max_documents = whole("MaskBuffer", "max_documents", max_documents)
        max_slices = whole("MaskBuffer", "max_slices", max_slices)
        block_size = whole("MaskBuffer", "block_size", block_size)
        head_groups = whole("MaskBuffer", "head_groups", head_groups)
        self._device = _device_index(device, backend)
        self._backend_name = backend
        if deterministic is None:
            deterministic = _settings.chosen.deterministic
        self.seqlen_q, self.seqlen_k, self.heads = seqlen_q, seqlen_k, heads
        self.deterministic = bool(deterministic)
        self.with_gradients = bool(with_gradients)
        self.block_size, self.head_groups = block_size, head_groups
        self.num_masks = 0
        """Masks set so far."""
        with Named("MaskBuffer"):
            self._backend = backend_named(backend, self._device >= 0, self._device)
            self._core = _core.MaskBuffer(
                (seqlen_q, seqlen_k),
                heads,
                (max_documents, max_slices, bool(allow_fully_masked_rows)),
                (block_size, head_groups),
                self.deterministic,
                self.with_gradients,
                self._backend,
            )
        self._now: MaskOfBuffer | None = None
        _buffers.add(self)

    @_meter.planned
    def set(self, mask: Mask | Sequence[Mask]) -> None:
        """The mask of calls and replays that follow on the current stream; of a buffer with head_groups, one for each.

        Raises:
            InvalidArgument: a mask of other lengths, one that does not fit (the text names what to make larger), or
                while the stream is being captured. The mask set before then stays.
        """
        masks = [mask] if isinstance(mask, Mask) else mask
        if not isinstance(masks, (list, tuple)) or not all(isinstance(m, Mask) for m in masks):
            raise InvalidArgument(f"MaskBuffer.set: mask must be a Mask (got {type(mask).__name__})")
        with Named("MaskBuffer.set"):
            self._core.set(list(masks), _current_stream(self._device))
        self._count(sum(one.area for one in masks) * self.heads.num_heads_q // len(masks))

    def _count(self, visible_pairs: int | None = None) -> None:
        self.num_masks += 1
        self._now = MaskOfBuffer(self, self._core, self.num_masks, visible_pairs)

    @_meter.planned
    def set_cu_seqlens(
        self,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any = None,
        *,
        causal: bool,
        window: tuple[int, int] = (-1, -1),
    ) -> None:
        """Packed documents as the mask of calls and replays that follow on the current stream.

        On a GPU kernels on that stream read the lists and make those of the mask; the host does not wait. A CUDA graph
        may hold this call beside the attention calls: each replay reads the documents of that time. The GPU finds a
        list that is invalid or exceeds the capacity: calls with it see nothing. The next call once the host knows, or
        `check_errors`, raises.

            cu_seqlens = torch.zeros(129, dtype=torch.int32, device="cuda")  # documents at the end may be empty
            buffer.set_cu_seqlens(cu_seqlens, causal=True)  # once outside: the first call allocates
            with torch.cuda.graph(graph):
                buffer.set_cu_seqlens(cu_seqlens, causal=True)
                ...

        Args:
            cu_seqlens_q: `[documents + 1]`, where documents begin, and the number of rows; on a GPU a contiguous tensor
                of int32 or int64 there. At most `max_slices` documents.
            cu_seqlens_k: likewise for keys; None: as cu_seqlens_q.
            causal: the last query of a document sees up to its last key, each earlier one a key fewer.
            window: keys to the left and right of that diagonal, -1: all.

        Raises:
            InvalidArgument: what can be seen without the data; the first such call on a buffer while the stream is
                being captured.
        """
        with Named("MaskBuffer.set_cu_seqlens"):
            sides = _pair("set_cu_seqlens", "window", window)
            q = _integers(self._device, "cu_seqlens_q", cu_seqlens_q)
            k = q if cu_seqlens_k is None else _integers(self._device, "cu_seqlens_k", cu_seqlens_k)
            if q.size < 1 or q.shape != (q.size,) or (q.shape, q.is_int64) != (k.shape, k.is_int64):
                raise InvalidArgument(
                    "set_cu_seqlens: cu_seqlens_q and cu_seqlens_k must be [documents + 1] and of one dtype "
                    f"(got {list(q.shape)} and {list(k.shape)}, {q.bits} and {k.bits} bits)"
                )
            self._core.set_cu_seqlens(
                q.address, k.address, q.is_int64, q.size - 1, bool(causal), sides, _current_stream(self._device)
            )
        self._count()

    @_meter.planned
    def set_blocks(self, block_indices: Any, block_size: int, *, causal: bool) -> None:
        """Sets chosen blocks of keys as the mask of the calls and replays that follow. Dynamic sparse attention
        computes them at every step, for all heads or for each of a buffer's head_groups. Works like `set_cu_seqlens`:
        on a GPU without the host, in CUDA graphs too. On a buffer that is made for blocks the first call allocates
        nothing.

        Args:
            block_indices: `[query blocks, width]`, or `[head_groups, query blocks, width]`, in any order in a row; -1
                at its end stands for none. On a GPU a contiguous tensor of int32 or int64 there, of as many entries
                at most as the buffer has slices.
            block_size: rows of a block of queries, and of one of keys: at least 16, and the buffer's `blocks`.
            causal: besides, no query sees a key behind it; only where there are as many queries as keys.

        Raises:
            InvalidArgument: as set_cu_seqlens, also for a first call with such small blocks while the stream is being
                captured. Indices that are outside, repeat or stand behind padding are found on the GPU.
        """
        with Named("MaskBuffer.set_blocks"):
            block_size = whole("set_blocks", "block_size", block_size)
            if block_size < 1:
                raise InvalidArgument(f"set_blocks: block_size must be positive (got {block_size})")
            rows = -(-self.seqlen_q // block_size)
            if not hasattr(block_indices, "shape"):
                block_indices = _host_array("block_indices", block_indices, "; fill rows up by -1")
            shape = tuple(block_indices.shape)
            groups = self.head_groups
            if shape[:-1] != (groups, rows) and (groups > 1 or shape[:-1] != (rows,)):
                of_groups = f"[{groups}, query blocks, width]" if groups > 1 else "[query blocks, width]"
                raise InvalidArgument(
                    f"set_blocks: block_indices must be {of_groups} with {rows} query blocks (got {shape})"
                )
            indices = _integers(self._device, "block_indices", block_indices)
            self._core.set_blocks(
                indices.address,
                indices.is_int64,
                shape[-1],
                block_size,
                bool(causal),
                groups,
                _current_stream(self._device),
            )
        self._count()

    @_meter.planned
    def set_ranges(self, q_ranges: Any, k_ranges: Any, types: Any = None) -> None:
        """Sets typed ranges, in any order, as the mask of the calls and replays that follow. Works like
        `set_cu_seqlens`: on a GPU without the host, in CUDA graphs too. Cheap unless very many begin near each other or
        share a row.

        Args:
            q_ranges, k_ranges: `[n, 2]`, begin and end of queries that see keys. On a GPU contiguous int32 or int64
                tensors there; n is at most the buffer's max_slices. Empty ranges are none.
            types: `[n]` of 0 (full), 1 (causal), 2 (inv_causal) and 3 (bi_causal), of the same dtype; None: all full.

        Raises:
            InvalidArgument: as set_cu_seqlens. Ranges that are outside and slices that show the same cell are found on
                the GPU.
        """
        with Named("MaskBuffer.set_ranges"):
            q, k = (_integers(self._device, n, v) for n, v in (("q_ranges", q_ranges), ("k_ranges", k_ranges)))
            kinds = q if types is None else _integers(self._device, "types", types)
            count = q.size // 2
            # An empty list may be written as such.
            pairs = all(x.shape == (count, 2) or (count, x.size) == (0, 0) for x in (q, k))
            if not pairs or (types is not None and kinds.shape != (count,)):
                of_types = "" if types is None else f", types={list(kinds.shape)}"
                raise InvalidArgument(
                    "set_ranges: q_ranges and k_ranges must be [n, 2] and types [n] "
                    f"(got q_ranges={list(q.shape)}, k_ranges={list(k.shape)}{of_types})"
                )
            if not q.is_int64 == k.is_int64 == kinds.is_int64:
                raise InvalidArgument("set_ranges: all lists must have one dtype (got int32 and int64)")
            self._core.set_ranges(
                q.address,
                k.address,
                0 if types is None else kinds.address,
                q.is_int64,
                count,
                _current_stream(self._device),
            )
        self._count()

    def check_errors(self) -> None:
        """Raises InvalidArgument, once for each mask that the GPU has refused, as far as the host knows. Synchronize a
        stream first to include all work put on it."""
        with Named("MaskBuffer.check_errors"):
            self._core.check_errors()

    def reserve(self, max_documents: int, max_slices: int = 0) -> None:
        """Room for larger masks (or smaller ones); the mask is forgotten.

        Raises:
            InvalidArgument: while a graph that was captured with the buffer exists, or a capacity that is not positive.
        """
        with Named("MaskBuffer.reserve"):
            self._core.reserve(
                whole("reserve", "max_documents", max_documents), whole("reserve", "max_slices", max_slices)
            )
        self.num_masks += 1  # no backward pass finds the mask of its forward pass
        self._now = None

    @property
    def device_bytes(self) -> int:
        """GPU memory that the buffer holds."""
        return self._core.device_bytes

    @property
    def host_bytes(self) -> int:
        """Page-locked memory that it holds."""
        return self._core.host_bytes

    def attention(
        self, seqlen_q: int, seqlen_k: int, heads: tuple[int, int, int, int, str], backend: Any
    ) -> MaskOfBuffer:
        """What a call with such tensors attends with."""
        own = self.heads
        wanted = (own.num_heads_q, own.num_heads_kv, own.head_dim, own.head_dim_v, own.dtype)
        if (seqlen_q, seqlen_k) != (self.seqlen_q, self.seqlen_k) or heads != wanted:
            raise InvalidArgument(
                "flex_flash_attn_func: the tensors must be those that the MaskBuffer is for, "
                f"{self.seqlen_q} x {self.seqlen_k} rows, heads and dtype {wanted} (got {seqlen_q} x {seqlen_k}, "
                f"{heads})"
            )
        if backend is not self._backend:
            raise InvalidArgument(
                "flex_flash_attn_func: device and backend must be those of the MaskBuffer, "
                f"{_text_of(self._backend)} (got {_text_of(backend)})"
            )
        if self._now is None:
            raise InvalidArgument("flex_flash_attn_func: MaskBuffer.set must come first (got a buffer without a mask)")
        return self._now

    def calls(self, deterministic: bool) -> bool:
        """Whether calls are deterministic, of which this was asked."""
        if deterministic and not self.deterministic:
            raise InvalidArgument(
                "flex_flash_attn_func: deterministic calls need a MaskBuffer made with deterministic=True (got "
                "deterministic=False)"
            )
        return self.deterministic


class _Integers(NamedTuple):
    """A list in the memory of a backend, kept while a call reads it or puts who reads it on a stream."""

    address: int
    shape: tuple[int, ...]
    is_int64: bool
    keeps: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        return 64 if self.is_int64 else 32


def _integers(device: int, name: str, values: Any) -> _Integers:
    if device < 0:
        array = _host_array(name, values).astype("int64", "C")
        return _Integers(array.ctypes.data, array.shape, True, array)
    import torch

    integers = (torch.int32, torch.int64)
    if not isinstance(values, torch.Tensor) or values.dtype not in integers or not values.is_contiguous():
        raise InvalidArgument(f"MaskBuffer: {name} must be a contiguous tensor of int32 or int64 (got {_kind(values)})")
    if values.device.type != "cuda" or values.device.index != device:
        raise InvalidArgument(f"MaskBuffer: {name} must be on the buffer's GPU, cuda:{device} (got {values.device})")
    return _Integers(values.data_ptr(), tuple(values.shape), values.dtype == torch.int64, values)


def _text_of(backend: Any) -> str:
    return f"{backend.name} on cuda:{backend.device}" if backend.on_gpu else f"{backend.name} on the host"


def _pair(function: str, name: str, values: Any) -> tuple[int, int]:
    try:
        left, right = values
    except (TypeError, ValueError):
        raise TypeError(
            f"{function}: {name} must be a pair (left, right) of whole numbers, -1 for no bound (got {values!r:.60})"
        ) from None
    return whole(function, name, left), whole(function, name, right)


def _host_array(name: str, values: Any, hint: str = "") -> Any:
    import numpy as np

    if str(getattr(values, "device", "cpu")).startswith(("cuda", "meta")):
        raise InvalidArgument(f"MaskBuffer: {name} must be in host memory (got {values.device})")
    try:
        array = np.asarray(values)
    except ValueError:  # NumPy's words speak of inhomogeneous shapes
        raise InvalidArgument(f"MaskBuffer: {name} must be a rectangle{hint} (got rows of several lengths)") from None
    if array.dtype.kind not in "iu" and array.size > 0:
        raise InvalidArgument(f"MaskBuffer: {name} must be whole numbers (got {_kind(values)})")
    return array


def _kind(values: Any) -> str:
    dtype = getattr(values, "dtype", None)
    return type(values).__name__ if dtype is None else f"{type(values).__name__} of {dtype}"


def _device_index(device: Any, backend: str | None) -> int:
    """The GPU, or -1 for the host."""
    if device is None:
        names = gpu_backends()
        if not names or backend not in (None, *names):
            return -1
        device = "cuda"
    if isinstance(device, int):
        return device
    name, _, index = str(device).partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InvalidArgument(f"MaskBuffer: device must be cpu, cuda or a number of a GPU (got device={device!r})")
    if name == "cpu":
        return -1
    if index:
        return int(index)
    import torch

    if not torch.cuda.is_available():
        raise NotAvailable("MaskBuffer: device must be cpu where torch finds no GPU (got device='cuda')")
    return torch.cuda.current_device()


def _current_stream(device: int) -> int:
    if device < 0:
        return 0
    import torch

    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


@register_rows
def _rows() -> Iterator[MemoryRow]:
    """What memory_use shows."""
    for on_gpu, device in ((True, "cuda"), (False, "cpu")):
        sizes = [b.device_bytes if on_gpu else b.host_bytes for b in list(_buffers) if (b._device >= 0) == on_gpu]
        if sizes:
            yield MemoryRow("mask_buffers", device, len(sizes), sum(sizes), None)
