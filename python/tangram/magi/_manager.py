# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Managers of the published API, which its own tests use in place of dispatch and calc_attn: thin, over keys."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor

from .. import distributed
from .._runtime_key import KEYS_PER_GROUP, Side, cache_of
from .._torch_group import device_of_group, known_groups, ranks_of
from ..errors import InvalidArgument
from ..flex import AttnForwardMeta
from ._api import calc_attn, dispatch, require_one_source, roll, undispatch
from ._config import DistAttnConfig
from ._enums import AttnMaskType, AttnRole
from ._helpers import pad_at_dim
from ._key import DistAttnRuntimeKey, clear_cache, env, groups_of, make_key, require_key, typed_mask
from ._orders import in_any_order, is_group_or_mesh
from ._ranges import AttnRanges

_INSIDE = {
    "attn_solver": "the plan is key.inner.plan",
    "dispatch_meta_k": "the rows of a rank are get_position_ids()",
    "dispatch_meta_q": "the rows of a rank are get_position_ids()",
    "dist_attn_runtime": "the plan is key.inner.plan",
    "get_xattn_args": "tangram.magi_attn_flex_key serves cross attention",
}


class DistAttnRuntimeMgr:
    """What a key stands for, with methods. Two are equal whose keys are.

    Whole tensors have `total_seqlen_q` rows, padding included, as there: padded rows come back as zeros.
    """

    is_same_source = is_q_permutable = is_k_permutable = True

    def __init__(self, key: DistAttnRuntimeKey) -> None:
        self.key = require_key("DistAttnRuntimeMgr", key)

    def __getattr__(self, name: str) -> Any:
        hint = f": {_INSIDE[name]}" if name in _INSIDE else ""
        raise AttributeError(f"DistAttnRuntimeMgr: {name} is not there{hint}")

    @property
    def cp_group(self) -> Any:
        return self.key.cp_group

    @property
    def dist_attn_config(self) -> DistAttnConfig:
        return self.key.dist_attn_config

    @property
    def num_heads_q(self) -> int | None:
        return self.key.num_heads_q

    @property
    def num_heads_kv(self) -> int | None:
        return self.key.num_heads_kv

    @property
    def head_dim(self) -> int | None:
        return self.key.head_dim

    @property
    def ref_q_ranges(self) -> AttnRanges:
        return self.key.q_ranges

    @property
    def ref_k_ranges(self) -> AttnRanges:
        return self.key.k_ranges

    def dispatch_qo(self, q_or_o: Tensor) -> Tensor:
        """This rank's rows of a tensor of all rows, with or without the padding's."""
        padded = self.key.pad_size > 0 and q_or_o.shape[0] == self.key.total_seqlen_q
        return dispatch(q_or_o[: -self.key.pad_size] if padded else q_or_o, self.key)

    def undispatch_qo(self, q_or_o: Tensor, is_partial_grad: bool = False) -> Tensor:
        """All rows on every rank. Collective."""
        whole = undispatch(q_or_o, self.key, is_partial_grad)
        return pad_at_dim(whole, 0, self.key.pad_size) if self.key.pad_size > 0 else whole

    def dispatch_kv(self, k_or_v: Tensor) -> Tensor:
        """dispatch_qo: keys are sharded as queries are."""
        return self.dispatch_qo(k_or_v)

    def undispatch_kv(self, k_or_v: Tensor, is_partial_grad: bool = False) -> Tensor:
        """undispatch_qo: keys are sharded as queries are."""
        return self.undispatch_qo(k_or_v, is_partial_grad)

    def roll(self, x: Tensor, shift: int, dim: int) -> Tensor:
        """See roll."""
        return roll(x, shift, dim, self.key)

    def roll_simple(self, x: Tensor, shift: int, dim: int) -> Tensor:
        """See roll."""
        return roll(x, shift, dim, self.key)

    def calc_attn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None = None,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        return_max_logits: bool = False,
    ) -> tuple[Tensor, AttnForwardMeta]:
        """See calc_attn. Collective."""
        return calc_attn(q, k, v, self.key, sink, softmax_scale, softcap, return_max_logits)

    def get_position_ids(self, attn_role: AttnRole = AttnRole.QUERY) -> Tensor:
        """See get_position_ids; keys have those of queries."""
        if not isinstance(attn_role, AttnRole):
            raise InvalidArgument(
                f"DistAttnRuntimeMgr.get_position_ids: attn_role must be an AttnRole (got {attn_role!r})"
            )
        side: Side = "q" if attn_role is AttnRole.QUERY else "k"
        return distributed.get_position_ids(self.key.inner, side, device_of_group(self.cp_group))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistAttnRuntimeMgr) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class DistAttnRuntimeDictManager:
    """Managers by key, at most so many for each group; those used last stay."""

    def __init__(self, max_size_per_group: int) -> None:
        self.max_size_per_group = max_size_per_group
        self._managers: dict[tuple[int, ...], OrderedDict[DistAttnRuntimeKey, DistAttnRuntimeMgr]] = {}

    def _of(self, cp_group: Any) -> OrderedDict[DistAttnRuntimeKey, DistAttnRuntimeMgr]:
        return self._managers.setdefault(tuple(sorted(ranks_of(cp_group))), OrderedDict())

    def get(self, key: DistAttnRuntimeKey, default: DistAttnRuntimeMgr | None = None) -> DistAttnRuntimeMgr | None:
        managers = self._of(require_key("DistAttnRuntimeDictManager.get", key).cp_group)
        if key not in managers:
            return default
        managers.move_to_end(key)
        return managers[key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, DistAttnRuntimeKey) and key in self._of(key.cp_group)

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        managers = self._of(require_key("DistAttnRuntimeDictManager", key).cp_group)
        managers[key] = value
        managers.move_to_end(key)
        while len(managers) > self.max_size_per_group:
            managers.popitem(last=False)

    def __getitem__(self, key: DistAttnRuntimeKey) -> DistAttnRuntimeMgr:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def keys(self, cp_group: Any = None) -> list[DistAttnRuntimeKey]:
        """Keys of a group; None: of all groups."""
        if cp_group is not None:
            return list(self._of(cp_group))
        return [key for managers in self._managers.values() for key in managers]

    def get_most_recent_key(self, cp_group: Any) -> DistAttnRuntimeKey | None:
        """The key of a group that was used last; None: there is none."""
        if cp_group is None:
            raise InvalidArgument(
                "DistAttnRuntimeDictManager.get_most_recent_key: cp_group must be a process group (got None)"
            )
        keys = self.keys(cp_group)
        return keys[-1] if keys else None

    def clear(self, cp_group: Any = None) -> None:
        """Forgets the managers of a group; None: of all groups."""
        if cp_group is None:
            self._managers.clear()
        else:
            self._of(cp_group).clear()


class _OfAllKeys(DistAttnRuntimeDictManager):
    """The keys that tangram.magi has made and a program still holds, with a manager for each."""

    def get(self, key: DistAttnRuntimeKey, default: DistAttnRuntimeMgr | None = None) -> DistAttnRuntimeMgr | None:
        return DistAttnRuntimeMgr(key) if key in self else default

    def __contains__(self, key: object) -> bool:
        return isinstance(key, DistAttnRuntimeKey) and any(key == each for each in self.keys(key.cp_group))

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        require_key("dist_attn_runtime_dict_mgr", key)
        if value.key is not key and value.key.inner is not key.inner:
            raise InvalidArgument(
                "dist_attn_runtime_dict_mgr: a manager must be that of its key, which holds what managers hold there "
                "(got the manager of another key)"
            )
        cache_of(key.inner.group).published_keys[key.number] = key

    def keys(self, cp_group: Any = None) -> list[DistAttnRuntimeKey]:
        groups = known_groups() if cp_group is None else groups_of(cp_group)
        made = [key for group in groups for key in list(cache_of(group).published_keys.values())]
        return sorted(made, key=lambda key: key.number)

    def clear(self, cp_group: Any = None) -> None:
        clear_cache(cp_group)


dist_attn_runtime_dict_mgr = _OfAllKeys(env.max_keys or KEYS_PER_GROUP)

_MASK = "q_ranges k_ranges attn_mask_type total_seqlen_q total_seqlen_k"
_SOURCES = "is_same_source is_q_permutable is_k_permutable"
_METAS = "ref_dispatch_meta_q ref_dispatch_meta_k"


@in_any_order(
    "cp_group",
    is_group_or_mesh,
    f"{_MASK} num_heads_q num_heads_kv head_dim chunk_size cp_group cp_mesh dist_attn_config {_SOURCES} {_METAS}",
    f"{_MASK} chunk_size cp_group {_SOURCES} dist_attn_config cp_mesh num_heads_q num_heads_kv {_METAS}",
)
def init_dist_attn_runtime_mgr(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: AttnMaskType | list[AttnMaskType],
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    chunk_size: int | None = None,
    cp_group: Any = None,
    cp_mesh: Any = None,
    dist_attn_config: DistAttnConfig | None = None,
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
    ref_dispatch_meta_q: None = None,
    ref_dispatch_meta_k: None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeMgr:
    """The manager of a mask whose lengths and ranges count padding; arguments as of init_dist_attn_runtime_key.

    Positional arguments may also come in the order of 1.0, where heads stand last: the place of cp_group tells.
    """
    name = "init_dist_attn_runtime_mgr"
    for each, value in (("ref_dispatch_meta_q", ref_dispatch_meta_q), ("ref_dispatch_meta_k", ref_dispatch_meta_k)):
        if value is not None:
            raise InvalidArgument(
                f"{name}: {each} must be None, make_flex_key_for_new_mask_after_dispatch makes a key over rows that "
                f"are sharded already (got {type(value).__name__})"
            )
    require_one_source(name, locals())
    typed = typed_mask(name, (q_ranges, k_ranges), attn_mask_type, (total_seqlen_q, total_seqlen_k))
    heads = (num_heads_q, num_heads_kv, head_dim, head_dim_v)
    group = cp_group if cp_mesh is None else cp_mesh
    return DistAttnRuntimeMgr(make_key(name, typed, heads, 0, chunk_size, group, dist_attn_config))
