# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the published API."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, TypeAlias

import torch

AttnSinkLayout: TypeAlias = Literal["sh", "shd", "ssh"]
"""`[seqlen_sink, heads]`, `[seqlen_sink, heads, dim]` (refused, there and here), `[rows, seqlen_sink, heads]`."""


class AttnMaskType(Enum):
    """Which cells of a rectangle are visible; AttnMaskType("causal") finds one by its name."""

    FULL = "full"
    CAUSAL = "causal"
    BICAUSAL = "bi_causal"
    INVCAUSAL = "inv_causal"

    @classmethod
    def from_int_type(cls, int_type: int) -> AttnMaskType:
        """Type from its number in attn_type_map: 0 full, 1 causal, 2 inverse causal, 3 both. Raises KeyError for
        others."""
        if not 0 <= int_type < len(_BY_NUMBER):
            raise KeyError(int_type)
        return _BY_NUMBER[int_type]

    def to_int_type(self) -> int:
        return _BY_NUMBER.index(self)


_BY_NUMBER = (AttnMaskType.FULL, AttnMaskType.CAUSAL, AttnMaskType.INVCAUSAL, AttnMaskType.BICAUSAL)

GeneralAttnMaskType: TypeAlias = str | AttnMaskType | Sequence[str | AttnMaskType]


class AttnOverlapMode(Enum):
    """Whether the number of remote stages is given or chosen."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class DispatchAlgType(Enum):
    """What `type` of a dispatch algorithm gives."""

    LOWER_BOUND = "lower_bound"
    DYNAMIC_PROGRAMMING = "dynamic_programming"
    BINARY_SEARCH = "binary_search"
    MIN_HEAP = "min_heap"
    TOPP_HEAP = "topp_heap"
    BACKTRACKING_PRUNING = "backtracing_pruning"  # codespell:ignore backtracing
    RANDOM_SELECT = "random_select"
    SEQUENTIAL_SELECT = "sequential_select"
    BATCH_TOPP_HEAP = "batch_topp_heap"
    SORTED_SEQUENTIAL_SELECT = "sorted_sequential_select"


class OverlapAlgType(Enum):
    """What `type` of an overlap algorithm gives."""

    UNIFORM = "uniform"
    GREEDY = "greedy"


class AttnRole(Enum):
    """Whose rows a manager's get_position_ids is asked for."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"


class MagiAttentionKernelBackend(Enum):
    """What MAGI_ATTENTION_KERNEL_BACKEND may be; `kernel_backend` of a key."""

    FFA = "ffa"
    SDPA = "sdpa"
    SDPA_OL = "sdpa_ol"
    FA4 = "fa4"


class MagiAttentionPrecision(Enum):
    """What MAGI_ATTENTION_PRECISION may be; `precision` of a key."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"

    def to_torch_dtype(self) -> torch.dtype:
        return _DTYPES[self]


_DTYPES = {
    MagiAttentionPrecision.BF16: torch.bfloat16,
    MagiAttentionPrecision.FP16: torch.float16,
    MagiAttentionPrecision.FP32: torch.float32,
    MagiAttentionPrecision.FP64: torch.float64,
}
