# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Distributed attention over torch.distributed. Most names are those of MagiAttention; tangram.magi has them all, with
the arguments published there.

A runtime key is the plan of one mask for the ranks of a context-parallel group. Every rank makes the same keys and the
same calls in the same order. `dispatch` takes this rank's rows of a tensor that all ranks hold, `calc_attn` computes on
them, `undispatch` gives the whole tensor back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from . import _cuda, _settings, _torch_rows  # noqa: F401
from ._core import AttnOptions, DistAttention, KeptKv
from ._differing import where_masks_differ
from ._dist_mask_buffer import DistMaskBuffer, PlanOfBuffer, key_of_call
from ._keys import (
    get_most_recent_key,
    magi_attn_flex_key,
    magi_attn_varlen_key,
    make_flex_key_for_new_mask_after_dispatch,
    make_mask_key_after_dispatch,
    make_varlen_key_for_new_mask_after_dispatch,
    mask_key,
    mask_key_async,
)
from ._named import rename
from ._rows import dispatch, dispatch_labels, get_loss_mask, get_position_ids, roll, undispatch
from ._runtime_key import DistAttnRuntimeKey, clear_keys, require_key
from ._shapes import dtype_remedy
from ._tensor_values import raise_if_changed
from ._torch_calc import backward_of, calc_compiled, forward_of, kv_rows, sink_values
from ._torch_group import known_group
from ._torch_pass import (
    _NAMES,
    _options,
    _rows,
    check_grad_dtype,
    check_scale,
    refuse_batched,
    refuse_second_derivatives,
    require_no_transform,
    warn_of_float32,
)
from ._watched import Results, as_operator, forward_pass, is_watched
from .errors import Error, InvalidArgument
from .flex import AttnForwardMeta, by_head_groups


def check_errors(cp_group_or_mesh: Any = None) -> None:
    """Waits for this rank's GPU and raises its errors, or those of a peer of this group. They are Timeout, CommError,
    and InvalidArgument for ranges in GPU memory that were overwritten. In a process without a group it raises
    errors of that process's own calls.

    Passes over GPUs are only enqueued, so a dead peer shows in the next call, or here. Call it before you trust results
    that no further call depends on. Without effect for tensors in host memory: their calls raise directly.
    """
    if cp_group_or_mesh is not None or (dist.is_available() and dist.is_initialized()):
        group = known_group(cp_group_or_mesh)
        if group is not None:
            group.check()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    raise_if_changed("check_errors")


flex_key = magi_attn_flex_key
varlen_key = magi_attn_varlen_key

__all__ = [
    "DistAttnRuntimeKey",
    "DistMaskBuffer",
    "calc_attn",
    "check_errors",
    "clear_keys",
    "dispatch",
    "dispatch_labels",
    "flex_key",
    "get_loss_mask",
    "get_most_recent_key",
    "get_position_ids",
    "magi_attn_flex_key",
    "magi_attn_varlen_key",
    "make_flex_key_for_new_mask_after_dispatch",
    "make_mask_key_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch",
    "mask_key",
    "mask_key_async",
    "roll",
    "undispatch",
    "varlen_key",
]


@dataclass(slots=True)
class _Call:
    """Arguments of a call beside its tensors. They are one object, because autograd inspects each argument."""

    key: DistAttnRuntimeKey
    attention: DistAttention | PlanOfBuffer
    without: Callable[[], DistAttention] | None
    """Makes an executor that fetches remote K/V again. Set if `attention`, the executor of the forward pass, keeps
    remote K/V in GPU memory (keep_remote_kv)."""
    kept: KeptKv | None
    """Remote K/V rows that a forward pass in host memory keeps for the backward pass."""
    sink_layout: str
    options: AttnOptions
    out_dtype: torch.dtype | None
    max_logits: bool
    dsink_reduce: str
    backend: str | None
    grad_dtype: torch.dtype | None = None
    number: int = 0
    """Number of the forward pass. The executor keeps K/V of its last pass only, and compares this number."""
    has_run: bool = False
    """Whether this call computed the forward pass, so that `kept` holds its rows."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Results:
        if not is_watched():
            return forward_pass("calc_attn", self.run, q, k, v, sink)
        shared = self._of_operator()
        results: Results = as_operator(
            self, torch.ops.tangram.calc_attn, (q, k, v, sink, *shared), (self.out_dtype, self.max_logits)
        )
        return results if self.max_logits else results[:2]

    def backward(self, dout: Tensor, saved: Sequence[Any]) -> tuple[Any, ...]:
        *saved, number = saved
        if number is not None:
            self.number = int(number)
        if not is_watched():
            return self.run_backward(dout, saved)
        q, k, v, sink, out, lse = saved
        *grads, dsink = as_operator(
            self, torch.ops.tangram.calc_attn_backward, (dout, q, k, v, out, lse, sink, *self._of_operator())
        )
        return (*grads, None if sink is None else dsink)

    def _of_operator(self) -> tuple[Any, ...]:
        """Arguments that torch.ops.tangram shows in a trace. The computation itself uses this object."""
        options = self.options
        of_call = (options.softmax_scale, options.softcap, options.deterministic, self.dsink_reduce)
        return (self.key.handle, self.sink_layout, *of_call, self.backend or "")

    def run(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Results:
        results = forward_of(
            self.attention,
            q,
            k,
            v,
            sink,
            self.sink_layout,
            self.kept,
            self.options,
            self.out_dtype,
            self.max_logits,
        )
        self.has_run = True
        if self.without is not None:
            self.number = self.attention.latest_kept
        return results

    def run_backward(self, dout: Tensor, saved: Sequence[Any]) -> tuple[Any, ...]:
        q, k, v, sink, out, lse = saved
        attention = self.attention
        if self.without is not None and not attention.still_keeps(self.number):
            attention = self.without()
        return backward_of(
            attention,
            dout,
            (q, k, v, out, lse),
            sink,
            self.sink_layout,
            self.kept if self.has_run else None,
            self.dsink_reduce,
            self.options,
            self.grad_dtype,
        )


class _CalcAttn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, call: _Call) -> Results:
        results = call.forward(q, k, v, sink)
        # Activation checkpointing runs forward again and replaces the saved tensors, but not `call`. So the number of
        # the pass is a saved tensor.
        number = None if call.without is None else torch.tensor(call.number, device="cpu")
        ctx.save_for_backward(q, k, v, sink, *results[:2], number)
        ctx.call = call
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing refuses a second read
        refuse_batched("calc_attn", dout)
        if not torch.is_grad_enabled():
            return (*ctx.call.backward(dout, saved), None)
        with torch.no_grad():
            grads = (*ctx.call.backward(dout, saved), None)
        return refuse_second_derivatives("calc_attn", grads, (dout, *saved))


# Like _apply_flex in _torch_flex.py: what apply does if no transform of torch.func is active.
_apply: Any = super(torch.autograd.Function, _CalcAttn).apply


def _check(q: Any, k: Any, v: Any, sink: Tensor | None, sink_layout: str, key: Any) -> None:
    """Checks what the executor does not see. A rank that raises tells its peers, which would wait for it otherwise."""
    require_key("calc_attn", key)
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        reason = f"calc_attn: needs torch tensors (got {', '.join(type(x).__name__ for x in (q, k, v))})"
        if not torch.compiler.is_compiling():
            key.group.refuse(-1, reason)
        raise InvalidArgument(reason)
    shape_q, shape_k = key.shapes
    shape_v, dtype, device = v.shape, q.dtype, q.device
    fits = q.shape == shape_q and k.shape == shape_k
    fits = fits and (shape_v == shape_k or (len(shape_v) == 3 and shape_v[:2] == shape_k[:2]))
    fits = fits and dtype in _NAMES and k.dtype is dtype and v.dtype is dtype
    fits = fits and k.device == device and v.device == device
    if fits and (sink is None or (sink.device == device and (sink_layout != "ssh" or sink.dim() == 3))):
        return
    shown = ", ".join(f"{name}={x.dtype}{list(x.shape)} on {x.device}" for name, x in (("q", q), ("k", k), ("v", v)))
    if sink is not None:
        shown += f", sink{list(sink.shape)} of layout {sink_layout!r} on {sink.device}"
    reason = (
        f"calc_attn: q must be the shard {list(shape_q)} of the key, k and v {list(shape_k)} (v of any dim), of one "
        f"dtype of float32, bfloat16, float16, and lie on one device with the sink, which has three dims where each "
        f"row has sinks of its own, 'ssh' (got {shown})"
    )
    if not torch.compiler.is_compiling():
        key.group.refuse(_cuda.device_of(q), reason)  # peers get a truncated text, so it omits the remedy
    raise InvalidArgument(reason + dtype_remedy(q.dtype, k.dtype, v.dtype))


def _calc_otherwise(
    q: Tensor, k: Tensor, v: Tensor, key: DistAttnRuntimeKey, sink: Tensor | None, shared: dict[str, Any], on_host: bool
) -> tuple[Tensor, AttnForwardMeta]:
    """Computes what executors on GPUs do not. float32 and the reference backend run on the host. Several masks run one
    head group after the other, if only K/V move."""
    if not on_host:
        return by_head_groups(calc_attn, q, k, v, key.of_groups(), sink, shared)
    if shared["backend"] is None:
        warn_of_float32("calc_attn", None)
    out, meta = calc_attn(q.cpu(), k.cpu(), v.cpu(), key, None if sink is None else sink.cpu(), **shared)
    peaks = None if meta.max_logits is None else meta.max_logits.to(q.device)
    return out.to(q.device), AttnForwardMeta(meta.lse.to(q.device), peaks)


def calc_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: DistAttnRuntimeKey | DistMaskBuffer,
    sink: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
    *,
    sink_layout: str = "sh",
    deterministic: bool = False,
    out_dtype: torch.dtype | None = None,
    grad_dtype: torch.dtype | None = None,
    dsink_reduce: Literal["none", "sum", "avg"] = "sum",
    backend: str | None = None,
) -> tuple[Tensor, AttnForwardMeta]:
    """Attention of this rank's query rows to all key rows visible to them. Forward and backward are collective.
    float32 tensors in GPU memory are computed on the host: correct and slow.

    Args:
        q `[rows, num_heads_q, head_dim]`, k, v `[rows, num_heads_kv, head_dim(_v)]`: this rank's rows.
        key: runtime key, or a DistMaskBuffer for CUDA graphs over changing masks, with its own `deterministic`.
        sink: `[seqlen_sink, num_heads_q]` ("sh"), alike on every rank, or `[rows, seqlen_sink, num_heads_q]` ("ssh").
        out_dtype, grad_dtype, backend: as in flex_flash_attn_func; a DistMaskBuffer brings its own backend.
        dsink_reduce: how the gradient of a sink that all ranks share is combined: none, sum or avg.

    Returns:
        `(out, meta)` as flex_flash_attn_func, for this rank's rows; meta.max_logits is the maximum over all ranks.

    Compiles under torch.compile without a graph break; keys are inputs of the graph, and keep_remote_kv has no effect.

    Tensors in GPU memory: one process a GPU, all on one host. The pass is put on the current stream and the host does
    not wait for it. Only the first call with a key synchronises. keep_remote_kv serves the last pass with the key; the
    backward pass of an earlier one fetches its rows again.

    Raises:
        InvalidArgument: arguments of a rank do not fit. In host memory it is raised on every rank; over GPUs on that
            rank, and the others raise CommError.
        Timeout, CommError: a peer is gone. Over GPUs a later call raises it, see check_errors.
        NotAvailable: no backend for the device, or GPUs that do not reach each other.
    """
    set_key, buffer = key_of_call(key, backend)
    _check(q, k, v, sink, sink_layout, set_key)
    backend = backend or _settings.chosen.backend
    deterministic = deterministic or _settings.chosen.deterministic
    on_host = backend == "reference" or (backend is None and q.dtype in _cuda.HOST_DTYPES)
    if sink is not None and dsink_reduce not in ("none", "sum", "avg"):
        raise InvalidArgument(f"calc_attn: dsink_reduce must be 'none', 'sum' or 'avg' (got {dsink_reduce!r})")
    if grad_dtype is not None:
        check_grad_dtype("calc_attn", grad_dtype, q)
    group_by_group = set_key.masks is not None and set_key.moves_kv_alone
    if buffer is None and _cuda.device_of(q) >= 0 and (on_host or group_by_group):
        shared: dict[str, Any] = {
            "softmax_scale": softmax_scale,
            "softcap": softcap,
            "return_max_logits": return_max_logits,
        }
        shared |= {"sink_layout": sink_layout, "deterministic": deterministic, "out_dtype": out_dtype}
        shared |= {"grad_dtype": grad_dtype, "dsink_reduce": dsink_reduce, "backend": backend}
        return _calc_otherwise(q, k, v, set_key, sink, shared, on_host)
    if softmax_scale is not None:
        softmax_scale = check_scale("calc_attn", softmax_scale)
    if torch.compiler.is_compiling():
        options_of = (softmax_scale, softcap, deterministic)
        out, lse, peaks = calc_compiled(
            q,
            k,
            v,
            set_key,
            sink,
            sink_layout,
            options_of,
            dsink_reduce,
            backend,
            out_dtype,
            return_max_logits,
        )
        return out, AttnForwardMeta(lse, peaks if return_max_logits else None)
    require_no_transform("calc_attn")
    device = _cuda.device_of(q)
    keeps = buffer is None and set_key.keeps and torch.is_grad_enabled()
    row_sinks = set_key.sinks_that_move(sink, sink_layout, device)
    results = set_key.dtypes_that_move(q.dtype, out_dtype, grad_dtype, device)
    executor = partial(set_key.attention, q.dtype, v.shape[2], backend, device, row_sinks, results)
    try:
        call = _Call(
            set_key,
            executor(keeps) if buffer is None else buffer.of_call(q, v, deterministic),
            executor if keeps and device >= 0 else None,
            KeptKv() if keeps and device < 0 else None,
            sink_layout,
            _options(softmax_scale, softcap, deterministic if buffer is None else buffer.deterministic),
            out_dtype,
            return_max_logits,
            dsink_reduce,
            backend,
            grad_dtype,
        )
        results = _apply(_rows(q), kv_rows(k), kv_rows(v), sink_values(sink), call)
    except (Error, TypeError) as error:
        rename(error, "calc_attn")
        if isinstance(error, InvalidArgument) and "masks differ" in str(error) and buffer is None:
            error.args = (f"{error}{where_masks_differ(set_key)}", *error.args[1:])
        raise
    return results[0], AttnForwardMeta(*results[1:])
