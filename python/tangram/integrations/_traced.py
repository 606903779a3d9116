# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Models under torch.compile: masks are read while the graph runs, by operators, so that other documents need no other
graph. What is read and refused is what _layer.py reads and refuses of a model that is not compiled.

An operator cannot take a function, so the graph evaluates the model's mask function for the cells that decide
(_mask_function.py). The answers, positions, padding and borders are tensors. Operators name masks by tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .. import _held
from .._core import Mask
from .._torch_flex_compiled import _graph_masks, _place
from ..errors import InvalidArgument
from ._call import LayerCall, ModelMask, model_masks
from ._layer import caller_layer_mask, chosen_of_kind, layer_mask, limits_of_caller, refuse_longer_keys
from ._mask_function import (
    MaskFunction,
    Sizes,
    Span,
    ask_cells,
    ask_ends,
    ask_starts,
    distances,
    longest_document,
    mask_of_answers,
)
from ._narrow import NAME, NO_LIMITS

NO_MASK, NONE = -1, -1
_SIZES = "SymInt[] sizes"

torch.library.define("tangram::longest_document", f"(Tensor starts, {_SIZES}) -> Tensor")
torch.library.define("tangram::mask_distances", f"(Tensor starts, Tensor ends, {_SIZES}) -> Tensor")
torch.library.define(
    "tangram::model_mask",
    f"(Tensor starts, Tensor ends, Tensor cells, Tensor? padding, Tensor? offset, {_SIZES}) -> Tensor",
)
torch.library.define(
    "tangram::layer_mask",
    "(Tensor? model, Tensor? padding, Tensor? position_ids, Tensor? cu_q, Tensor? cu_k, SymInt[] lengths, "
    "int[] given, str[] kinds, str kind, int[] described) -> Tensor",
)


def _sizes(flat: list[int]) -> Sizes:
    batch, q_offset, q_length, k_offset, k_length = (int(x) for x in flat)
    return Sizes(batch, (q_offset, q_length), (k_offset, k_length))


@torch.library.impl("tangram::longest_document", "CompositeExplicitAutograd")
def _longest_document(starts: Tensor, sizes: list[int]) -> Tensor:
    return torch.tensor(longest_document(starts, _sizes(sizes)), device=starts.device)


@torch.library.impl("tangram::mask_distances", "CompositeExplicitAutograd")
def _mask_distances(starts: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    return torch.tensor(distances(starts, ends, _sizes(sizes)), device=starts.device)


@torch.library.impl("tangram::model_mask", "CompositeExplicitAutograd")
def _model_mask(
    starts: Tensor, ends: Tensor, cells: Tensor, padding: Tensor | None, offset: Tensor | None, flat: list[int]
) -> Tensor:
    sizes = _sizes(flat)
    if offset is not None and int(offset.flatten()[0]) != sizes.q[0]:
        refuse_longer_keys(sum(sizes.k), int(offset.flatten()[0]) + sizes.q[1])
    mask = mask_of_answers(starts, ends, cells, sizes, padding)
    if sum(sizes.k) > sum(sizes.q) and not any(s.visible(sizes.q[1] - 1, sizes.k[1] - 1) for s in mask.slices):
        refuse_longer_keys(sum(sizes.k), sum(sizes.q))
    return model_masks.add(ModelMask(lambda: mask, padding))


@torch.library.impl("tangram::layer_mask", "CompositeExplicitAutograd")
def _layer_mask(
    model: Tensor | None,
    padding: Tensor | None,
    position_ids: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    lengths: list[int],
    given: list[int],
    kinds: list[str],
    kind: str,
    described: list[int],
) -> Tensor:
    window, is_causal, of_module, module_window, config_window, chunk = (None if x == NONE else x for x in described)
    config = SimpleNamespace(sliding_window=config_window, attention_chunk_size=chunk)
    module = SimpleNamespace(layer_type=kind or None, sliding_window=module_window, config=config)
    if of_module is not None:
        module.is_causal = bool(of_module)
    known = None
    if model is not None:
        known = model_masks.of(model)
    elif padding is not None:
        known = ModelMask(_refuse_reading, padding)
    batch, q_length, kv_length = (int(x) for x in lengths)
    call = LayerCall(
        module=module,
        batch=batch,
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=known,
        sliding_window=window,
        is_causal=None if is_causal is None else bool(is_causal),
        position_ids=position_ids,
        cu_seq_lens=(cu_q, cu_k),
    )
    if not given:
        return _held.masks.add(layer_mask(call, None))
    masks: list[Any] = [_graph_masks[place] for place in given]
    return _held.masks.add(caller_layer_mask(call, dict(zip(kinds, masks, strict=True)) if kinds else masks[0]))


def _refuse_reading() -> Mask:
    raise AssertionError("a mask of the caller's was read as the model's")


def _name_like(device: Any) -> Any:
    return lambda *_: torch.empty(1, dtype=torch.int64, device=device)


torch.library.register_fake("tangram::longest_document", lambda starts, _: starts.new_empty(3, dtype=torch.int64))
torch.library.register_fake("tangram::mask_distances", lambda starts, *_: starts.new_empty(7, dtype=torch.int64))
torch.library.register_fake("tangram::model_mask", _name_like("cpu"))
torch.library.register_fake("tangram::layer_mask", _name_like("cpu"))


class TracedMask:
    """A ModelMask in a graph, which asks the model's function when the first layer needs its mask."""

    def __init__(
        self, function: MaskFunction | None, sizes: Sizes, padding: Tensor | None, offset: Tensor | None, device: Any
    ) -> None:
        """offset: of the first query, where a model knows it as a tensor alone: compared with that of sizes."""
        self._function, self._sizes, self.padding, self._offset, self._device = function, sizes, padding, offset, device
        self._name: Tensor | None = None

    @property
    def name(self) -> Tensor:
        if self._name is None:
            self._name = self._ask()
        return self._name

    def outside_of_graph(self) -> ModelMask:
        mask: ModelMask = model_masks.of(self.name)
        return mask

    def _ask(self) -> Tensor:
        function, sizes = self._function, self._sizes
        if function is None:
            raise InvalidArgument(
                f"{NAME}: masks that a model combines from functions of its own cannot be read; pass tangram_mask "
                "to the model (got a custom mask function)"
            )
        flat = [sizes.batch, *sizes.q, *sizes.k]
        starts = ask_starts(function, sizes, self._device)
        ends = ask_ends(function, sizes, torch.ops.tangram.longest_document(starts, flat))
        cells = ask_cells(function, sizes, torch.ops.tangram.mask_distances(starts, ends, flat))
        name: Tensor = torch.ops.tangram.model_mask(starts, ends, cells, self.padding, self._offset, flat)
        return name


def traced_mask(
    batch: int,
    q: tuple[Any, int],
    k: Span,
    function: MaskFunction | None,
    padding: Tensor | None,
    device: Any,
) -> TracedMask:
    """q: offset and length of the queries; a tensor as offset is compared while the graph runs with that of queries
    which end where the keys do."""
    offset, length = q
    behind = None
    if isinstance(offset, Tensor):
        behind, offset = offset, k[0] + k[1] - length
    if device is None and padding is not None:
        device = padding.device
    return TracedMask(function, Sizes(batch, (offset, length), k), padding, behind, device or torch.device("cpu"))


def _fact(value: int | bool | None) -> int:
    return NONE if value is None else int(value)


def _described(call: LayerCall) -> list[int]:
    config = getattr(call.module, "config", None)
    return [
        _fact(call.sliding_window),
        _fact(call.is_causal),
        _fact(getattr(call.module, "is_causal", None)),
        _fact(getattr(call.module, "sliding_window", None)),
        _fact(getattr(config, "sliding_window", None)),
        _fact(getattr(config, "attention_chunk_size", None)),
    ]


def _borders(value: Any) -> Tensor | None:
    return value if value is None or isinstance(value, Tensor) else torch.tensor(value)


def _refuse_scores(call: LayerCall) -> None:
    if call.attention_mask is not None and not isinstance(call.attention_mask, (TracedMask, ModelMask)):
        raise InvalidArgument(
            f"{NAME}: masks of scores cannot be read; pass a tangram.Mask as tangram_mask "
            f"(got {type(call.attention_mask).__name__})"
        )


def traced_layer_mask(call: LayerCall, given: Any) -> _held.HeldMask:
    """layer_mask of _layer.py, read while the graph runs."""
    _refuse_scores(call)
    cu_q, cu_k = (_borders(cu) for cu in call.cu_seq_lens)
    lengths = [call.batch, call.q_length, call.kv_length]
    kind = call.kind or ""
    mask = call.attention_mask
    if given is None:
        model = None if mask is None else mask.name
        name = torch.ops.tangram.layer_mask(
            model, None, call.position_ids, cu_q, cu_k, lengths, [], [], kind, _described(call)
        )
        return _held.HeldMask(name)
    kinds = tuple(given) if isinstance(given, Mapping) else ()
    masks = tuple(given.values()) if isinstance(given, Mapping) else (given,)
    for one in masks:
        if not isinstance(one, Mask):
            raise InvalidArgument(f"{NAME}: tangram_mask must be a tangram.Mask (got {type(one).__name__})")
    # An eager model's mask comes by its name, which knows its padding.
    model = mask.name if isinstance(mask, ModelMask) else None
    padding = mask.padding if isinstance(mask, TracedMask) else None
    optional = (model, padding, call.position_ids, cu_q, cu_k)
    present = tuple(x is not None for x in optional)
    _make_name_of_given()
    tensors = tuple(x for x in optional if x is not None)
    return _held.HeldMask(_name_of_given(tensors, present, tuple(lengths), masks, kinds, kind, tuple(_described(call))))


def _of_given(
    tensors: tuple[Tensor, ...],
    present: tuple[bool, ...],
    lengths: tuple[int, ...],
    masks: tuple[Mask, ...],
    kinds: tuple[str, ...],
    kind: str,
    described: tuple[int, ...],
) -> Tensor:
    """Without None, which nonstrict_trace does not know."""
    left = iter(tensors)
    optional = [next(left) if there else None for there in present]
    places = [_place(mask) for mask in masks]
    name: Tensor = torch.ops.tangram.layer_mask(*optional, list(lengths), places, list(kinds), kind, list(described))
    return name


_name_of_given: Any = None
"""_of_given as a graph calls it."""


def _make_name_of_given() -> tuple[()]:
    """With the first graph: the compiler takes long to import."""
    global _name_of_given
    if _name_of_given is None:
        nonstrict_trace = getattr(torch._dynamo, "nonstrict_trace", None)
        _name_of_given = _of_given if nonstrict_trace is None else nonstrict_trace(_of_given)
    return ()


_make_name_of_given._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as assume_constant_result


def traced_layer_key(call: LayerCall, given: Any) -> Any:
    """layer_key of _layer.py. Keys are planned outside of graphs, so a graph narrows none."""
    _refuse_scores(call)
    key = chosen_of_kind(call, given, "tangram_key")
    if call.batch != 1:
        raise InvalidArgument(f"{NAME}: with tangram_key the batch is one packed sequence (got batch={call.batch})")
    mask = call.attention_mask
    if mask is not None and (mask.padding if isinstance(mask, TracedMask) else mask.given_padding) is not None:
        raise InvalidArgument(
            f"{NAME}: under torch.compile attention_mask must be None beside tangram_key, which says what is visible "
            "(got one)"
        )
    if any(cu is not None for cu in call.cu_seq_lens):
        raise InvalidArgument(
            f"{NAME}: under torch.compile cu_seq_lens must be None beside tangram_key; make the key of a mask with "
            "these documents (got cu_seq_lens)"
        )
    rows = getattr(key, "total_seqlen_q", 0), getattr(key, "total_seqlen_k", 0)
    if limits_of_caller(call, given, rows, None) != NO_LIMITS:
        raise InvalidArgument(
            f"{NAME}: under torch.compile layers with a sliding_window need a key of their own; pass tangram_key as a "
            "mapping {'full_attention': ..., 'sliding_attention': ...} "
            f"(got one key for all layers, sliding_window={call.sliding_window})"
        )
    return key
