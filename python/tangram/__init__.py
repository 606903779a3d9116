# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tangram: distributed attention for ultra-long, irregularly masked sequences.

Masks and plans need nothing else; `flex_flash_attn_func` takes NumPy arrays or torch tensors, and the functions over
`torch.distributed` need torch.
"""

from typing import TYPE_CHECKING, Any

from . import _values, errors  # noqa: F401
from ._core import (
    VERSION,
    AttnBackendInfo,
    AttnOptions,
    AttnSlice,
    Backend,
    CostModel,
    Dispatch,
    DispatchConfig,
    DistAttnConfig,
    FlexAttention,
    HeadConfig,
    Mask,
    MaskType,
    MovementConfig,
    OverlapConfig,
    Plan,
    PlanCache,
    Range,
    RankPlan,
    Stage,
    compute_pad_size,
    infer_attn_mask_from_cu_seqlens,
    infer_attn_mask_from_sliding_window,
    list_backends,
)
from .errors import CommError, CudaError, Error, InternalError, InvalidArgument, NotAvailable, Timeout
from .flex import AttnForwardMeta, flex_flash_attn_func
from .planning import plan, plan_ahead

__version__ = VERSION

if TYPE_CHECKING:
    from .distributed import (
        DistAttnRuntimeKey,
        calc_attn,
        check_errors,
        dispatch,
        dispatch_labels,
        flex_key,
        get_loss_mask,
        get_most_recent_key,
        get_position_ids,
        magi_attn_flex_key,
        magi_attn_varlen_key,
        make_flex_key_for_new_mask_after_dispatch,
        make_mask_key_after_dispatch,
        make_varlen_key_for_new_mask_after_dispatch,
        mask_key,
        mask_key_ahead,
        roll,
        undispatch,
        varlen_key,
    )
else:
    _DISTRIBUTED = {
        "DistAttnRuntimeKey",
        "calc_attn",
        "check_errors",
        "dispatch",
        "dispatch_labels",
        "flex_key",
        "get_loss_mask",
        "get_most_recent_key",
        "get_position_ids",
        "magi_attn_flex_key",
        "magi_attn_varlen_key",
        "make_flex_key_for_new_mask_after_dispatch",
        "make_mask_key_after_dispatch",
        "make_varlen_key_for_new_mask_after_dispatch",
        "mask_key",
        "mask_key_ahead",
        "roll",
        "undispatch",
        "varlen_key",
    }

    def __getattr__(name: str) -> Any:
        """What needs torch is imported at first use."""
        if name in _DISTRIBUTED:
            try:
                from . import distributed
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                raise ModuleNotFoundError(
                    f"tangram.{name} needs torch, which is not installed (pip install torch)", name="torch"
                ) from None

            value = globals()[name] = getattr(distributed, name)
            return value
        raise AttributeError(f"module 'tangram' has no attribute {name!r}")


__all__ = [
    "AttnBackendInfo",
    "AttnForwardMeta",
    "AttnSlice",
    "AttnOptions",
    "Backend",
    "CommError",
    "CostModel",
    "CudaError",
    "Dispatch",
    "DispatchConfig",
    "DistAttnConfig",
    "Error",
    "FlexAttention",
    "HeadConfig",
    "InternalError",
    "InvalidArgument",
    "Mask",
    "MaskType",
    "MovementConfig",
    "NotAvailable",
    "OverlapConfig",
    "Plan",
    "PlanCache",
    "Range",
    "RankPlan",
    "Stage",
    "Timeout",
    "__version__",
    "compute_pad_size",
    "errors",
    "DistAttnRuntimeKey",
    "calc_attn",
    "check_errors",
    "dispatch",
    "dispatch_labels",
    "flex_key",
    "get_loss_mask",
    "get_most_recent_key",
    "get_position_ids",
    "magi_attn_flex_key",
    "magi_attn_varlen_key",
    "make_flex_key_for_new_mask_after_dispatch",
    "make_mask_key_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch",
    "mask_key",
    "mask_key_ahead",
    "roll",
    "undispatch",
    "varlen_key",
    "flex_flash_attn_func",
    "infer_attn_mask_from_cu_seqlens",
    "infer_attn_mask_from_sliding_window",
    "list_backends",
    "plan",
    "plan_ahead",
]
