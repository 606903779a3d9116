# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The orders of positional arguments, which changed from version to version of the published API."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import InvalidArgument

Function = TypeVar("Function", bound=Callable[..., Any])


def is_group_or_mesh(value: Any) -> bool:
    return hasattr(value, "mesh") or (hasattr(value, "rank") and hasattr(value, "size") and not hasattr(value, "shape"))


def in_any_order(anchor: str, is_anchor: Callable[[Any], bool], *orders: str) -> Callable[[Function], Function]:
    """Lets a function be called in any of these orders of positional arguments, beside its own.

    Args:
        anchor: an argument that tells the orders apart. `is_anchor` holds for its values, and for those of no argument
            at its place in another order.
        orders: names with a blank between; the first is that of the function's signature.
    """
    named = [order.split() for order in orders]

    def decorate(function: Function) -> Function:
        name = function.__name__
        own = list(inspect.signature(function).parameters)
        assert own[: len(named[0])] == named[0], (name, own)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            order = _order_of(args, named, anchor, is_anchor)
            return function(**by_name(name, own, order, args, kwargs))

        return call  # type: ignore[return-value]

    return decorate


def by_name(
    name: str, own: Sequence[str], order: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of a call of `name`, whose own those are, with the positional ones in this order."""
    if len(args) > len(order):
        raise InvalidArgument(f"{name}: takes {', '.join(order)} by position (got {len(args)} positional arguments)")
    given = dict(zip(order, args, strict=False))
    twice = sorted(set(given) & set(kwargs))
    if twice:
        raise InvalidArgument(f"{name}: each argument may be given once (got {', '.join(twice)} twice)")
    unknown = sorted(set(kwargs) - set(own))
    if unknown:
        raise InvalidArgument(f"{name}: knows the arguments {', '.join(own)} (got {', '.join(unknown)})")
    return {**given, **kwargs}


def _order_of(args: Sequence[Any], orders: list[list[str]], anchor: str, is_anchor: Callable[[Any], bool]) -> list[str]:
    for order in orders:
        place = order.index(anchor)
        if place < len(args) and is_anchor(args[place]):
            return order
    return orders[0]
