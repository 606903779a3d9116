# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What one layer of a model computes: its mask, or its runtime key, out of all that arrives with its call. Whatever
would be lost is refused by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument
from ._call import LayerCall
from ._mask_function import visible_runs
from ._narrow import (
    NAME,
    NO_LIMITS,
    Borders,
    Limits,
    borders_of_positions,
    first_positions,
    is_within,
    narrowed,
    narrowed_key,
)


def layer_key(call: LayerCall, given: Any) -> Any:
    """The key of this layer: that of `given`, narrowed to the layer's window and to cu_seq_lens."""
    from .._dist_mask_buffer import DistMaskBuffer, key_of_call
    from .._runtime_key import DistAttnRuntimeKey

    key = chosen_of_kind(call, given, "tangram_key")
    if call.batch != 1:
        raise InvalidArgument(f"{NAME}: with tangram_key the batch is one packed sequence (got batch={call.batch})")
    _refuse_tensor_mask(call, "tangram_key")
    if not isinstance(key, (DistAttnRuntimeKey, DistMaskBuffer)):
        return key  # calc_attn says what it must be
    base = key if isinstance(key, DistAttnRuntimeKey) else key_of_call(key, None)[0]
    _refuse_padding(call, base)
    rows = (base.total_seqlen_q, base.total_seqlen_k)
    limits = limits_of_caller(call, given, rows, call.borders(rows, "of the key's mask, of all ranks"))
    if limits == NO_LIMITS:
        return key
    if key is base:
        return narrowed_key(key, limits)
    if is_within(base, limits):
        return key
    raise InvalidArgument(
        f"{NAME}: the mask of a DistMaskBuffer must lie within the layer's sliding_window and cu_seq_lens; set a key "
        f"of such a mask, and pass a mapping for layers of several kinds (got sliding_window={call.sliding_window}, "
        f"{'cu_seq_lens' if limits.borders else 'no cu_seq_lens'})"
    )


def layer_mask(call: LayerCall, given: Any) -> Mask:
    """The mask of this layer, whose sequences lie one after the other."""
    if given is not None:
        return caller_layer_mask(call, given)
    _refuse_dispatched_rows(call)
    mask: Mask = model_layer_mask(call)
    return mask


@torch.compiler.disable  # type: ignore[misc]
def model_layer_mask(call: LayerCall) -> Mask:
    """The mask of this layer by what its model and its call say."""
    if call.attention_mask is None:
        return _of_layer(call)
    if call.model_mask is None:
        raise InvalidArgument(
            f"{NAME}: masks of scores cannot be read; pass a tangram.Mask as tangram_mask "
            f"(got {type(call.attention_mask).__name__})"
        )
    mask = call.model_mask.mask
    _refuse_other_direction(call, mask)
    borders = _borders_of_batch(call) or _borders_beside_model_mask(call)
    result = narrowed(mask, Limits(borders=borders)) if borders else mask
    if result is not mask and call.kind == "chunked_attention":
        raise InvalidArgument(
            f"{NAME}: chunks of packed documents need position_ids without attention_mask and cu_seq_lens, or "
            "tangram_mask (got layer 'chunked_attention')"
        )
    return result


def chosen_of_kind(call: LayerCall, value: Any, name: str) -> Any:
    """One value for all layers, or a mapping from the names in config.layer_types."""
    if not isinstance(value, Mapping):
        return value
    kind = call.kind or ("full_attention" if call.window == NO_LIMITS else "sliding_attention")
    if kind not in value:
        raise InvalidArgument(
            f"{NAME}: a mapping must have every layer type (got {name} of {sorted(value)}, layer {kind!r})"
        )
    return value[kind]


def limits_of_caller(call: LayerCall, given: Any, rows: tuple[int, int], borders: Borders | None) -> Limits:
    """Limits of a mask or key that a caller gives for `rows` queries and keys."""
    chunk = getattr(getattr(call.module, "config", None), "attention_chunk_size", None)
    if call.kind == "chunked_attention" and not isinstance(given, Mapping) and (chunk is None or chunk < rows[1]):
        raise InvalidArgument(
            f"{NAME}: layers of chunked attention need a mapping with their own mask or key, "
            "{'full_attention': ..., 'chunked_attention': ...}; Mask.varlen over the borders of the chunks makes it "
            f"(got one for all layers, attention_chunk_size={chunk})"
        )
    window = call.window
    # A mapping has a mask or key of its own for layers with a window, which need not count in rows: prefix trees.
    if isinstance(given, Mapping) or (window.left is not None and window.left >= max(rows) - 1):
        window = NO_LIMITS
    if window != NO_LIMITS and rows[0] != rows[1]:
        raise InvalidArgument(
            f"{NAME}: sliding_window needs as many queries as keys (got {rows[0]} and {rows[1]}, "
            f"sliding_window={window.left + 1 if window.left is not None else None})"
        )
    return window._replace(borders=borders)


def caller_layer_mask(call: LayerCall, given: Any) -> Mask:
    """The mask of this layer by what its caller gives for all layers, within what its call says."""
    mask = chosen_of_kind(call, given, "tangram_mask")
    if not isinstance(mask, Mask):
        raise InvalidArgument(f"{NAME}: tangram_mask must be a tangram.Mask (got {type(mask).__name__})")
    _refuse_tensor_mask(call, "tangram_mask")
    rows = (call.batch * call.q_length, call.batch * call.kv_length)
    if (mask.seqlen_q, mask.seqlen_k) != rows:
        raise InvalidArgument(
            f"{NAME}: tangram_mask must have a row for each query and key of the batch; rows that tangram.dispatch "
            f"gave this rank need tangram_key (got a mask of {mask.seqlen_q} x {mask.seqlen_k}, {rows[0]} queries, "
            f"{rows[1]} keys)"
        )
    limits = limits_of_caller(call, given, rows, _borders_of_batch(call))
    if limits.left is not None:
        _refuse_other_distances(call)
    padding = None if call.model_mask is None else call.model_mask.padding
    if padding is not None:
        runs = enumerate(visible_runs(padding, call.batch, (0, call.kv_length)))
        shifted = [
            (b * call.kv_length + begin, b * call.kv_length + end) for b, of_one in runs for begin, end in of_one
        ]
        limits = limits._replace(key_ranges=tuple(shifted))
    return mask if limits == NO_LIMITS else narrowed(mask, limits)


def _of_layer(call: LayerCall) -> Mask:
    """Mask of a layer to which its model gave none: as its call says."""
    q_length, kv_length, batch = call.q_length, call.kv_length, call.batch
    if call.causal and q_length not in (1, kv_length):
        raise InvalidArgument(
            f"{NAME}: a causal layer without a mask must have as many queries as keys (got {q_length} and {kv_length})"
        )
    rows = (batch * q_length, batch * kv_length)
    borders = _borders_of_batch(call)
    ids = _positions(call)
    if borders is None and ids is not None:
        begins = borders_of_positions(ids, None, any_jump=True)
        borders = begins, begins
    cu_q, cu_k = borders or (tuple(range(0, rows[0] + 1, q_length)), tuple(range(0, rows[1] + 1, kv_length)))
    mask = Mask.varlen(list(cu_q), list(cu_k), call.causal)
    if call.window == NO_LIMITS or call.window.left is None or call.window.left >= kv_length:
        return mask
    if q_length != kv_length:
        if batch > 1 or not call.causal:
            raise InvalidArgument(
                f"{NAME}: sliding_window without a mask needs as many queries as keys (got {q_length} and {kv_length})"
            )
        seen = (max(kv_length - call.window.left - 1, 0), kv_length)  # of the one query, the last row
        return narrowed(mask, Limits(key_ranges=(seen,)))
    return narrowed(mask, call.window)


def _positions(call: LayerCall) -> Tensor | None:
    """Position ids that count the rows of this call, `[batch, length]`."""
    ids = call.position_ids
    if not isinstance(ids, Tensor) or ids.dim() != 2 or call.q_length != call.kv_length or call.q_length == 1:
        return None
    if ids.shape[1] != call.q_length or ids.shape[0] not in (1, call.batch):
        return None
    return ids.expand(call.batch, -1)


def _refuse_other_distances(call: LayerCall) -> None:
    """Windows count in rows. In a prefix tree a branch continues at the position of its parent, rows further on."""
    ids = _positions(call)
    if ids is None:
        return

    def read() -> tuple[int, ...]:
        jumps = (ids.diff(dim=1) != 1) & (ids[:, 1:] != 0)
        real = _real(call)
        return tuple((jumps if real is None else jumps & real[:, 1:]).nonzero()[:1].flatten().tolist())

    jump = call.once("distances", (call.position_ids,), read)
    if jump:
        raise InvalidArgument(
            f"{NAME}: sliding_window counts in rows, so position_ids must count rows from the start of each document; "
            "pass tangram_mask as a mapping {'full_attention': ..., 'sliding_attention': ...} "
            f"(got a jump at row {jump[1] + 1} of sequence {jump[0]}, layer with sliding_window={call.sliding_window})"
        )


def _borders_of_batch(call: LayerCall) -> Borders | None:
    """cu_seq_lens of a batch whose sequences lie one after the other. Position ids that start again must agree."""
    borders = call.borders((call.batch * call.q_length, call.batch * call.kv_length), "of the batch")
    ids = _positions(call)
    if borders is None or ids is None:
        return borders
    steps = ids.flatten().diff()
    falls = {row + 1 for row in (steps < 0).nonzero().flatten().tolist()} - set(range(0, ids.numel(), call.q_length))
    inner = [row for row in borders[0] if 0 < row < ids.numel() and row % call.q_length]
    rises = [row for row in inner if int(steps[row - 1]) > 0] if falls else []
    other = sorted(falls - set(inner)) or rises
    if other and _real(call) is None:
        raise InvalidArgument(
            f"{NAME}: cu_seq_lens and position_ids must begin documents at the same rows; pass one of them "
            f"(got row {other[0]} in one alone)"
        )
    return borders


def _real(call: LayerCall) -> Tensor | None:
    padding = None if call.model_mask is None else call.model_mask.padding
    return None if padding is None else padding[:, : call.q_length]


def _borders_beside_model_mask(call: LayerCall) -> Borders | None:
    """Documents that position ids show and that a model may not have told its mask: Transformers drops them beside a
    2D attention_mask, and gpt-oss always. They are kept apart, as FlashAttention in Transformers does."""
    ids = _positions(call)
    if ids is None:
        return None

    def read() -> tuple[int, ...]:
        return borders_of_positions(ids, _real(call), any_jump=False)

    begins = call.once("positions", (call.position_ids,), read)
    return (begins, begins) if len(begins) > call.batch + 1 else None


def refuse_longer_keys(keys: int, tokens: int) -> None:
    raise InvalidArgument(
        f"{NAME}: a cache must not be longer than what was seen, as static caches are, nor attention_mask than "
        f"the tokens (got {keys} keys for {tokens} tokens)"
    )


def _refuse_tensor_mask(call: LayerCall, beside: str) -> None:
    if call.attention_mask is not None and call.model_mask is None:
        shape = list(getattr(call.attention_mask, "shape", ()))
        raise InvalidArgument(
            f"{NAME}: attention_mask must be None or [batch, length] beside {beside}, which says what is visible "
            f"(got {type(call.attention_mask).__name__}{shape})"
        )


def _refuse_padding(call: LayerCall, key: Any) -> None:
    """A rank holds the padding of its own rows alone; its peers are told, or they would wait for it."""
    padding = None if call.model_mask is None else call.model_mask.padding
    if padding is None:
        return
    real = key.rows("q").num_real  # then come rows that the key itself appended
    hidden = call.once("hidden", (key,), lambda: int((~padding[:, :real]).sum()))
    if hidden or padding.shape[1] != call.q_length:
        reason = (
            f"{NAME}: attention_mask must be dispatched and hide no rows beside tangram_key; make the key of a mask "
            f"that leaves them out, or pack the sequences (got {padding.shape[1]} entries, {hidden} hidden, for "
            f"{call.q_length} rows)"
        )
        key.group.refuse(-1, reason)
        raise InvalidArgument(reason)


def _refuse_other_direction(call: LayerCall, mask: Mask) -> None:
    """is_causal as a caller gives it, against the mask that the model has made."""
    if call.is_causal is None or call.is_causal == bool(getattr(call.module, "is_causal", call.is_causal)):
        return
    if call.q_length != call.kv_length or call.q_length == 1:
        return
    if call.is_causal != (narrowed(mask, Limits(right=0)) is mask):
        raise InvalidArgument(
            f"{NAME}: is_causal must agree with the model's mask; set config.is_causal, or pass tangram_mask "
            f"(got is_causal={call.is_causal})"
        )


@torch.compiler.disable  # type: ignore[misc]
def _refuse_dispatched_rows(call: LayerCall) -> None:
    """Rows of a shard whose documents begin on another rank attend there as well, so they need their key."""
    keys: Any = sys.modules.get("tangram._runtime_key")
    ids = _positions(call)
    if keys is None or ids is None or call.batch != 1 or not keys.has_shards_of(call.q_length):
        return
    first = first_positions(ids, _real(call))
    if bool((first != 0).any()):
        raise InvalidArgument(
            f"{NAME}: rows that tangram.dispatch gave this rank need tangram_key, or they see rows of this rank alone; "
            "pass tangram_mask if they are no shard "
            f"(got position_ids in which a document begins at {int(first[first != 0][0])})"
        )
