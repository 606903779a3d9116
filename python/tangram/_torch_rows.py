# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""dispatch, undispatch and roll as operators of torch.compile, which name a key by its number as calc_attn does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._rows import gathered, rolled, shard_of
from ._runtime_key import Side, key_of_handle

torch.library.define("tangram::dispatch", "(Tensor x, SymInt key, Scalar pad_value, str side, SymInt rows) -> Tensor")
torch.library.define("tangram::undispatch", "(Tensor x, SymInt key, str side, SymInt total) -> Tensor")
torch.library.define("tangram::roll", "(Tensor x, SymInt key, SymInt shifts, str side) -> Tensor")


@torch.library.impl("tangram::dispatch", "CompositeExplicitAutograd")
def _dispatch(x: Tensor, key: int, pad_value: float, side: Side, _: int) -> Tensor:
    return shard_of(x, key_of_handle(key), pad_value, side)


@torch.library.impl("tangram::undispatch", "CompositeExplicitAutograd")
def _undispatch(x: Tensor, key: int, side: Side, _: int) -> Tensor:
    return gathered(x, key_of_handle(key), side)


@torch.library.impl("tangram::roll", "CompositeExplicitAutograd")
def _roll(x: Tensor, key: int, shifts: int, side: Side) -> Tensor:
    return rolled(x, key_of_handle(key), shifts, side)


@torch.library.register_fake("tangram::dispatch")  # type: ignore[misc]
def _dispatch_fake(x: Tensor, key: int, pad_value: float, side: str, rows: int) -> Tensor:
    return x.new_empty((rows, *x.shape[1:]))


@torch.library.register_fake("tangram::undispatch")  # type: ignore[misc]
def _undispatch_fake(x: Tensor, key: int, side: str, total: int) -> Tensor:
    return x.new_empty((total, *x.shape[1:]))


@torch.library.register_fake("tangram::roll")  # type: ignore[misc]
def _roll_fake(x: Tensor, key: int, shifts: int, side: str) -> Tensor:
    return x.new_empty(x.shape)


def _keep_dispatch(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.key, _, ctx.side, _ = inputs
    ctx.rows = x.shape[0]


def _keep_undispatch(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.key, ctx.side, _ = inputs
    ctx.rows = x.shape[0]


def _keep_roll(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.key, ctx.shifts, ctx.side = inputs


def _dispatch_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.tangram.undispatch(grad, ctx.key, ctx.side, ctx.rows), None, None, None, None


def _undispatch_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.tangram.dispatch(grad, ctx.key, 0.0, ctx.side, ctx.rows), None, None, None


def _roll_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.tangram.roll(grad, ctx.key, -ctx.shifts, ctx.side), None, None, None


torch.library.register_autograd("tangram::dispatch", _dispatch_backward, setup_context=_keep_dispatch)
torch.library.register_autograd("tangram::undispatch", _undispatch_backward, setup_context=_keep_undispatch)
torch.library.register_autograd("tangram::roll", _roll_backward, setup_context=_keep_roll)
