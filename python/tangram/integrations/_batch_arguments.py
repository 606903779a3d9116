# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a model's forward as the whole batch that they are, checked: what cannot be computed row by row is
refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidArgument

_NAME = "context_parallel"
_DROPPED = ("max_length_q", "max_length_k", "seq_idx")
"""Arguments of packed documents, beside cu_seq_lens, for other kernels."""


@dataclass
class Arguments:
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    positions: Tensor
    """`[batch, length]`."""
    padding: Tensor | None
    """`[batch, length]` bool, False for padding."""
    shift_labels: Tensor | None
    """`[batch, length]`: of each token the label of the next one."""
    borders: tuple[Any, Any]
    """cu_seq_lens_q and cu_seq_lens_k."""
    mask: Any
    """tangram_mask."""
    others: dict[str, Any]

    def fingerprint(self) -> int:
        """Hash of tokens, positions, labels and padding, 63 bits: compared between ranks. Waits for a GPU."""
        parts = [x for x in (self.input_ids, self.positions, self.shift_labels, self.padding) if x is not None]
        rows = torch.arange(self.positions.numel(), device=self.positions.device)
        sums = [((x.flatten().long() + 131) * (2654435761 * rows + 97)).sum() for x in parts]
        return hash((tuple(self.positions.shape), *torch.stack(sums).tolist())) & (2**63 - 1)


def arguments_of(config: Any, given: dict[str, Any], training: bool, needs_labels: bool) -> Arguments:
    """Raises InvalidArgument by the name of the argument."""
    _check_config(config, training)
    given = {name: value for name, value in given.items() if name not in _DROPPED and value is not None}
    ids, embeds = given.pop("input_ids", None), given.pop("inputs_embeds", None)
    if (ids is None) == (embeds is None) or (ids is not None and ids.dim() != 2):
        raise _refused("input_ids must be [batch, length], or inputs_embeds be given instead", _text(ids))
    tokens = ids if embeds is None else embeds
    shape = tuple(tokens.shape[:2])
    padding, positions = given.pop("attention_mask", None), given.pop("position_ids", None)
    if padding is not None and not (isinstance(padding, Tensor) and tuple(padding.shape) == shape):
        raise _refused(
            f"attention_mask must be None or {list(shape)}, 0 for padding; pass tangram_mask for masks of your own",
            f"attention_mask={_text(padding)}",
        )
    if positions is None:
        positions = torch.arange(shape[1], device=tokens.device)[None]
    if (
        not isinstance(positions, Tensor)
        or positions.dim() != 2
        or tuple(positions.shape) not in (shape, (1, shape[1]))
    ):
        raise _refused(f"position_ids must be {list(shape)}", f"position_ids={_text(positions)}")
    labels, shifted = given.pop("labels", None), given.pop("shift_labels", None)
    for name, value in (("labels", labels), ("shift_labels", shifted)):
        if value is not None and tuple(value.shape) != shape:
            raise _refused(f"{name} must be {list(shape)}", f"{name}={_text(value)}")
    if labels is None and needs_labels:
        raise _refused(
            "labels must be given, or the loss would be made of logits of this rank's rows and of all labels, as "
            "compute_loss_func and label_smoothing_factor do",
            "labels=None",
        )
    if shifted is None and labels is not None:
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    borders = given.pop("cu_seq_lens_q", None), given.pop("cu_seq_lens_k", None)
    mask = given.pop("tangram_mask", None)
    _check_others(given)
    return Arguments(
        input_ids=ids,
        inputs_embeds=embeds,
        positions=positions.to(tokens.device).expand(shape),
        # Beside a mask Transformers forgets the documents in position_ids, also if it hides nothing.
        padding=None if padding is None or bool(padding.all()) else padding.bool(),
        shift_labels=None if labels is None else shifted,
        borders=borders,
        mask=mask,
        others=given,
    )


def _check_config(config: Any, training: bool) -> None:
    implementation = getattr(config, "_attn_implementation", None)
    if implementation != "tangram":
        raise _refused("attn_implementation must stay 'tangram'", f"attn_implementation={implementation!r}")
    dropout = getattr(config, "attention_dropout", 0.0) or 0.0
    if training and dropout:
        raise _refused("attention_dropout must be 0", f"attention_dropout={dropout}")
    if getattr(config, "output_router_logits", False):
        raise _refused(
            "output_router_logits must be False, since the router's loss is no sum over rows",
            "output_router_logits=True",
        )


def _check_others(given: dict[str, Any]) -> None:
    for name in ("use_cache", "output_router_logits", "output_attentions"):
        if given.pop(name, False):
            raise _refused(f"{name} must be False", f"{name}=True")
    for name in ("past_key_values", "cache", "tangram_key"):
        if name in given:
            raise _refused(f"{name} must be None", f"{name}={_text(given[name])}")
    keep = given.pop("logits_to_keep", 0)
    if isinstance(keep, Tensor) or keep != 0:
        raise _refused("logits_to_keep must be 0, which is all rows of this rank", f"logits_to_keep={_text(keep)}")
    for name, value in given.items():
        if isinstance(value, Tensor) and name != "num_items_in_batch":
            raise _refused(f"{name} must be None, since its rows are not known", f"{name}={_text(value)}")


def _text(value: Any) -> str:
    return f"{type(value).__name__}{list(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"


def _refused(requirement: str, got: str) -> InvalidArgument:
    return InvalidArgument(f"{_NAME}: {requirement} (got {got})")
