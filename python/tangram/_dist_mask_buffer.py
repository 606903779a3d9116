# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Keys that change from step to step, under one captured CUDA graph over the GPUs of a host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any
from weakref import WeakSet

import torch

from . import _core, _cuda, _meter, _settings
from ._core import dist_mask_capacity
from ._memory import MemoryRow, register_rows
from ._named import Named
from ._runtime_key import DistAttnRuntimeKey, require_key
from ._torch_pass import _NAMES
from ._values import changed
from .errors import InvalidArgument, NotAvailable

_buffers: WeakSet[DistMaskBuffer] = WeakSet()


class _Count:
    """Number of keys that were set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class PlanOfBuffer:
    """What a call attends by while one key is set: the backward pass must find the key of its forward pass.

    It knows the executor, not the buffer that holds it: a circle would keep GPU memory until garbage is collected.
    """

    __slots__ = ("_core", "_keys", "_number")
    latest_kept = 0
    """Nothing is kept from pass to pass."""

    def __init__(self, core: _core.DistMaskBuffer, keys: _Count) -> None:
        self._core, self._keys, self._number = core, keys, keys.value

    @property
    def forward_workspace_bytes(self) -> int:
        return self._core.forward_workspace_bytes

    @property
    def backward_workspace_bytes(self) -> int:
        return self._core.backward_workspace_bytes

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        peaks: Any,
        sink: Any,
        layout: str,
        _: object,
        options: Any,
        stream: int,
        place: tuple[int, int],
    ) -> None:
        self._core.forward(q, k, v, out, lse, peaks, sink, layout, options, stream, place)

    def backward(self, *arguments: Any) -> None:
        if self._keys.value != self._number:
            raise InvalidArgument(
                "calc_attn: the backward pass must come before the DistMaskBuffer's next key is set (got the gradient "
                f"of key {self._number}, with key {self._keys.value} set)"
            )
        *tensors, sink, layout, _, dsink_reduce, options, stream, place = arguments
        backward: Any = self._core.backward
        backward(*tensors, sink, layout, dsink_reduce, options, stream, place)

    def still_keeps(self, _: int) -> bool:
        return True


class DistMaskBuffer:
    """Room for keys of one shape, one after the other; stands for the key in `calc_attn`.

    What a call puts on a GPU does not depend on the key that is set. So a CUDA graph captured once, forward and
    backward, replays with any key that fits.

        keys = [mask_key(mask, ...) for mask in some_packs]
        buffer = tangram.DistMaskBuffer(keys)
        buffer.set(keys[0])
        with torch.cuda.graph(graph):
            out, _ = tangram.calc_attn(q, k, v, buffer)
            out.backward(dout)
        for mask in packs:
            key = mask_key(mask, ...)
            q.copy_(dispatch(...)), ...
            buffer.set(key)
            graph.replay()

    `set` makes lists and tables on the calling thread and puts two copies on the current stream; ranks do not meet for
    it. All ranks set the same keys, and make and replay the same calls, in one order. Calls and replays take the key
    that was set last, in stream order. Over copy engines within one host, for keys that move K/V alone. Rows of others
    come before attention begins, not beside it: calls that no graph holds are faster with the key itself.
    """

    def __deepcopy__(self, memo: object) -> DistMaskBuffer:
        """The buffer itself: a copy of a module shares what its calls and graphs read, as it does a process group."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a DistMaskBuffer is memory of its device: make one anew")

    def __init__(
        self,
        keys: DistAttnRuntimeKey | Sequence[DistAttnRuntimeKey],
        *,
        spare: float = 0.25,
        dtype: torch.dtype = torch.bfloat16,
        head_dim_v: int | None = None,
        deterministic: bool | None = None,
        with_gradients: bool = True,
        allow_fully_masked_rows: bool | None = None,
        device: int | None = None,
        backend: str | None = None,
    ) -> None:
        """Collective; allocates, and waits for the GPU.

        Args:
            keys: examples of the keys to come. The capacity is the largest that any of them takes, and `spare` more.
            spare: headroom, as a share of that capacity.
            dtype, head_dim_v: of q, k and v, and of v; None: as of k.
            deterministic: of backward passes; those of the buffer are, or they are not. None: as `configure` says.
            with_gradients: False leaves out what backward passes need.
            allow_fully_masked_rows: whether keys may come whose masks leave tokens that see none, padding say; backward
                passes ask no table of them if not. None: as those of `keys`.
            device: the number of this rank's GPU; None: the current one.
            backend: None takes the best for the device.

        Raises:
            InvalidArgument: on every rank for what cannot be. NotAvailable: no GPU, another transport than
                copy_engine, ranks that share a GPU, several nodes.
        """
        known = [keys] if isinstance(keys, DistAttnRuntimeKey) else list(keys)
        if not known:
            raise InvalidArgument("DistMaskBuffer: keys must be one at least (got none)")
        if not spare >= 0:
            raise InvalidArgument(f"DistMaskBuffer: spare must not be negative (got spare={spare})")
        if dtype not in _NAMES or dtype in _cuda.HOST_DTYPES:
            raise InvalidArgument(f"DistMaskBuffer: dtype must be one that GPUs compute (got {dtype})")
        first = require_key("DistMaskBuffer", known[0], "keys")
        self.group = first.group
        self.dtype = dtype
        self.head_dim_v = first.config.heads.head_dim if head_dim_v is None else head_dim_v
        self.deterministic = _settings.chosen.deterministic if deterministic is None else bool(deterministic)
        self.with_gradients = bool(with_gradients)
        self.device = _this_gpu() if device is None else device
        self._count = _Count()
        self.key: DistAttnRuntimeKey | None = None
        """The one that is set."""
        plans = [self._plan_of("DistMaskBuffer", key) for key in known]
        *most, some_see_none = (max(sizes) for sizes in zip(*map(dist_mask_capacity, plans), strict=True))
        names = ("kv_rows", "sent_rows", "local_ranges", "documents", "slices")
        self.capacity = {name: ceil(size * (1 + spare)) for name, size in zip(names, most, strict=True)}
        """Capacity on each rank: rows that it sees, rows that it sends, pieces of rows, documents, and slices. Long
        slices count as several."""
        self.allow_fully_masked_rows = (
            bool(some_see_none) if allow_fully_masked_rows is None else bool(allow_fully_masked_rows)
        )
        _cuda.require_no_capture("a buffer", "DistMaskBuffer")
        with Named("DistMaskBuffer"):
            self._core = _core.DistMaskBuffer(
                plans[0],
                (*self.capacity.values(), self.allow_fully_masked_rows),
                self.deterministic,
                self.with_gradients,
                self.group.on_device(self.device),
                first.backend(backend, self.device),
            )
        self._now: PlanOfBuffer | None = None
        _buffers.add(self)

    def _plan_of(self, function: str, key: DistAttnRuntimeKey) -> _core.Plan:
        require_key(function, key)
        if key.group is not self.group:
            raise InvalidArgument(f"{function}: keys must be of the buffer's group (got one of another)")
        if key.masks is not None or not key.moves_kv_alone or key.plan.config.strategy != "tangram":
            raise InvalidArgument(
                f"{function}: keys must move K/V alone, of one mask for all heads (got strategy "
                f"{key.plan.config.strategy!r}, movement {key.config.movement.algorithm!r})"
            )
        return key.plan_for(self.dtype, self.head_dim_v, changed(key.config.overlap, keep_remote_kv=False))

    @_meter.planned
    def set(self, key: DistAttnRuntimeKey) -> None:
        """The key of calls and replays that follow on the current stream.

        Raises:
            InvalidArgument: on every rank, for a key of another shape, for one that does not fit (the text names what
                to make larger), and during capture of the stream. The key set before stays. Also on every rank, here or
                in a later call, if ranks set different keys: the group is broken then.
        """
        plan = self._plan_of("DistMaskBuffer.set", key)
        if _cuda.is_capturing():  # asked here, since what the executor refuses is told to the peers
            raise InvalidArgument(
                "DistMaskBuffer.set: the stream must not be being captured, keys are set between replays (got one that "
                "is)"
            )
        with Named("DistMaskBuffer.set"):
            self._core.set(plan, _current_stream(self.device))
        self._count.value += 1
        self.key = key
        self._now = PlanOfBuffer(self._core, self._count)

    def of_call(self, q: torch.Tensor, v: torch.Tensor, deterministic: bool) -> PlanOfBuffer:
        """What calc_attn calls; refuses what the buffer is not made for. The peers are told of tensors, which are each
        rank's own: they would wait for this rank."""
        given = (q.dtype, v.shape[2], _cuda.device_of(q))
        made_for = (self.dtype, self.head_dim_v, self.device)
        if given != made_for:
            reason = (
                "calc_attn: dtype, dim of v and GPU must be those that the DistMaskBuffer is made for, "
                f"{made_for} (got {given})"
            )
            self.group.refuse(self.device, reason)
            raise InvalidArgument(reason)
        if deterministic and not self.deterministic:
            raise InvalidArgument(
                "calc_attn: deterministic calls need a DistMaskBuffer that is deterministic (got one that is not)"
            )
        assert self._now is not None
        return self._now

    @property
    def num_keys(self) -> int:
        """Keys set so far."""
        return self._count.value

    @property
    def device_bytes(self) -> int:
        """GPU memory of lists and tables, and of what rows of other ranks land in."""
        return self._core.device_bytes

    def __repr__(self) -> str:
        return f"DistMaskBuffer(rank={self.group.rank}, cp_size={self.group.size}, capacity={self.capacity})"


def key_of_call(
    key: DistAttnRuntimeKey | DistMaskBuffer, backend: str | None
) -> tuple[DistAttnRuntimeKey, DistMaskBuffer | None]:
    """The key that a call is of, and the buffer in which it is set, if it was given one."""
    if not isinstance(key, DistMaskBuffer):
        return key, None
    if backend is not None:
        raise InvalidArgument(
            f"calc_attn: backend must be None with a DistMaskBuffer, which is made for one (got {backend!r})"
        )
    if key.key is None:
        raise InvalidArgument("calc_attn: DistMaskBuffer.set must come first (got a buffer without a key)")
    if torch.compiler.is_compiling():
        raise InvalidArgument("calc_attn: a DistMaskBuffer must be used outside of torch.compile (got it inside)")
    return key.key, key


def _this_gpu() -> int:
    if not torch.cuda.is_available():
        raise NotAvailable(
            "DistMaskBuffer: needs a GPU, on which its graphs are replayed: on CPUs pass each key to calc_attn "
            "(got no GPU that torch finds)"
        )
    return torch.cuda.current_device()


def _current_stream(device: int) -> int:
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


@register_rows
def _rows() -> Iterator[MemoryRow]:
    """What memory_use shows."""
    sizes = [buffer.device_bytes for buffer in list(_buffers)]
    if sizes:
        yield MemoryRow("dist_mask_buffers", "cuda", len(sizes), sum(sizes), None)
