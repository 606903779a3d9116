# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan: its context parallelism computed by Tangram, for models with attention "sdpa" or "flex".

    from tangram.integrations.torchtitan import install

    install()    # before the Trainer is made, for instance in the module of experimental.custom_import

Degrees, meshes, data and the loss stay TorchTitan's: parallelism.context_parallel_degree > 1 is all that it takes.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import Tensor

from .._core import DistAttnConfig, HeadConfig, Mask
from .._named import Named
from ..errors import InvalidArgument, NotAvailable
from ._torchtitan_masks import causal_mask, mask_of
from ._versions import warn_of_untested

__all__ = ["install"]
_NAME = "torchtitan"
_HOOKS = ("apply_cp_to_attention_module", "prepare_context_parallel_input")
_IGNORED = -100


class _Rows:
    """What the layers of a context-parallel group compute next: keys of the batch that was prepared last. TorchTitan
    runs each batch forward and backward, recomputation included, before it prepares another."""

    def __init__(self) -> None:
        self.heads = HeadConfig()
        """Heads of the last layer that ran: dispatches are planned for them."""
        self.key: Any = None
        self.has_layers = False
        self.masks: dict[Any, Mask] = {}
        """By mask function, which survives copies of block masks; None without one."""

    def key_of(self, block_mask: Any, heads: HeadConfig) -> Any:
        from .._keys import make_mask_key_after_dispatch

        name = None if block_mask is None else block_mask.mask_mod
        if self.key is None or name not in self.masks:
            raise InvalidArgument(
                f"{_NAME}: batches must come from prepare_context_parallel_input, as those of its Trainer do "
                f"(got {'no batch' if self.key is None else 'the mask of another batch'})"
            )
        mask, self.heads = self.masks[name], heads
        if mask is next(iter(self.masks.values())) and self.key.config.heads == heads:
            return self.key
        return make_mask_key_after_dispatch(mask, self.key, heads=heads)


_rows_of_group: weakref.WeakKeyDictionary[Any, _Rows] = weakref.WeakKeyDictionary()


def _rows(cp_mesh: Any) -> tuple[Any, _Rows]:
    from .._torch_group import torch_group

    group = torch_group(cp_mesh)
    return group, _rows_of_group.setdefault(group, _Rows())


def apply_cp_to_attention_module(attention_modules: Any, cp_mesh: Any, attention_type: str) -> None:
    """TorchTitan's function of this name: its attention modules compute over the ranks of the mesh."""
    if attention_type not in ("sdpa", "flex"):
        raise InvalidArgument(f"{_NAME}: attn_type must be sdpa or flex (got {attention_type!r})")
    _, rows = _rows(cp_mesh)
    rows.has_layers = True
    for module in attention_modules:
        module.forward = _forward_of(rows)
    _keep_attention()


def prepare_context_parallel_input(
    inputs: Tensor,
    labels: Tensor,
    extra_kwargs: dict[str, Any],
    cp_mesh: Any,
    device: Any,
    load_balancer_type: str | None = "headtail",
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """TorchTitan's function of this name: this rank's rows of a batch `[batch, seq_len]` that all ranks hold.

    Args:
        extra_kwargs: attention_masks, if any, is a BlockMask or a dict of them.
        load_balancer_type: has no effect: Tangram balances the visible area.

    Returns:
        Inputs and labels `[1, rows]`, and extra_kwargs with the positions of these rows.
    """
    from .._keys import key_of_heads
    from .._rows import dispatch

    group, rows = _rows(cp_mesh)
    batch, length = inputs.shape
    try:
        if not rows.has_layers:
            raise InvalidArgument(f"{_NAME}: install() must come before the Trainer is made (got layers without it)")
        masks = _masks(extra_kwargs.get("attention_masks"), batch, length)
        # Equally many rows on each rank, as TorchTitan has them: seq_len is a multiple of the ranks.
        largest = max(masks.values(), key=lambda mask: mask.area)
        with Named(_NAME):
            key = key_of_heads(largest, rows.heads, group, 0, DistAttnConfig())
    except InvalidArgument as error:
        group.refuse(-1, str(error))
        raise
    first = next(name for name, mask in masks.items() if mask is largest)
    rows.key, rows.masks = key, {first: largest, **masks}
    positions = torch.arange(length, dtype=torch.int32, device=device).repeat(batch)

    def own(x: Tensor, pad_value: float = 0) -> Tensor:
        return dispatch(x.flatten(0, 1), key, pad_value)[None]

    extra_kwargs["positions"] = dispatch(positions, key)[None]
    return own(inputs), own(labels, _IGNORED), extra_kwargs


def _masks(attention_masks: Any, batch: int, length: int) -> dict[Any, Mask]:
    from torch.nn.attention.flex_attention import BlockMask

    if attention_masks is None:
        return {None: causal_mask(batch, length)}
    given = list(attention_masks.values()) if isinstance(attention_masks, dict) else [attention_masks]
    if not given or not all(isinstance(mask, BlockMask) for mask in given):
        raise InvalidArgument(
            f"{_NAME}: attention_masks must be a BlockMask or a dict of them; set attn_type to sdpa or flex "
            f"(got {sorted({type(mask).__name__ for mask in given})})"
        )
    with Named(_NAME):
        return {mask.mask_mod: mask_of(mask, batch, length) for mask in given}


def _forward_of(rows: _Rows) -> Any:
    from ..distributed import calc_attn

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        block_mask: Any = None,
        score_mod: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        is_causal: bool = True,
        return_lse: bool = False,
    ) -> Tensor:
        """`[1, heads, rows, dim]`, as TorchTitan's models call it."""
        if torch.compiler.is_compiling():
            raise InvalidArgument(f"{_NAME}: compile.components must not contain 'model' with Tangram (got it)")
        for name, given in (("score_mod", score_mod), ("return_lse", return_lse or None)):
            if given is not None:
                raise InvalidArgument(f"{_NAME}: {name} is not supported (got {given!r:.60})")
        if not is_causal:
            raise InvalidArgument(f"{_NAME}: is_causal must be True, or block_mask the mask (got is_causal=False)")
        if q.shape[0] != 1:
            raise InvalidArgument(
                f"{_NAME}: dispatched rows must be one sequence; pipeline stages need one microbatch "
                f"(got batch={q.shape[0]})"
            )
        key = rows.key_of(block_mask, HeadConfig(q.shape[1], k.shape[1], q.shape[3], v.shape[3]))
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        with Named(_NAME):
            out, _ = calc_attn(q, k, v, key, softmax_scale=scale)
        return out.transpose(0, 1)[None]

    return forward


def _keep_attention() -> None:
    """Selective activation checkpointing saves attention, as it saves PyTorch's own."""
    from ..checkpointing import OPERATORS

    for name, module in list(sys.modules.items()):
        saved = getattr(module, "_op_sac_save_list", None) if name.startswith("torchtitan.") else None
        if isinstance(saved, set):
            saved.update(OPERATORS)


def install() -> None:
    """Replaces TorchTitan's context parallelism in this process. Calling it again changes nothing.

    Raises NotAvailable for releases whose context parallelism has other functions: this is for 0.2.
    """
    warn_of_untested("torchtitan")
    import torchtitan.distributed.context_parallel as theirs  # type: ignore[import-not-found,import-untyped,unused-ignore]

    missing = [name for name in _HOOKS if not hasattr(theirs, name)]
    if missing:
        raise NotAvailable(f"{_NAME}: this needs torchtitan 0.2 (got one without {', '.join(missing)})")
    for name in _HOOKS:
        original, ours = getattr(theirs, name), globals()[name]
        for module_name, module in list(sys.modules.items()):  # they import it by name
            if module_name.startswith("torchtitan.") and getattr(module, name, None) is original:
                setattr(module, name, ours)
