# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of the published API, and what it means for Tangram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from .. import _core
from .._values import changed
from ..errors import InvalidArgument
from ._algorithms import DispatchAlg, MinHeapDispatchAlg, OverlapAlg, UniformOverlapAlg
from ._enums import AttnOverlapMode
from ._environment import Environment
from ._orders import by_name

_BYTES = 2
"""Bytes of an element on the wire, in bfloat16."""


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise InvalidArgument(text)


def _set(config: Any, order: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Fields of a frozen configuration, with positional arguments in this order."""
    own = [each.name for each in fields(config)]
    given = by_name(type(config).__name__, own, order, args, kwargs)
    for each in fields(config):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        object.__setattr__(config, each.name, given.get(each.name, default))


@dataclass(frozen=True, init=False)
class DispatchConfig:
    """How rows are assigned to ranks.

    Positional arguments come as in 1.0, where alg is first, or as in 1.1: chunk_size, uneven_shard, alg.

    Args:
        chunk_size: rows of a chunk, None: the planner's choice.
        uneven_shard: ranks hold equally many rows here. True is taken where they do without padding, and a key is
            refused where they would not.
    """

    alg: DispatchAlg = field(default_factory=MinHeapDispatchAlg)
    chunk_size: int | None = None
    uneven_shard: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        is_of_1_0 = len(args) > 0 and not (args[0] is None or isinstance(args[0], int))
        order = ("alg", "chunk_size", "uneven_shard") if is_of_1_0 else ("chunk_size", "uneven_shard", "alg")
        _set(self, order, args, kwargs)
        self.__post_init__()

    def __post_init__(self) -> None:
        _require(
            isinstance(self.alg, DispatchAlg),
            f"DispatchConfig: alg must be a dispatch algorithm, such as MinHeapDispatchAlg() (got alg={self.alg!r})",
        )
        _require(
            type(self.uneven_shard) is bool,
            f"DispatchConfig: uneven_shard must be True or False (got uneven_shard={self.uneven_shard!r})",
        )


@dataclass(frozen=True, init=False)
class OverlapConfig:
    """In how many stages remote rows come.

    Positional arguments come as in 1.0, where enable is first, or as in later versions, where mode is.

    Args:
        enable: False for one stage. mode: STATIC with a degree, DYNAMIC with none, which leaves it to the planner.
        degree: remote stages; 0 and 1: one.
        dynamic_max_degree: the most stages that the planner may choose; None: no bound.
        min_chunk_size, max_num_chunks: rows that a stage has at least; the most stages.
        calc_cost_factor, comm_cost_factor: microseconds for a visible (query, key) pair, and for a K/V row; at 1.0
            Tangram's own cost model is taken.
    """

    enable: bool = True
    mode: AttnOverlapMode = AttnOverlapMode.STATIC
    degree: int | None = 1
    dynamic_max_degree: int | None = 8
    min_chunk_size: int = 512
    max_num_chunks: int = 64
    alg: OverlapAlg = field(default_factory=UniformOverlapAlg)
    calc_cost_factor: float = 1.0
    comm_cost_factor: float = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        order = [each.name for each in fields(self)]
        _set(self, order if not args or type(args[0]) is bool else order[1:], args, kwargs)
        self.__post_init__()

    @property
    def no_overlap(self) -> bool:
        return self.degree == 0

    def __post_init__(self) -> None:
        name = "OverlapConfig"
        _require(type(self.enable) is bool, f"{name}: enable must be a bool (got enable={self.enable!r})")
        _require(
            isinstance(self.mode, AttnOverlapMode),
            f"{name}: mode must be AttnOverlapMode.STATIC or DYNAMIC (got mode={self.mode!r})",
        )
        for each in ("min_chunk_size", "max_num_chunks", "calc_cost_factor", "comm_cost_factor"):
            _require(getattr(self, each) > 0, f"{name}: {each} must be positive (got {each}={getattr(self, each)})")
        _require(
            isinstance(self.alg, OverlapAlg),
            f"{name}: alg must be an overlap algorithm, such as UniformOverlapAlg() (got alg={self.alg!r})",
        )
        most = self.dynamic_max_degree
        _require(most is None or most > 0, f"{name}: dynamic_max_degree must be positive or None (got {most})")
        _require(
            self.degree is None or type(self.degree) is int,
            f"{name}: degree must be an integer, or None (got degree={self.degree!r})",
        )
        if not self.enable:
            return
        if self.degree is None:
            _require(
                self.mode is AttnOverlapMode.DYNAMIC,
                f"{name}: a static overlap needs a degree; for none pass mode=AttnOverlapMode.DYNAMIC "
                f"(got mode={self.mode}, degree=None)",
            )
            return
        _require(
            self.mode is AttnOverlapMode.STATIC or self.degree <= 1,
            f"{name}: a dynamic overlap has no degree, which must be None (got degree={self.degree})",
        )
        _require(
            0 <= self.degree <= max(1, self.max_num_chunks),
            f"{name}: degree must lie in [0, max_num_chunks] (got degree={self.degree}, "
            f"max_num_chunks={self.max_num_chunks})",
        )

    def num_stages(self, remote_rows: int) -> int:
        """Stages of a pass that receives at most `remote_rows` rows; 0: the planner's choice."""
        if not self.enable:
            return 1
        if self.degree is None:
            return 0
        return max(1, min(self.degree, self.max_num_chunks, remote_rows // self.min_chunk_size))

    def bounded(self, plan: _core.Plan) -> _core.OverlapConfig | None:
        """At most dynamic_max_degree stages, where the planner chose more; None: it did not."""
        most, rank = self.dynamic_max_degree, plan.ranks[0]  # all ranks have equally many
        chosen = [max(1, len(stages) - 1) for stages in (rank.forward, rank.backward)]  # without the local one
        if self.degree is not None or most is None or not self.enable or max(chosen) <= most:
            return None
        overlap = plan.config.overlap
        return changed(overlap, num_stages_fwd=min(chosen[0], most), num_stages_bwd=min(chosen[1], most))


@dataclass(frozen=True)
class GrpCollConfig:
    """Kernels and buffers of the published group collectives. Tangram's transports have none of them: values take
    effect nowhere, as there, unless MAGI_ATTENTION_NATIVE_GRPCOLL=1; then others than these are refused."""

    num_sms: int = 24
    nvl_chunk_size: int = 8
    nvl_buffer_size: int = 256
    rdma_chunk_size: int = 4
    rdma_buffer_size: int = 128
    num_nvl_bytes: int = int(2e9)
    num_rdma_bytes: int = 0


@dataclass(frozen=True)
class DistAttnConfig:
    """The three parts of a configuration."""

    dispatch_config: DispatchConfig = field(default_factory=DispatchConfig)
    overlap_config: OverlapConfig = field(default_factory=OverlapConfig)
    grpcoll_config: GrpCollConfig = field(default_factory=GrpCollConfig)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, kind = getattr(self, each.name), type(each.default_factory())  # type: ignore[misc]
            _require(
                isinstance(value, kind),
                f"DistAttnConfig: {each.name} must be a {kind.__name__} of tangram.magi (got {value!r:.120})",
            )


def to_tangram(
    config: DistAttnConfig, env: Environment, heads: _core.HeadConfig, chunk_size: int, remote_rows: int
) -> _core.DistAttnConfig:
    """The configuration of Tangram that means the same. chunk_size 0: the planner chooses."""
    if env.native_grpcoll and config.grpcoll_config != GrpCollConfig():
        raise InvalidArgument(
            "GrpCollConfig: Tangram's transports have no such kernels and buffers, values must be left at their "
            f"defaults with MAGI_ATTENTION_NATIVE_GRPCOLL=1 (got {config.grpcoll_config})"
        )
    overlap = config.overlap_config
    stages = overlap.num_stages(remote_rows)
    movement = _core.MovementConfig()
    if env.qo_comm:
        movement = _core.MovementConfig("auto", heads.num_heads_kv if env.flatten_head_groups else 0)
        stages = 0  # there, too, such plans have no stages
    elif env.flatten_head_groups:
        raise InvalidArgument(
            "MAGI_ATTENTION_FLATTEN_HEAD_GROUPS: head groups are assigned separately only where queries move: set "
            "MAGI_ATTENTION_QO_COMM=1 too (got MAGI_ATTENTION_QO_COMM=0)"
        )
    return _core.DistAttnConfig(
        dispatch=_core.DispatchConfig(config.dispatch_config.alg.tangram_name, chunk_size),
        overlap=_core.OverlapConfig(stages, stages, env.bwd_hide_tail_reduce, "auto", env.sm_margin),
        cost=_cost(overlap, heads),
        movement=movement,
    )


def _cost(overlap: OverlapConfig, heads: _core.HeadConfig) -> _core.CostModel:
    cost = _core.CostModel()
    if overlap.calc_cost_factor != 1.0:
        # Two products of a pair, two operations each, and five products in the backward pass.
        flops = 4 * heads.num_heads_q * heads.head_dim
        rate = flops / (overlap.calc_cost_factor * 1e-6)
        # Rates of these very heads, so that no factor of their head dim comes on top.
        cost = changed(cost, forward_flops_per_s=rate, backward_flops_per_s=rate, head_dim_rates=[])
    if overlap.comm_cost_factor != 1.0:
        row_bytes = _BYTES * heads.num_heads_kv * (heads.head_dim + heads.head_dim_v)
        cost = changed(cost, link_bytes_per_s=row_bytes / (overlap.comm_cost_factor * 1e-6))
    return cost
