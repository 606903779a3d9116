# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of the published API that make keys and work with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _rows, distributed
from .._named import Named
from .._shapes import IN_A_ROW, check_shapes
from .._torch_group import device_of_group
from ..errors import InvalidArgument
from ..flex import AttnForwardMeta
from ._config import DistAttnConfig
from ._dense import SumOfGradients, cells_of, dense_attention, of_all_ranks
from ._enums import AttnMaskType, GeneralAttnMaskType
from ._helpers import infer_attn_mask_from_cu_seqlens
from ._key import DistAttnRuntimeKey, env, make_key, make_key_after, require_key, typed_mask
from ._orders import in_any_order, is_group_or_mesh
from ._ranges import AttnRanges

_FLEX_MASK = "q_ranges k_ranges attn_mask_type total_seqlen_q total_seqlen_k"
_VARLEN_MASK = "cu_seqlens_q cu_seqlens_k"
_HEADS = "num_heads_q num_heads_kv head_dim"
_SOURCES = "is_same_source is_q_permutable is_k_permutable"
# Orders of 1.1, of later versions, of 1.0.
_FLEX_ORDERS = (
    f"{_FLEX_MASK} {_HEADS} pad_size chunk_size cp_group_or_mesh dist_attn_config {_SOURCES}",
    f"{_FLEX_MASK} {_HEADS} pad_size cp_group_or_mesh dist_attn_config {_SOURCES} chunk_size head_dim_v",
    f"{_FLEX_MASK} pad_size chunk_size cp_group_or_mesh dist_attn_config {_SOURCES} num_heads_q num_heads_kv",
)
_VARLEN_ORDERS = (
    f"{_VARLEN_MASK} {_HEADS} pad_size chunk_size cp_group_or_mesh causal window_size dist_attn_config",
    f"{_VARLEN_MASK} {_HEADS} pad_size cp_group_or_mesh causal window_size dist_attn_config chunk_size head_dim_v",
    f"{_VARLEN_MASK} pad_size chunk_size cp_group_or_mesh causal window_size dist_attn_config num_heads_q num_heads_kv",
)


def _with_x(orders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"x {order}" for order in orders)


_any_flex_order = in_any_order("cp_group_or_mesh", is_group_or_mesh, *_FLEX_ORDERS)
_any_varlen_order = in_any_order("cp_group_or_mesh", is_group_or_mesh, *_VARLEN_ORDERS)


def _key_of(function: str, typed: Any, given: dict[str, Any]) -> DistAttnRuntimeKey:
    heads = (given["num_heads_q"], given["num_heads_kv"], given["head_dim"], given["head_dim_v"])
    pad_size, chunk_size, group = given["pad_size"], given["chunk_size"], given["cp_group_or_mesh"]
    return make_key(function, typed, heads, pad_size, chunk_size, group, given["dist_attn_config"])


def require_one_source(function: str, given: dict[str, Any]) -> None:
    """Refuses sources of queries and keys that are not one."""
    for name in ("is_same_source", "is_q_permutable", "is_k_permutable"):
        if not given[name]:
            raise InvalidArgument(
                f"{function}: {name} must be True, because queries and keys share one order of rows; "
                f"tangram.magi_attn_flex_key serves cross attention (got {name}={given[name]})"
            )


def _flex_key(function: str, given: dict[str, Any]) -> DistAttnRuntimeKey:
    """Key from the arguments of magi_attn_flex_key."""
    require_one_source(function, given)
    lengths = (given["total_seqlen_q"], given["total_seqlen_k"])
    ranges = (given["q_ranges"], given["k_ranges"])
    return _key_of(function, typed_mask(function, ranges, given["attn_mask_type"], lengths), given)


def _varlen_key(function: str, given: dict[str, Any]) -> DistAttnRuntimeKey:
    """Key from the arguments of magi_attn_varlen_key."""
    cu_q, cu_k, causal = given["cu_seqlens_q"], given["cu_seqlens_k"], given["causal"]
    with Named(function):
        q, k, kinds, total_q, total_k = infer_attn_mask_from_cu_seqlens(cu_q, cu_k, causal, given["window_size"])
    return _key_of(function, typed_mask(function, (q, k), kinds, (total_q, total_k)), given)


def _and_dispatch(
    function: str, key_of: Callable[[str, dict[str, Any]], DistAttnRuntimeKey], given: dict[str, Any]
) -> tuple[Tensor, DistAttnRuntimeKey]:
    warnings.warn(f"{function}: is deprecated there; make a key, then dispatch", DeprecationWarning, stacklevel=4)
    key = key_of(function, given)
    with Named(function):
        return dispatch(given["x"], key), key


@_any_flex_order
def magi_attn_flex_key(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    pad_size: int | None = 0,
    chunk_size: int | None = None,
    cp_group_or_mesh: Any = None,
    dist_attn_config: DistAttnConfig | None = None,
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """The key of a mask given by ranges and types.

    Positional arguments may also come in the orders of 1.0, without heads, and of versions after 1.1, without
    chunk_size. The place of the group tells them apart.

    Args:
        attn_mask_type: one for all ranges or one for each, AttnMaskType or its names.
        num_heads_q, num_heads_kv, head_dim: of this rank; calc_attn takes tensors of others, too.
        pad_size: rows to append, as compute_pad_size gives; what makes no whole chunks is computed instead.
        chunk_size: rows of a chunk; None: the planner's choice.
        cp_group_or_mesh: a process group or a device mesh of one or two dimensions.
        is_same_source, is_q_permutable, is_k_permutable: True.

    Raises:
        InvalidArgument, a ValueError: on wrong values, before anything is sent.
    """
    return _flex_key("magi_attn_flex_key", locals())


@_any_varlen_order
def magi_attn_varlen_key(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    pad_size: int | None = 0,
    chunk_size: int | None = None,
    cp_group_or_mesh: Any = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """The key of packed documents, all of whose keys their queries see, causally or through a window.

    Args:
        cu_seqlens_q, cu_seqlens_k: borders, `[documents + 1]` ints as tensors or lists, from 0 on.
        causal: goes without a window. window_size: keys before and after a query, -1: all. The others, and the orders
            of positional arguments, as of magi_attn_flex_key.
    """
    return _varlen_key("magi_attn_varlen_key", locals())


@in_any_order("cp_group_or_mesh", is_group_or_mesh, *_with_x(_FLEX_ORDERS))
def magi_attn_flex_dispatch(
    x: Tensor,
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    pad_size: int | None = 0,
    chunk_size: int | None = None,
    cp_group_or_mesh: Any = None,
    dist_attn_config: DistAttnConfig | None = None,
    is_same_source: bool = True,
    is_q_permutable: bool = True,
    is_k_permutable: bool = True,
    head_dim_v: int | None = None,
) -> tuple[Tensor, DistAttnRuntimeKey]:
    """magi_attn_flex_key, and this rank's rows of x: `(x of this rank, key)`."""
    return _and_dispatch("magi_attn_flex_dispatch", _flex_key, locals())


@in_any_order("cp_group_or_mesh", is_group_or_mesh, *_with_x(_VARLEN_ORDERS))
def magi_attn_varlen_dispatch(
    x: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    pad_size: int | None = 0,
    chunk_size: int | None = None,
    cp_group_or_mesh: Any = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig | None = None,
    head_dim_v: int | None = None,
) -> tuple[Tensor, DistAttnRuntimeKey]:
    """magi_attn_varlen_key, and this rank's rows of x: `(x of this rank, key)`."""
    return _and_dispatch("magi_attn_varlen_dispatch", _varlen_key, locals())


def _is_config(value: Any) -> bool:
    return isinstance(value, DistAttnConfig)


_NEW_MASK = "q_ranges k_ranges attn_mask_type key_for_dispatch"


@in_any_order(
    "dist_attn_config",
    _is_config,
    f"{_NEW_MASK} {_HEADS} dist_attn_config",
    f"{_NEW_MASK} dist_attn_config",
)
def make_flex_key_for_new_mask_after_dispatch(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    key_for_dispatch: DistAttnRuntimeKey,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """Another mask over rows that are sharded already.

    Args:
        num_heads_q, num_heads_kv, head_dim: None: those of the other key. dist_attn_config: its overlap counts; None:
            that of the other key.
    """
    name = "make_flex_key_for_new_mask_after_dispatch"
    heads = (num_heads_q, num_heads_kv, head_dim)
    return make_key_after(name, (q_ranges, k_ranges), attn_mask_type, key_for_dispatch, heads, dist_attn_config)


def make_varlen_key_for_new_mask_after_dispatch(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    key_for_dispatch: DistAttnRuntimeKey,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig | None = None,
) -> DistAttnRuntimeKey:
    """Like make_flex_key_for_new_mask_after_dispatch, for packed documents; arguments of the mask as in
    magi_attn_varlen_key."""
    name = "make_varlen_key_for_new_mask_after_dispatch"
    with Named(name):
        q, k, kinds, *_ = infer_attn_mask_from_cu_seqlens(cu_seqlens_q, cu_seqlens_k, causal, window_size)
    return make_key_after(name, (q, k), kinds, key_for_dispatch, (None, None, None), dist_attn_config)


_PADDED = f"{_FLEX_MASK} {_HEADS} pad_size chunk_size cp_group cp_mesh dist_attn_config head_dim_v"
_PADDED_OF_1_0 = f"{_FLEX_MASK} pad_size chunk_size cp_group cp_mesh dist_attn_config num_heads_q num_heads_kv"


@in_any_order("dist_attn_config", _is_config, _PADDED, _PADDED_OF_1_0)
def init_dist_attn_runtime_key(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_mask_type: GeneralAttnMaskType,
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int | None = None,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    pad_size: int = 0,
    chunk_size: int | None = None,
    cp_group: Any = None,
    cp_mesh: Any = None,
    dist_attn_config: DistAttnConfig | None = None,
    head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:
    """A key of a mask that is padded already: lengths count pad_size rows, and ranges may have the padding's slice.

    Unlike there it can be used at once. Positional arguments may also come in the order of 1.0, where heads stand last:
    the place of dist_attn_config tells them apart.
    """
    name = "init_dist_attn_runtime_key"
    lengths = (total_seqlen_q - pad_size, total_seqlen_k - pad_size)
    q, k = (AttnRanges.from_ranges(each) for each in (q_ranges, k_ranges))
    kinds = attn_mask_type
    if pad_size > 0 and q and q[-1].start >= lengths[0]:
        q, k = q[:-1], k[:-1]
        if not isinstance(kinds, (str, AttnMaskType)):
            kinds = list(kinds)[: len(q)]
    typed = typed_mask(name, (q, k), kinds, lengths)
    heads = (num_heads_q, num_heads_kv, head_dim, head_dim_v)
    group = cp_group if cp_mesh is None else cp_mesh
    return make_key(name, typed, heads, pad_size, chunk_size, group, dist_attn_config)


def init_hierarchical_mesh(world_size: int, world_size_inter_node: int, world_size_intra_node: int) -> Any:
    """A mesh of all ranks, nodes by ranks of a node, where MAGI_ATTENTION_HIERARCHICAL_COMM=1, otherwise None.
    Collective."""
    if world_size != world_size_inter_node * world_size_intra_node:
        raise InvalidArgument(
            "init_hierarchical_mesh: world_size must be world_size_inter_node * world_size_intra_node "
            f"(got {world_size}, {world_size_inter_node} and {world_size_intra_node})"
        )
    if not env.hierarchical_comm:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (world_size_inter_node, world_size_intra_node)
    return init_device_mesh(kind, shape, mesh_dim_names=("inter", "intra"))


def dispatch(x: Tensor, key: DistAttnRuntimeKey, pad_value: float = 0.0) -> Tensor:
    """This rank's rows of a tensor `[rows, ...]` that every rank holds; padded rows hold pad_value."""
    return distributed.dispatch(x, require_key("dispatch", key).inner, pad_value)


class _GatherPartial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Any) -> Tensor:
        ctx.key = key
        return _rows.gathered(x, key, "q")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _ScatterSum.apply(grad, ctx.key), None  # type: ignore[no-untyped-call]


class _ScatterSum(torch.autograd.Function):
    """The way back of _GatherPartial, which is its own way back: rows move and are added, so that derivatives of any
    order are exact."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, key: Any) -> Tensor:
        ctx.key = key
        return _rows.scattered(whole, key, "q")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _GatherPartial.apply(grad, ctx.key), None  # type: ignore[no-untyped-call]


def undispatch(x: Tensor, key: DistAttnRuntimeKey, is_partial_grad: bool = False) -> Tensor:
    """The whole tensor, without padding, on every rank. Collective.

    is_partial_grad: False: every rank is taken to compute the same loss, and backward takes this rank's rows of the
    gradient. True: ranks hold different losses, whose gradients are added up; backward is collective, too.
    """
    inner = require_key("undispatch", key).inner
    if not is_partial_grad:
        return distributed.undispatch(x, inner)
    _rows.check_shard("undispatch", x, inner, "q")
    return _GatherPartial.apply(x, inner)  # type: ignore[no-untyped-call,no-any-return]


def roll(x: Tensor, shift: int, dim: int, key: DistAttnRuntimeKey) -> Tensor:
    """torch.roll along the global sequence of this rank's rows, which are dimension `dim` of x. Collective.

    Padded rows stay where they are.
    """
    inner = require_key("roll", key).inner
    if not hasattr(shift, "__index__"):
        raise InvalidArgument(f"roll: shift must be an integer (got shift={shift!r})")
    if not isinstance(x, Tensor) or not -x.ndim <= dim < x.ndim:
        raise InvalidArgument(
            f"roll: dim must be a dimension of x (got dim={dim}, shape={tuple(getattr(x, 'shape', ()))})"
        )
    if dim in (0, -x.ndim):
        return distributed.roll(x, inner, shift)
    return distributed.roll(x.movedim(dim, 0).contiguous(), inner, shift).movedim(0, dim)


def roll_simple(x: Tensor, shift: int, dim: int, key: DistAttnRuntimeKey) -> Tensor:
    """roll: there by other calls of torch.distributed, here the same."""
    return roll(x, shift, dim, key)


def get_position_ids(key: DistAttnRuntimeKey) -> Tensor:
    """Global rows of this rank's rows, int64 `[rows]`, in the memory of the group's device. Padded rows come last and
    have the last position without padding; there they count on."""
    inner = require_key("get_position_ids", key).inner
    return distributed.get_position_ids(inner, "q", device_of_group(key.cp_group))


def _calc_dense(
    qkv: tuple[Tensor, Tensor, Tensor],
    key: DistAttnRuntimeKey,
    sink: Tensor | None,
    softmax_scale: float | None,
    softcap: float,
    return_max_logits: bool,
) -> tuple[Tensor, AttnForwardMeta]:
    """calc_attn of float64 tensors: this rank's queries see keys that come whole."""
    name, inner = "calc_attn", key.inner
    for each in qkv:
        _rows.check_shard(name, each, inner, "q")
    q, k, v = qkv
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidArgument(f"{name}: q, k and v must have one dtype (got {q.dtype}, {k.dtype} and {v.dtype})")
    check_shapes(q.shape, (key.mask.seqlen_k, *k.shape[1:]), (key.mask.seqlen_k, *v.shape[1:]), IN_A_ROW)
    cells = cells_of(key.mask)[distributed.get_position_ids(inner)]
    cells &= distributed.get_loss_mask(inner)[:, None]
    if sink is not None and env.dsink_reduce != "none":
        sink = SumOfGradients.apply(sink, key.cp_group, env.dsink_reduce)  # type: ignore[no-untyped-call]
    whole = [_GatherPartial.apply(x, inner) for x in (k, v)]  # type: ignore[no-untyped-call]
    scale, of_sink = (softmax_scale, softcap), (sink, "sh")
    out, lse, max_logits = dense_attention(name, (q, whole[0], whole[1]), [cells], *of_sink, *scale)
    if return_max_logits:
        of_all_ranks(max_logits, torch.distributed.ReduceOp.MAX, key.cp_group)
    return out, AttnForwardMeta(lse, max_logits if return_max_logits else None)


def calc_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: DistAttnRuntimeKey,
    sink: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
) -> tuple[Tensor, AttnForwardMeta]:
    """Attention of this rank's rows to all rows that the key's mask shows them. Collective, and so is its backward.

    Args:
        q `[rows, num_heads_q, head_dim]`, k, v `[rows, num_heads_kv, head_dim(_v)]`: this rank's rows; float64 too
            under MAGI_ATTENTION_SDPA_BACKEND=1, where lse and max_logits are float64 as well.
        sink: `[seqlen_sink, num_heads_q]` float32, alike on every rank. Its gradient is this rank's part, unless
            MAGI_ATTENTION_DSINK_ALL_REDUCE_OP says sum or avg.

    Returns:
        `(out, meta)`: meta.lse `[rows, num_heads_q]` float32, meta.max_logits `[num_heads_q]` over all ranks, or None.
    """
    name = "calc_attn"
    require_key(name, key)
    shapes = [tuple(getattr(x, "shape", ())) for x in (q, k, v)]
    if any(len(shape) != 3 for shape in shapes):
        raise InvalidArgument(
            f"{name}: q, k and v must be tensors [rows, heads, head_dim] (got q={shapes[0]}, k={shapes[1]}, "
            f"v={shapes[2]})"
        )
    dtype = q.dtype
    if env.precision is not None:
        wanted: torch.dtype = getattr(torch, env.precision)
        q, k, v = (x.to(wanted) for x in (q, k, v))
    if q.dtype == torch.float64 and env.backend == "reference":
        out, meta = _calc_dense((q, k, v), key, sink, softmax_scale, softcap, return_max_logits)
        return out.to(dtype), meta
    inner = key.for_heads(shapes[0][1], shapes[1][1], shapes[0][2])
    out, meta = distributed.calc_attn(
        q,
        k,
        v,
        inner,
        sink,
        softmax_scale,
        softcap,
        return_max_logits,
        deterministic=env.deterministic,
        dsink_reduce=env.dsink_reduce,
        backend=env.backend,
    )
    return out.to(dtype), meta
