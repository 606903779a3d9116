# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Host memory that plays GPU memory: the functions over ranks take the way of CUDA tensors, down to the extension."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from tangram import _core, _cuda, _dist_mask_buffer, _runtime_key, _torch_calc, _torch_group
from tangram._backends import backend_named
from tangram.errors import InvalidArgument

STREAM = 77


class FakeGroup:
    """DeviceGroup over the connections of the host. Checks what the real one relies on."""

    def __init__(self, group, device, *chosen):
        assert chosen == ("copy_engine", False, 0, 0)  # what a process has chosen that chose nothing
        self._group, self.device = group, device
        self.calls = 0
        self.refused = None
        self.checks = 0

    def all_to_all(self, send, send_rows, recv, recv_rows, most_rows, rows, stream):
        assert stream == STREAM and send.is_contiguous() and recv.is_contiguous()
        assert send.shape[1:] == recv.shape[1:] and send.element_size() * send.shape[2] % 2 == 0
        assert sum(send_rows) == send.shape[0] and sum(recv_rows) == recv.shape[0]
        self._group.require_agreement(most_rows, "the longest message")
        self._group.all_to_all(send, send_rows, recv, recv_rows, "rows", rows)
        self.calls += 1

    shared_bytes = 0

    def refuse(self, reason):
        self.refused = reason

    def check(self):
        self.checks += 1


class FakeAttention:
    """The executor of one key on a GPU: one forward pass at a time leaves its remote K/V for backward."""

    forward_workspace_bytes, backward_workspace_bytes = 64, 96  # which a call must bring along
    largest_device_bytes = 1024

    def __init__(self, plan, group, backend, row_sinks, out_dtype, grad_dtype):
        assert isinstance(group, FakeGroup)
        self._row_sinks, self._by_heads = row_sinks, plan.exchanges_heads
        self._out_dtype, self._grad_dtype = out_dtype, grad_dtype
        self._attention = _core.DistAttention(plan, group._group, backend)
        stages = plan.ranks[0].backward
        keeps = stages[-1].kept if stages else plan.config.overlap.keep_remote_kv
        self._kept = _core.KeptKv() if keeps else None
        self._is_kept = False
        self.latest_kept = 0

    def still_keeps(self, number):
        return self._kept is None or (self._is_kept and number == self.latest_kept)

    def forward(self, q, k, v, out, lse, max_logits, sink, layout, kept, options, stream, workspace):
        assert workspace[0] != 0 and workspace[1] >= self.forward_workspace_bytes
        assert stream == STREAM and kept is None and all(x.is_contiguous() for x in (k, v, out, lse))
        # Sinks of single rows move with heads, in casts that are fixed.
        move = sink is not None and layout == "ssh" and self._by_heads
        assert self._row_sinks == (sink.shape[1] if move else 0), (self._row_sinks, layout)
        self._check_result(out, q, self._out_dtype)
        self._attention.forward(q, k, v, out, lse, max_logits, sink, layout, self._kept, options)
        self.latest_kept += 1
        self._is_kept = True

    def _check_result(self, result, q, prepared):
        """So do results."""
        assert not self._by_heads or result.dtype == (getattr(torch, prepared) if prepared else q.dtype), prepared

    def backward(self, *arguments):
        *arguments, stream, workspace = arguments
        assert workspace[0] != 0 and workspace[1] >= self.backward_workspace_bytes
        k, v, dk, dv, kept = (arguments[i] for i in (1, 2, 7, 8, 12))
        assert stream == STREAM and kept is None and all(x.is_contiguous() for x in (k, v, dk, dv))
        assert self._kept is None or self._is_kept
        for gradient in arguments[6:9]:
            self._check_result(gradient, arguments[0], self._grad_dtype)
        arguments[12] = self._kept
        self._attention.backward(*arguments)
        self._is_kept = False


class FakeBuffer:
    """The executor of keys that change, with an executor of the host for each; refuses what has no room."""

    forward_workspace_bytes, backward_workspace_bytes = 64, 96
    device_bytes = 4096

    def __init__(self, like, capacity, deterministic, with_gradients, group, backend):
        assert isinstance(group, FakeGroup) and with_gradients
        self._group, self._backend, self._capacity = group, backend, capacity
        self.deterministic = deterministic
        self._attention = None

    def set(self, plan, stream):
        assert stream == STREAM
        needed = _core.dist_mask_capacity(plan)
        if any(need > room for need, room in zip(needed, self._capacity, strict=True)):
            raise InvalidArgument(f"DistMaskBuffer::set: the plan must fit the buffer (got {needed})")
        self._attention = _core.DistAttention(plan, self._group._group, self._backend)

    def forward(self, q, k, v, out, lse, max_logits, sink, layout, options, stream, workspace):
        assert workspace[0] != 0 and workspace[1] >= self.forward_workspace_bytes and stream == STREAM
        assert all(x.is_contiguous() for x in (k, v, out, lse)) and options.deterministic == self.deterministic
        self._attention.forward(q, k, v, out, lse, max_logits, sink, layout, None, options)

    def backward(self, q, k, v, out, lse, dout, dq, dk, dv, dsink, sink, layout, reduce, options, stream, workspace):
        assert workspace[0] != 0 and workspace[1] >= self.backward_workspace_bytes and stream == STREAM
        assert all(x.is_contiguous() for x in (k, v, dk, dv)) and options.deterministic == self.deterministic
        self._attention.backward(q, k, v, out, lse, dout, dq, dk, dv, dsink, sink, layout, None, reduce, options)


@contextmanager
def as_device():
    """Keys that are made meanwhile must not be used afterwards."""
    _runtime_key.clear_keys()
    with ExitStack() as stack:
        for module, name, value in (
            (_cuda, "device_of", lambda _: 0),
            (_cuda, "HOST_DTYPES", ()),  # checks are in float32, which CPUs compute exactly enough
            (_cuda, "stream_of", lambda _: STREAM),
            (_cuda, "is_capturing", lambda: False),
            (_torch_group, "DeviceGroup", FakeGroup),
            (_runtime_key, "DistAttention", FakeAttention),
            (_core, "DistMaskBuffer", FakeBuffer),
            (_dist_mask_buffer, "_this_gpu", lambda: 0),
            (_dist_mask_buffer, "_current_stream", lambda _: STREAM),
            (_runtime_key, "backend_named", lambda name, on_gpu, device: backend_named(name, on_gpu=False)),
            (_torch_calc, "_stream", lambda _: STREAM),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
    _runtime_key.clear_keys()
