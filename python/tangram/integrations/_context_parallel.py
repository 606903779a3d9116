# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""context_parallel(model, mesh): a causal language model of Transformers takes whole batches and computes its rows."""

from __future__ import annotations

import functools
import inspect
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._core import DistAttnConfig
from ..errors import InvalidArgument
from ._attention import NAME as IMPLEMENTATION
from ._attention import register
from ._batch_arguments import Arguments, arguments_of
from ._batch_keys import NAME, Batch, BatchKeys, heads_of_config
from ._positions import WholePositions

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "phi3")
"""Whose losses and gradients the tests compare with one process."""
_STATE = "_tangram_context_parallel"
_INNER = "_tangram_whole_forward"


class _State:
    def __init__(self, model: Any, group: Any, process_groups: list[Any], needs_labels: bool) -> None:
        self.config = model.config.get_text_config()
        self.group = group
        self.process_groups = process_groups
        self.needs_labels = needs_labels
        self.positions = WholePositions(model)
        self.checked: set[Any] = set()
        self.generating = False

    def __deepcopy__(self, memo: object) -> _State:
        return self

    def refuse(self, reason: str) -> InvalidArgument:
        """All ranks get the same batch, so all refuse it; a rank that does not is told instead of left waiting."""
        self.group.refuse(-1, reason)
        return InvalidArgument(reason)

    def over_ranks(self, x: Tensor) -> Tensor:
        x = x.clone()
        for group in self.process_groups:
            dist.all_reduce(x, group=group)
        return x


def context_parallel(model: Any, cp_group_or_mesh: Any = None, *, needs_labels: bool = False) -> Any:
    """Makes `model(...)` take the whole batch on every rank of the group and compute this rank's rows of it.

    Sets attn_implementation="tangram". Masks, positions and labels keep the meaning that they have in one process:
    padding on either side, packed documents, windows, chunks, tangram_mask. Each layer attends over all ranks.

    The loss is this rank's part: its mean over the group's ranks is the batch's loss, as DDP and FSDP average
    gradients. With num_items_in_batch its sum is, as Trainer expects. Without gradients it is the mean, on every rank.
    Logits are `[1, rows, vocabulary]` of this rank's rows, which tangram.undispatch(logits[0], key) makes whole with
    key=tangram.get_most_recent_key(group). `generate` runs whole on every rank.

    Args:
        model: a causal language model of one of MODEL_TYPES; changed in place.
        cp_group_or_mesh: ranks that share a batch, as of mask_key. Gradients are averaged over them by DDP or FSDP.
        needs_labels: whether to refuse training steps without labels, whose loss would be made of other rows.

    Returns:
        model.

    Raises:
        InvalidArgument: other models; tensor parallelism. A call raises it on every rank, before anything is computed.
            Causes: batches that differ between ranks, 4D masks, caches, attention dropout, router losses,
            logits_to_keep, and tensors whose rows are not known.
    """
    from .._torch_group import torch_group

    register()
    _check_model(model)
    group = torch_group(cp_group_or_mesh)
    state: _State | None = model.__dict__.get(_STATE)
    if state is not None:
        if state.group is not group:
            raise InvalidArgument(f"{NAME}: a model is computed over one group of ranks (got another one for it)")
        state.needs_labels = state.needs_labels or needs_labels
        return model
    model.set_attn_implementation(IMPLEMENTATION)
    model.__dict__[_STATE] = _State(model, group, _process_groups(cp_group_or_mesh), needs_labels)
    model.__dict__[_INNER] = model.forward
    model.forward = MethodType(functools.wraps(type(model).forward)(_forward), model)
    model.generate = MethodType(functools.wraps(type(model).generate)(_generate), model)
    return model


def _process_groups(group_or_mesh: Any) -> list[Any]:
    if hasattr(group_or_mesh, "mesh"):
        return [group_or_mesh.get_group(dim) for dim in range(group_or_mesh.ndim)]
    return [dist.group.WORLD if group_or_mesh is None else group_or_mesh]


def _check_model(model: Any) -> None:
    from transformers import PreTrainedModel

    names = {kind.__name__ for kind in type(model).__mro__}
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(model, PreTrainedModel) or not any(name.endswith("ForCausalLM") for name in names):
        raise InvalidArgument(
            f"{NAME}: model must be a causal language model of Transformers; pass tangram_key to models of your own "
            f"(got {type(model).__name__})"
        )
    if kind not in MODEL_TYPES:
        raise InvalidArgument(
            f"{NAME}: model_type must be one of {', '.join(MODEL_TYPES)}; pass tangram_key to other models "
            f"(got model_type={kind!r})"
        )
    if (getattr(model, "tp_size", None) or 1) > 1:
        raise InvalidArgument(
            f"{NAME}: the model must not be sharded by tensor parallelism; pass tangram_key of this rank's heads "
            f"(got tp_size={model.tp_size})"
        )


def _generate(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Whole on every rank: caches of a rank hold all keys."""
    state: _State = self.__dict__[_STATE]
    before, state.generating = state.generating, True
    try:
        return type(self).generate(self, *args, **kwargs)
    finally:
        state.generating = before


@torch.compiler.disable  # type: ignore[misc]
def _prepare(
    self: Any, state: _State, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Arguments, BatchKeys, dict[str, Any]]:
    """What the host does before the model runs: the batch, its keys, and what the model itself gets."""
    names = inspect.signature(type(self).forward).parameters
    kwargs |= dict(zip([name for name in names if name != "self"], args, strict=False))
    try:
        given = arguments_of(state.config, kwargs, self.training, state.needs_labels and torch.is_grad_enabled())
        keys = _keys_of(state, given)
    except InvalidArgument as error:
        raise state.refuse(str(error)) from None
    state.group.group.require_agreement(given.fingerprint(), f"the batch of {NAME}, alike on all ranks of the group,")
    return given, keys, _local(given, keys, state.group.size)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    state: _State = self.__dict__[_STATE]
    inner = self.__dict__[_INNER]
    if state.generating:
        return inner(*args, **kwargs)
    given, keys, local = _prepare(self, state, args, kwargs)
    with state.positions.of(given.positions):
        outputs = inner(**local)
    if keys.num_layer_masks == 0:
        raise InvalidArgument(f"{NAME}: attn_implementation must stay 'tangram' (got a model without such a layer)")
    return outputs if torch.is_grad_enabled() else _over_ranks(state, outputs, given, keys)


def _keys_of(state: _State, given: Arguments) -> BatchKeys:
    from .._keys import key_of_heads

    batch = Batch(state.config, given.padding, given.positions, given.borders, given.mask)
    mask = batch.largest()
    key = key_of_heads(mask, heads_of_config(state.config), state.group, None, DistAttnConfig())
    return BatchKeys(batch, mask, key, state.checked)


def _local(given: Arguments, keys: BatchKeys, ranks: int) -> dict[str, Any]:
    """What the model itself gets: one sequence of this rank's rows."""
    from .._rows import dispatch, get_position_ids

    key = keys.key
    local: dict[str, Any] = {**given.others, "use_cache": False, "tangram_key": keys}
    local["position_ids"] = dispatch(given.positions.flatten(), key)[None]
    if given.input_ids is not None:
        local["input_ids"] = dispatch(given.input_ids.flatten(), key)[None]
    if given.inputs_embeds is not None:
        rows = get_position_ids(key, device=given.inputs_embeds.device)
        # Each rank has the gradient of its own rows, as it has of parameters; dispatch would add up all of them.
        local["inputs_embeds"] = given.inputs_embeds.flatten(0, 1).index_select(0, rows)[None]
    # Transformers looks for documents in position_ids unless there is a mask; layers take neither from it.
    local["attention_mask"] = torch.ones_like(local["position_ids"])
    if given.shift_labels is not None:
        labels = dispatch(given.shift_labels.flatten(), key, pad_value=-100)[None]
        local["labels"] = local["shift_labels"] = labels
        if local.get("num_items_in_batch") is None:
            local["num_items_in_batch"] = (given.shift_labels != -100).sum() / ranks
    return local


def _over_ranks(state: _State, outputs: Any, given: Arguments, keys: BatchKeys) -> Any:
    """Gives every rank the same loss, so that an evaluation may take that of any rank. And what TRL's fused head
    computes of each token, whose sum it divides by the number of tokens that it sees."""
    from .._rows import undispatch

    if given.shift_labels is None:
        return outputs
    if not isinstance(outputs, dict):
        return (state.over_ranks(outputs[0]) / state.group.size, *outputs[1:])
    if outputs.get("loss") is not None:
        outputs["loss"] = state.over_ranks(outputs["loss"]) / state.group.size
    if isinstance(of_tokens := outputs.get("label_mask"), Tensor):
        for name, value in list(outputs.items()):
            if isinstance(value, Tensor) and value.shape == of_tokens.shape:
                with torch.autocast(value.device.type, enabled=False):  # which knows no rows of bytes
                    outputs[name] = undispatch(value[0], keys.key).view(given.positions.shape)
    return outputs
