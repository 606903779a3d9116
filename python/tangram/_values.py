# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Copies and pickles of masks, plans and configs: for checkpoints, config systems and worker processes."""

from __future__ import annotations

import copyreg
from typing import Any, TypeVar

from . import _core
from ._core import AttnSlice, Mask, Plan, Range
from .errors import InvalidArgument

Value = TypeVar("Value")


def _properties(kind: type) -> tuple[str, ...]:
    """The fields of a config, whose constructor takes what its properties show."""
    return tuple(name for name, value in vars(kind).items() if isinstance(value, property))


_FIELDS: dict[type, tuple[str, ...]] = {
    Range: ("begin", "end"),
    AttnSlice: ("q_range", "k_range", "min_diag", "max_diag"),
    Mask: ("seqlen_q", "seqlen_k", "slices"),
}
for _name in vars(_core):
    if _name in ("AttnOptions", "CostModel", "HeadDimRate") or _name.endswith("Config"):
        _FIELDS[getattr(_core, _name)] = _properties(getattr(_core, _name))


def changed(value: Value, **changes: Any) -> Value:
    """A copy of a config with other values in these fields."""
    kind: Any = type(value)
    result: Value = kind(**{name: changes.get(name, getattr(value, name)) for name in _FIELDS[kind]})
    return result


def _make(kind: type, fields: dict[str, Any]) -> Any:
    return kind(**fields)


def _reduce(value: Any) -> tuple[Any, ...]:
    return _make, (type(value), {name: getattr(value, name) for name in _FIELDS[type(value)]})


def _make_mask(seqlen_q: int, seqlen_k: int, slices: bytes) -> Mask:
    kind: Any = Mask
    mask: Mask = kind._of_bytes(seqlen_q, seqlen_k, slices)
    return mask


def _reduce_mask(mask: Any) -> tuple[Any, ...]:
    """Without an object for each of its slices, of which there may be tens of thousands."""
    return _make_mask, (mask.seqlen_q, mask.seqlen_k, mask._bytes_of_slices())


def _make_plan(text: str) -> Plan:
    return Plan.from_json(text)


def _reduce_plan(plan: Plan) -> tuple[Any, ...]:
    if plan.mask.seqlen_q != plan.q_dispatch.seqlen:
        raise InvalidArgument("tangram: a plan of masks of head groups cannot be pickled: plan the masks anew")
    return _make_plan, (plan.to_json(),)


for _kind in _FIELDS:
    copyreg.pickle(_kind, _reduce)
copyreg.pickle(Mask, _reduce_mask)
copyreg.pickle(Plan, _reduce_plan)
