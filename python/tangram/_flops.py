# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of attention by the visible area of its mask, for torch.utils.flop_counter and what counts by it.

A visible (query, key) pair of a query head costs 2 dim + 2 dim_v forward, for the products with K and V. Backward has
five products and costs 6 dim + 4 dim_v: 2.5 times as much for equal dims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._watched import was_recalled


def _import_counter() -> Any:
    """Without the warning that it gives where there is no triton: programs that count nothing would get it too."""
    log = logging.getLogger("torch.utils.flop_counter")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        from torch.utils import flop_counter
    finally:
        log.setLevel(level)
    return flop_counter


_counter = _import_counter()


def register(operator: Any, pairs_of: Callable[..., int]) -> None:
    """`pairs_of` takes the operator's arguments: how many pairs are visible, over all query heads of this process."""

    def forward(*arguments: Any, out_val: Any = None) -> int:
        if was_recalled():
            return 0
        q, v = arguments[0], arguments[2]
        return pairs_of(*arguments) * forward_flops(q, v)

    _add(operator, forward)


def register_backward(operator: Any, pairs_of: Callable[..., int]) -> None:
    """Like `register`, for a backward operator, whose arguments behind dout are q, k and v."""

    def backward(*arguments: Any, out_val: Any = None) -> int:
        q, v = arguments[1], arguments[3]
        return pairs_of(*arguments) * backward_flops(q, v)

    _add(operator, backward)


def forward_flops(q: Tensor, v: Tensor) -> int:
    """Forward FLOPs of a visible pair."""
    return 2 * (q.shape[2] + v.shape[2])


def backward_flops(q: Tensor, v: Tensor) -> int:
    return 6 * q.shape[2] + 4 * v.shape[2]


def _add(operator: Any, formula: Callable[..., int]) -> None:
    _counter.register_flop_formula(operator, get_raw=True)(formula)
    # A counter that is at work already has copied the table.
    for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        table = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if isinstance(table, dict):
            table[operator] = formula
