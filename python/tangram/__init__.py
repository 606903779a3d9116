# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tangram: distributed attention for ultra-long, irregularly masked sequences.

Say which keys a query sees:        Mask.causal, .varlen, .sliding_window, .from_ranges, ...
Attend on one device:               flex_flash_attn_func(q, k, v, mask), NumPy arrays or torch tensors
A new mask at each step, one graph: MaskBuffer(rows, rows, heads), .set(mask); flex_flash_attn_func(q, k, v, buffer)
Keys named one by one, on the GPU:  token_attn_func(q, k, v, indices)
Look at how ranks would share it:   plan(mask, cp_size=8).explain()
Train over several ranks (torch):   key = mask_key(mask, ...); x = dispatch(x, key); calc_attn(q, k, v, key);
                                    undispatch(out, key)
A new key at each step, one graph:  DistMaskBuffer(keys), .set(key); calc_attn(q, k, v, buffer)
Checkpoints that keep attention:    checkpoint(layer, x, use_reentrant=False, context_fn=checkpoint_policy())
Where the time of a step goes:      with meter() as step: ...
Shared prompts computed once:       from tangram import trees; trees.from_sequences(tokens).mask()
What holds for the whole process:   configure(backend=..., deterministic=..., timeout_s=...)
By the names of others:             tangram.magi (MagiAttention), tangram.flash_attn (FlashAttention), from_block_mask

    >>> import numpy as np, tangram
    >>> mask = tangram.Mask.varlen([0, 700, 1500, 2048], causal=True)
    >>> q = np.random.randn(2048, 8, 64).astype(np.float32)
    >>> k, v = np.random.randn(2, 2048, 2, 64).astype(np.float32)
    >>> out, meta = tangram.flex_flash_attn_func(q, k, v, mask)
    >>> out.shape, meta.lse.shape
    ((2048, 8, 64), (2048, 8))

What is refused raises `InvalidArgument`, whose text names the function, what must hold and what was given. Only the
functions over `torch.distributed` need torch; it is imported with the first of them.
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
    HeadDimRate,
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
from ._from_masks import from_block_mask, from_dense, masks_from_block_indices
from ._memory import MemoryRow, memory_use, set_cache_bytes
from ._meter import Meter, MeterReport, meter
from ._settings import Configuration, TransportConfig, configuration, configure
from .errors import CommError, CudaError, Error, InternalError, InvalidArgument, NotAvailable, Timeout
from .flex import AttnForwardMeta, flex_flash_attn_func
from .mask_buffer import MaskBuffer
from .planning import plan, plan_async
from .tokens import check_token_errors, token_attn_func

__version__ = VERSION

if TYPE_CHECKING:
    from .checkpointing import checkpoint_policy, keep_attention
    from .distributed import (
        DistAttnRuntimeKey,
        DistMaskBuffer,
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
        mask_key_async,
        roll,
        undispatch,
        varlen_key,
    )

__all__ = [
    "AttnBackendInfo",
    "AttnForwardMeta",
    "AttnSlice",
    "AttnOptions",
    "Backend",
    "CommError",
    "Configuration",
    "CostModel",
    "CudaError",
    "Dispatch",
    "DispatchConfig",
    "DistAttnConfig",
    "Error",
    "FlexAttention",
    "HeadConfig",
    "HeadDimRate",
    "InternalError",
    "InvalidArgument",
    "Mask",
    "MaskBuffer",
    "MaskType",
    "MemoryRow",
    "Meter",
    "MeterReport",
    "MovementConfig",
    "NotAvailable",
    "OverlapConfig",
    "Plan",
    "PlanCache",
    "Range",
    "RankPlan",
    "Stage",
    "Timeout",
    "TransportConfig",
    "__version__",
    "check_token_errors",
    "compute_pad_size",
    "configuration",
    "configure",
    "errors",
    "from_block_mask",
    "from_dense",
    "masks_from_block_indices",
    "DistAttnRuntimeKey",
    "DistMaskBuffer",
    "calc_attn",
    "check_errors",
    "checkpoint_policy",
    "dispatch",
    "dispatch_labels",
    "flex_key",
    "get_loss_mask",
    "get_most_recent_key",
    "get_position_ids",
    "keep_attention",
    "magi_attn_flex_key",
    "magi_attn_varlen_key",
    "make_flex_key_for_new_mask_after_dispatch",
    "make_mask_key_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch",
    "mask_key",
    "mask_key_async",
    "roll",
    "undispatch",
    "varlen_key",
    "flex_flash_attn_func",
    "infer_attn_mask_from_cu_seqlens",
    "infer_attn_mask_from_sliding_window",
    "list_backends",
    "memory_use",
    "meter",
    "set_cache_bytes",
    "plan",
    "plan_async",
    "token_attn_func",
]

if not TYPE_CHECKING:
    _NEED_TORCH = frozenset(__all__) - frozenset(globals())

    def __getattr__(name: str) -> Any:
        """What needs torch is imported at first use."""
        if name not in _NEED_TORCH:
            raise AttributeError(f"module 'tangram' has no attribute {name!r}")
        try:
            from . import checkpointing, distributed
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"tangram.{name} needs torch, which is not installed (pip install torch)", name="torch"
            ) from None
        value = globals()[name] = getattr(checkpointing if name in checkpointing.__all__ else distributed, name)
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
