# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction of Megatron-Core over dispatched rows: its roll_tensor, which knows a zigzag of rows alone."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidArgument
from ._megatron_attention import SequenceParams

_NAME = "ContextParallel"


def install_roll() -> None:
    """Replaces roll_tensor for batches of ContextParallel.dispatch; others are rolled as before."""
    from megatron.core.models.gpt import gpt_model  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from megatron.core.transformer import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        multi_token_prediction,
    )

    theirs = multi_token_prediction.roll_tensor
    if hasattr(theirs, "_tangram_before"):
        return

    def roll_tensor(
        tensor: Tensor, shifts: int = -1, dims: int = -1, cp_group: Any = None, packed_seq_params: Any = None
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(packed_seq_params, SequenceParams):
            result: tuple[Tensor, Tensor] = theirs(tensor, shifts, dims, cp_group, packed_seq_params)
            return result
        return _rolled(tensor, shifts, dims, packed_seq_params)

    roll_tensor._tangram_before = theirs  # type: ignore[attr-defined]
    multi_token_prediction.roll_tensor = gpt_model.roll_tensor = roll_tensor


def _rolled(tensor: Tensor, shifts: int, dims: int, params: SequenceParams) -> tuple[Tensor, Tensor]:
    """Rows `[1, rows]` of what follows each row in its document, 0 after its end; and the mean of the ranks' sums.
    By that mean, the mean of the ranks' losses is the loss of the batch."""
    from .._rows import roll

    if shifts != -1 or dims not in (-1, tensor.dim() - 1) or tensor.shape[0] != 1:
        raise InvalidArgument(
            f"{_NAME}: multi-token prediction must roll [1, rows] by -1 "
            f"(got {list(tensor.shape)}, shifts={shifts}, dims={dims})"
        )
    result = roll(tensor[0].contiguous(), params.key, -1).masked_fill(params.last_of_document, 0)[None]
    total = result.detach().sum()
    dist.all_reduce(total, group=params.cp_group)
    return result, total / params.key.group.size
