# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The algorithms of the published API as values, and what Tangram calls them.

Results are the same by any of them; they say who holds which rows, and in how many stages rows move.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from ..errors import InvalidArgument
from ._enums import DispatchAlgType, OverlapAlgType


@dataclass(frozen=True)
class DispatchAlg:
    """How chunks are assigned to ranks; one of the classes below."""

    _type: ClassVar[DispatchAlgType]
    _name: ClassVar[str]
    """Name of Tangram's algorithm."""
    _is_optimal: ClassVar[bool] = False
    _returns_partitions: ClassVar[bool] = True
    _is_equal: ClassVar[bool] = True
    _considers_affinity: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self) is DispatchAlg:
            raise TypeError("DispatchAlg is abstract: take MinHeapDispatchAlg() or another of its classes")

    @property
    def type(self) -> DispatchAlgType:
        return self._type

    @property
    def is_optimal(self) -> bool:
        return self._is_optimal

    @property
    def is_partitions_returned(self) -> bool:
        return self._returns_partitions

    @property
    def is_equal_num_workloads(self) -> bool:
        """Published field. Tangram gives every rank as many chunks in any case."""
        return self._is_equal

    @property
    def is_affinity_considered(self) -> bool:
        return self._considers_affinity

    @property
    def tangram_name(self) -> str:
        """The name in tangram.DispatchConfig. Raises InvalidArgument for parameters that it does not have."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                raise InvalidArgument(
                    f"{type(self).__name__}: {each.name} has no counterpart in Tangram and must be left at "
                    f"{each.default} (got {each.name}={value})"
                )
        return self._name


@dataclass(frozen=True)
class LBDispatchAlg(DispatchAlg):
    """Lower bound."""

    _type, _name, _returns_partitions, _is_equal = DispatchAlgType.LOWER_BOUND, "lower_bound", False, False


@dataclass(frozen=True)
class DPDispatchAlg(DispatchAlg):
    """Dynamic programming."""

    _type, _name = DispatchAlgType.DYNAMIC_PROGRAMMING, "dynamic_programming"
    _is_optimal, _returns_partitions, _is_equal = True, False, False


@dataclass(frozen=True)
class BSDispatchAlg(DispatchAlg):
    """Binary search for the least largest load: here the algorithm that exchanges chunks until no load is larger than
    the lower bound."""

    _type, _name, _is_optimal, _is_equal = DispatchAlgType.BINARY_SEARCH, "lower_bound", True, False


@dataclass(frozen=True)
class MinHeapDispatchAlg(DispatchAlg):
    """The heaviest chunk to the least loaded rank; the default there."""

    _type, _name = DispatchAlgType.MIN_HEAP, "min_heap"


@dataclass(frozen=True)
class ToppHeapDispatchAlg(DispatchAlg):
    """Like MinHeapDispatchAlg, which it equals with top_p 0."""

    _type, _name, _considers_affinity = DispatchAlgType.TOPP_HEAP, "min_heap", True
    top_p: float = 0.0


@dataclass(frozen=True)
class BatchToppHeapDispatchAlg(DispatchAlg):
    """In batches of a chunk for each rank."""

    _type, _name, _considers_affinity = DispatchAlgType.BATCH_TOPP_HEAP, "batch_topp", True
    top_p: float = 0.0
    num_of_select_chunk: int = 1


@dataclass(frozen=True)
class RandomSelectDispatchAlg(DispatchAlg):
    """A shuffle."""

    _type, _name = DispatchAlgType.RANDOM_SELECT, "random"


@dataclass(frozen=True)
class SequentialDispatchAlg(DispatchAlg):
    """Contiguous rows."""

    _type, _name = DispatchAlgType.SEQUENTIAL_SELECT, "sequential"


@dataclass(frozen=True)
class SortedSequentialSelectAlg(DispatchAlg):
    """Chunks sorted by their area, assigned to the ranks in turn."""

    _type, _name = DispatchAlgType.SORTED_SEQUENTIAL_SELECT, "sorted_sequential"
    allocation_ratio: float = 1.0


@dataclass(frozen=True)
class OverlapAlg:
    """How remote rows are assigned to stages; one of the classes below."""

    _type: ClassVar[OverlapAlgType]

    def __post_init__(self) -> None:
        if type(self) is OverlapAlg:
            raise TypeError("OverlapAlg is abstract: take UniformOverlapAlg() or GreedyOverlapAlg()")

    @property
    def type(self) -> OverlapAlgType:
        return self._type

    @property
    def is_optimal(self) -> bool:
        return False


@dataclass(frozen=True)
class UniformOverlapAlg(OverlapAlg):
    """Stages of equal size. random_costs shuffles what goes into which stage there; results do not depend on it, and
    it has no effect here."""

    _type = OverlapAlgType.UNIFORM
    random_costs: bool = False
    random_seed: int | None = None


@dataclass(frozen=True)
class GreedyOverlapAlg(OverlapAlg):
    """Here the stages of Tangram's planner; published, but not implemented there."""

    _type = OverlapAlgType.GREEDY
