# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the functions of flash_attn and flash_attn_interface share: options, masks of batches and of borders, known by
the borders' identity, and attention over them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _cuda, _tensor_values
from ._cache import BoundedCache
from ._core import OPEN_MAX_DIAG, OPEN_MIN_DIAG, AttnSlice, Mask, Range
from ._named import rename
from ._tensor_values import Watched
from ._torch_borders import Borders, check_longest, checked_borders, longest_of, ranges_of_borders
from .errors import Error, InvalidArgument
from .flex import flex_flash_attn_func

Result = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, None]
Window = tuple[int, int]
_BYTES_OF_DOCUMENT = 128
"""About what a slice of a mask and two borders take."""


class _Packed(NamedTuple):
    """What calls with known borders need."""

    mask: Mask
    longest_q: int
    longest_k: int
    documents: int
    watched: Watched | None = None
    """Borders in GPU memory."""


def _bytes_of(packed: _Packed) -> int:
    watched = 0 if packed.watched is None else packed.watched.num_bytes
    return 1024 + _BYTES_OF_DOCUMENT * packed.documents + watched


# By the values of borders, and the places of tensors in GPU memory.
_masks: BoundedCache[_Packed] = BoundedCache("borders", _bytes_of, 16 << 20, 1024)
_tensor_values.forget_when_changed(_masks)


def _make_mask(cu_q: Borders, cu_k: Borders, window: Window) -> Mask:
    """Documents whose queries see so many keys before and after the diagonal that ends in the last corner; -1: all."""
    left, right = window
    slices = []
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        if q0 < q1 and k0 < k1:
            diagonal = k1 - q1
            low = OPEN_MIN_DIAG if left < 0 else diagonal - left
            high = OPEN_MAX_DIAG if right < 0 else diagonal + right
            slices.append(AttnSlice(Range(q0, q1), Range(k0, k1), low, high))
    return Mask(cu_q[-1], cu_k[-1], slices)


def refuse(
    function: str, dropout_p: float = 0.0, alibi_slopes: Tensor | None = None, block_table: Tensor | None = None
) -> None:
    """What masks cannot say and kernels do not do."""
    if dropout_p != 0.0:
        raise InvalidArgument(
            f"{function}: dropout is not supported, pass dropout_p=0.0; what FlashAttention 3 takes in its place, "
            f"softmax_scale, goes by name (got dropout_p={dropout_p})"
        )
    if alibi_slopes is not None:
        raise InvalidArgument(
            f"{function}: ALiBi is not supported, alibi_slopes must be None: masks have no biases "
            f"(got {type(alibi_slopes).__name__})"
        )
    if block_table is not None:
        raise InvalidArgument(
            f"{function}: paged keys are not supported, block_table must be None: pass k and v whole "
            f"(got {type(block_table).__name__})"
        )


class Options(NamedTuple):
    """What all functions take besides their tensors."""

    function: str
    """The one that was called."""
    softmax_scale: float | None
    causal: bool
    window_size: tuple[int, int]
    softcap: float
    deterministic: bool
    return_attn_probs: bool
    sink: Tensor | None = None
    sm_margin: int = 0
    of_flash_attention_3: bool = False
    """Whose functions return (out, lse) instead of (out, lse, None)."""
    sink_layout: str = "sh"
    """"ssh": other sinks for each row of q, `[..., rows, sinks, heads of q]`."""

    def result(self, out: Tensor, lse: Tensor) -> Result:
        """With return_attn_probs."""
        return (out, lse) if self.of_flash_attention_3 else (out, lse, None)

    def window(self) -> Window:
        """Keys before and after the diagonal, -1: all."""
        try:
            left, right = (int(side) for side in self.window_size)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"{self.function}: window_size must be two integers, keys before and after a query, -1: all "
                f"(got window_size={self.window_size!r})"
            ) from None
        return max(left, -1), 0 if self.causal else max(right, -1)

    def sinks(self, heads: int) -> Tensor | None:
        """`[heads]` is one sink."""
        sink = self.sink
        if sink is None:
            return None
        if self.sink_layout not in ("sh", "ssh"):
            raise InvalidArgument(
                f"{self.function}: sink_layout must be 'sh' or 'ssh', sinks have no values "
                f"(got sink_layout={self.sink_layout!r})"
            )
        if self.sink_layout == "ssh":
            if sink.ndim not in (3, 4) or sink.shape[-1] != heads:
                raise InvalidArgument(
                    f"{self.function}: sink must be [rows of q, sinks, heads of q] or [batch, rows, sinks, heads of q] "
                    f"with sink_layout='ssh', heads of q = {heads} (got sink={list(sink.shape)})"
                )
            return sink.flatten(0, -3)
        if sink.ndim not in (1, 2) or sink.shape[-1] != heads:
            raise InvalidArgument(
                f"{self.function}: sink must be [heads of q] or [sinks, heads of q], heads of q = {heads} "
                f"(got sink={list(sink.shape)})"
            )
        return sink[None] if sink.ndim == 1 else sink


def _require_shape(function: str, name: str, x: Any, dims: str) -> None:
    count = dims.count(",") + 1
    if not isinstance(x, Tensor) or x.ndim != count:
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidArgument(f"{function}: {name} must be a tensor [{dims}] (got {name}={shape})")


def parts(function: str, name: str, x: Tensor, dims: str, place: int) -> tuple[Tensor, ...]:
    """The tensors that lie beside each other in dimension `place` of `dims`, which is their number."""
    _require_shape(function, name, x, dims)
    if x.shape[place] != int(dims.split(", ")[place]):
        raise InvalidArgument(
            f"{function}: {name} must be a tensor [{dims}] (got {name}={list(x.shape)}, {x.shape[place]} parts)"
        )
    return x.unbind(place)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: tuple[Any, ...], sinks: Tensor | None, options: Options
) -> tuple[Tensor, Tensor]:
    """(out, lse [rows, heads]) of rows one after the other."""
    softcap = max(options.softcap, 0.0)  # there, too, what is not positive is none
    given: dict[str, Any] = {"sink": sinks, "softmax_scale": options.softmax_scale, "softcap": softcap}
    given["sink_layout"] = options.sink_layout
    given |= {"deterministic": options.deterministic, "sm_margin": options.sm_margin}
    if torch.compiler.is_compiling():
        out, meta = flex_flash_attn_func(q, k, v, *mask, **given)
        return out, meta.lse
    try:
        out, meta = flex_flash_attn_func(q, k, v, *mask, **given)
    except (Error, TypeError) as error:
        rename(error, options.function)
        raise
    return out, meta.lse


def attend_batch(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Result:
    """Attention of sequences `[batch, rows, heads, dim]`."""
    name = options.function
    for each, x in (("q", q), ("k", k), ("v", v)):
        _require_shape(name, each, x, "batch, rows, heads, dim")
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        raise InvalidArgument(
            f"{name}: q, k and v must be of one batch, k and v of equal rows "
            f"(got q={list(q.shape)}, k={list(k.shape)}, v={list(v.shape)})"
        )
    batch, rows = q.shape[:2]
    make = _typed_of_batch if torch.compiler.is_compiling() else _mask_of_batch
    mask = make(batch, rows, k.shape[1], options.window())
    sinks = options.sinks(q.shape[2])
    out, lse = _attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask, sinks, options)
    out = out.view(batch, rows, *out.shape[1:])
    return options.result(out, lse.view(batch, rows, -1).transpose(1, 2)) if options.return_attn_probs else out


def _mask_of_batch(batch: int, seqlen_q: int, seqlen_k: int, window: Window) -> tuple[Any, ...]:
    key = ("batch", batch, seqlen_q, seqlen_k, window)
    known = _masks.get(key)
    if known is None:
        cu_q, cu_k = (tuple(length * i for i in range(batch + 1)) for length in (seqlen_q, seqlen_k))
        known = _masks.put(key, _Packed(_make_mask(cu_q, cu_k, window), seqlen_q, seqlen_k, batch))
    return (known.mask,)


def _typed_of_batch(batch: int, seqlen_q: int, seqlen_k: int, window: Window) -> tuple[Any, ...]:
    """Ranges and types as constants of a compiled graph, which a Mask that is made in it cannot be."""
    return tuple(tuple(each) for each in _mask_of_batch(batch, seqlen_q, seqlen_k, window)[0].to_typed())


# What torch.compiler.assume_constant_result does, which would import the compiler with this module.
_typed_of_batch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _named(borders: Any, device: int) -> tuple[Any, Hashable]:
    """Borders, in host memory or on that GPU, and what stands for their values in a call there (-1: the host)."""
    if isinstance(borders, Tensor):
        return _tensor_values.named(borders, device)
    listed = tuple(int(border) for border in borders)
    return listed, listed


class Given(NamedTuple):
    """Borders of packed sequences as they were passed."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: Any
    max_seqlen_k: Any
    ends: tuple[str, str] = ("_q", "_k")
    """Ends of the arguments' names."""


def attend_packed(q: Tensor, k: Tensor, v: Tensor, borders: Given, options: Options) -> Result:
    """Attention of sequences one after the other, `[rows, heads, dim]`."""
    name = options.function
    for each, x in (("q", q), ("k", k), ("v", v)):
        _require_shape(name, each, x, "rows, heads, dim")
    window = options.window()
    sinks = options.sinks(q.shape[1])
    mask: tuple[Any, ...]
    watched: Watched | None = None
    if torch.compiler.is_compiling() and window in ((-1, -1), (-1, 0)):
        ranges = [
            ranges_of_borders(cu, x.shape[0], longest, (name, f"cu_seqlens{end}", f"max_seqlen{end}"))
            for cu, x, longest, end in zip(borders[:2], (q, k), borders[2:4], borders.ends, strict=True)
        ]
        kinds = torch.full((ranges[0].shape[0],), int(window[1] == 0), dtype=torch.int32, device=q.device)
        mask = (*ranges, kinds)
    else:
        known = _mask_of_borders(q, k, borders, window, name)
        mask, watched = (known.mask,), known.watched
    out, lse = _attend(q, k, v, mask, sinks, options)
    if watched is not None:
        _poison_if_changed(watched, out, lse)
    return options.result(out, lse.transpose(0, 1)) if options.return_attn_probs else out


def _poison_if_changed(watched: Watched, out: Tensor, lse: Tensor) -> None:
    watched.poison_if_changed(out, lse)


def _mask_of_borders(q: Tensor, k: Tensor, borders: Given, window: Window, name: str) -> _Packed:
    cu_seqlens_q, cu_seqlens_k, max_q, max_k, (end_q, end_k) = borders
    device = _cuda.device_of(q)
    cu_seqlens_q, of_q = _named(cu_seqlens_q, device)
    cu_seqlens_k, of_k = _named(cu_seqlens_k, device)
    key = (of_q, of_k, q.shape[0], k.shape[0], window)
    known = _masks.get(key)
    if known is not None and known.watched is not None:
        _tensor_values.raise_if_changed(name)
    if known is None:
        watched = _tensor_values.watch(name, ((cu_seqlens_q, of_q), (cu_seqlens_k, of_k)))
        if watched is not None:
            if watched.has(of_q):
                cu_seqlens_q = watched.values(of_q)
            if watched.has(of_k):
                cu_seqlens_k = watched.values(of_k)
        cu_q = checked_borders(name, f"cu_seqlens{end_q}", cu_seqlens_q, q.shape[0])
        cu_k = checked_borders(name, f"cu_seqlens{end_k}", cu_seqlens_k, k.shape[0])
        if len(cu_q) != len(cu_k):
            raise InvalidArgument(
                f"{name}: cu_seqlens_q and cu_seqlens_k must be equally long (got {len(cu_q)} and {len(cu_k)} values)"
            )
        known = _Packed(_make_mask(cu_q, cu_k, window), longest_of(cu_q), longest_of(cu_k), len(cu_q), watched)
        _masks.put(key, known)
    check_longest(name, f"max_seqlen{end_q}", max_q, known.longest_q)
    check_longest(name, f"max_seqlen{end_k}", max_k, known.longest_k)
    return known


# Like torch.compiler.disable, which would import the compiler with this module.
_mask_of_borders._torchdynamo_disable = True  # type: ignore[attr-defined]
_poison_if_changed._torchdynamo_disable = True  # type: ignore[attr-defined]
