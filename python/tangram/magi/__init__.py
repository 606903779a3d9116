# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The names of MagiAttention's published API, 1.0 to 1.1.8, over Tangram.

    from tangram.magi import calc_attn, dispatch, magi_attn_flex_key, undispatch  # was: from magi_attention.api

Names, orders of arguments, defaults and results are those of the published functions, whatever module has them there.
`tangram` itself has its own names. What cannot be honoured raises and names it. MAGI_ATTENTION_* variables that change
results or placement are read once, at this import. Needs torch.
"""

from __future__ import annotations

from typing import Any

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "tangram.magi needs torch, which is not installed (pip install torch)", name="torch"
    ) from None

from .._settings import configure as _configure
from ..flex import AttnForwardMeta
from ._algorithms import (
    BatchToppHeapDispatchAlg,
    BSDispatchAlg,
    DispatchAlg,
    DPDispatchAlg,
    GreedyOverlapAlg,
    LBDispatchAlg,
    MinHeapDispatchAlg,
    OverlapAlg,
    RandomSelectDispatchAlg,
    SequentialDispatchAlg,
    SortedSequentialSelectAlg,
    ToppHeapDispatchAlg,
    UniformOverlapAlg,
)
from ._api import (
    calc_attn,
    dispatch,
    get_position_ids,
    init_dist_attn_runtime_key,
    init_hierarchical_mesh,
    magi_attn_flex_dispatch,
    magi_attn_flex_key,
    magi_attn_varlen_dispatch,
    magi_attn_varlen_key,
    make_flex_key_for_new_mask_after_dispatch,
    make_varlen_key_for_new_mask_after_dispatch,
    roll,
    roll_simple,
    undispatch,
)
from ._config import DispatchConfig, DistAttnConfig, GrpCollConfig, OverlapConfig
from ._enums import (
    AttnMaskType,
    AttnOverlapMode,
    AttnRole,
    AttnSinkLayout,
    DispatchAlgType,
    GeneralAttnMaskType,
    MagiAttentionKernelBackend,
    MagiAttentionPrecision,
    OverlapAlgType,
)
from ._flex import flex_flash_attn_func
from ._helpers import (
    apply_padding,
    compute_pad_size,
    full_attention_to_varlen_attention,
    infer_attn_mask_from_cu_seqlens,
    infer_attn_mask_from_sliding_window,
    infer_varlen_mask_from_batch,
    pad_at_dim,
    squash_batch_dim,
    unpad_at_dim,
)
from ._key import DistAttnRuntimeKey, clear_cache, env, get_most_recent_key
from ._manager import (
    DistAttnRuntimeDictManager,
    DistAttnRuntimeMgr,
    dist_attn_runtime_dict_mgr,
    init_dist_attn_runtime_mgr,
)
from ._mask import AttnMask, from_mask
from ._range import AttnRange, NaiveRange, RangeError, RangeType
from ._ranges import AttnRanges, NaiveRanges, RangesType, check_valid_cu_seqlens, is_valid_cu_seqlens
from ._rectangles import AttnRectangle, AttnRectangles
from ._with_sink import (
    fa2_func_with_sink,
    fa2_kvpacked_func_with_sink,
    fa2_qkvpacked_func_with_sink,
    fa2_varlen_func_with_sink,
    fa2_varlen_kvpacked_func_with_sink,
    fa2_varlen_qkvpacked_func_with_sink,
    fa3_func_with_sink,
    fa3_qkvpacked_func_with_sink,
    fa3_varlen_func_with_sink,
    fa4_func_with_sink,
    fa4_varlen_func_with_sink,
)

__all__ = [
    "AttnForwardMeta",
    "AttnMask",
    "AttnMaskType",
    "AttnOverlapMode",
    "AttnRange",
    "AttnRanges",
    "AttnRectangle",
    "AttnRectangles",
    "AttnRole",
    "AttnSinkLayout",
    "BSDispatchAlg",
    "BatchToppHeapDispatchAlg",
    "DPDispatchAlg",
    "DispatchAlg",
    "DispatchAlgType",
    "DispatchConfig",
    "DistAttnConfig",
    "DistAttnRuntimeDictManager",
    "DistAttnRuntimeKey",
    "DistAttnRuntimeMgr",
    "GeneralAttnMaskType",
    "GreedyOverlapAlg",
    "GrpCollConfig",
    "LBDispatchAlg",
    "MagiAttentionKernelBackend",
    "MagiAttentionPrecision",
    "MinHeapDispatchAlg",
    "NaiveRange",
    "NaiveRanges",
    "OverlapAlg",
    "OverlapAlgType",
    "OverlapConfig",
    "RandomSelectDispatchAlg",
    "RangeError",
    "RangeType",
    "RangesType",
    "SequentialDispatchAlg",
    "SortedSequentialSelectAlg",
    "ToppHeapDispatchAlg",
    "UniformOverlapAlg",
    "apply_padding",
    "calc_attn",
    "check_valid_cu_seqlens",
    "clear_cache",
    "compute_pad_size",
    "dispatch",
    "dist_attn_runtime_dict_mgr",
    "fa2_func_with_sink",
    "fa2_kvpacked_func_with_sink",
    "fa2_qkvpacked_func_with_sink",
    "fa2_varlen_func_with_sink",
    "fa2_varlen_kvpacked_func_with_sink",
    "fa2_varlen_qkvpacked_func_with_sink",
    "fa3_func_with_sink",
    "fa3_qkvpacked_func_with_sink",
    "fa3_varlen_func_with_sink",
    "fa4_func_with_sink",
    "fa4_varlen_func_with_sink",
    "flex_flash_attn_func",
    "from_mask",
    "full_attention_to_varlen_attention",
    "get_most_recent_key",
    "get_position_ids",
    "infer_attn_mask_from_cu_seqlens",
    "infer_attn_mask_from_sliding_window",
    "infer_varlen_mask_from_batch",
    "init_dist_attn_runtime_key",
    "init_dist_attn_runtime_mgr",
    "init_hierarchical_mesh",
    "is_valid_cu_seqlens",
    "magi_attn_flex_dispatch",
    "magi_attn_flex_key",
    "magi_attn_varlen_dispatch",
    "magi_attn_varlen_key",
    "make_flex_key_for_new_mask_after_dispatch",
    "make_varlen_key_for_new_mask_after_dispatch",
    "pad_at_dim",
    "roll",
    "roll_simple",
    "squash_batch_dim",
    "undispatch",
    "unpad_at_dim",
]

_given: dict[str, Any] = {"sanity_check": True} if env.sanity_check else {}
_given |= {"profile": True} if env.profile else {}
_given |= {"max_keys": env.max_keys} if env.max_keys is not None else {}
if _given:
    _configure(**_given)

# Names of other versions, or beside the API, that a program may import.
_ABSENT = {
    "BTPDispatchAlg": "take BSDispatchAlg(), which looks for the least largest load, too",
    "infer_attn_mask_from_window_size": "call infer_attn_mask_from_sliding_window for each pair of ranges",
}
_DSA = "sparse attention with an indexer is not there; flex_flash_attn_func takes index_attn_indices"
_ABSENT |= dict.fromkeys(("calc_dsa", "DsaOverlapConfig", "DsaPackedMeta", "MagiDSAInput", "MagiDSARuntimeMgr"), _DSA)
_ABSENT |= dict.fromkeys(
    ("DistAttnRuntimeDict", "dist_attn_runtime_dict"), "take dist_attn_runtime_dict_mgr, which later versions have"
)
_ABSENT |= {
    "dsa_attn_func": _DSA,
    "fa4_qkvpacked_func_with_sink": "1.1.1 dropped it: take fa3_qkvpacked_func_with_sink",
}


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise ImportError(f"tangram.magi: {name} is not there: {_ABSENT[name]}")
    raise AttributeError(f"module 'tangram.magi' has no attribute {name!r}")
