# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed Ulysses: attn_implementation="tangram" within UlyssesSPAttentionHF, and LocalAttention within
DistributedAttention. DeepSpeed exchanges heads; Tangram computes whole sequences of a rank's heads.

    register()
    model = LlamaForCausalLM.from_pretrained(..., attn_implementation="tangram")
    UlyssesSPAttentionHF.register_with_transformers(model, "tangram", sequence_parallel_size=8, micro_batch_size=1)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from .._named import Named
from ..errors import InvalidArgument
from ..flex import flex_flash_attn_func
from ._attention import register as _register
from ._fixed_rows import borders_of
from ._narrow import Limits, narrowed
from ._versions import warn_of_untested

__all__ = ["LocalAttention", "register"]
_NAME = "LocalAttention"


def register() -> None:
    """Makes attn_implementation="tangram" known to Transformers, before DeepSpeed wraps it.

    DeepSpeed drops every mask, and hands over the position ids of the whole sequence: documents in them stay apart, and
    windows, chunks and softcap hold. Sinks are refused, since a layer passes those of all heads.

    Raises NotAvailable when transformers is missing or older than its attention interface (4.57).
    """
    warn_of_untested("deepspeed")
    _register()


class LocalAttention(torch.nn.Module):
    """local_attention of deepspeed.sequence.layer.DistributedAttention, without parameters."""

    def __init__(
        self,
        causal: bool = True,
        window_size: int | None = None,
        batch_dim_idx: int = 0,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
    ) -> None:
        """causal: queries see no later keys. window_size: keys that a causal query sees, its own among them.
        batch_dim_idx: as DistributedAttention gets it, 0 of `[batch, rows, heads, dim]`, 1 of `[rows, batch, ...]`.
        """
        super().__init__()
        warn_of_untested("deepspeed")
        if batch_dim_idx not in (0, 1):
            raise InvalidArgument(f"{_NAME}: batch_dim_idx must be 0 or 1 (got {batch_dim_idx})")
        if window_size is not None and (not causal or window_size < 1):
            raise InvalidArgument(
                f"{_NAME}: window_size must be positive and causal; pass a mask for others (got {window_size})"
            )
        self.causal, self.window_size, self.batch_dim_idx = causal, window_size, batch_dim_idx
        self.softmax_scale, self.softcap = softmax_scale, softcap

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, mask: Any = None, cu_seqlens: Any = None, **kw: Any
    ) -> Tensor:
        """Arguments that DistributedAttention hands on, and the result in the layout of query.

        Args:
            mask: a tangram.Mask of the rows of the batch, in place of causal.
            cu_seqlens: borders of packed documents, of all rows of the batch, which mask or causal are cut by.
        """
        given = [f"{type(x).__name__} at place {i}" for i, x in enumerate(args) if x is not None]
        given += [name for name, x in kw.items() if x is not None]
        if given:
            raise InvalidArgument(
                f"{_NAME}: pass mask=tangram.Mask and cu_seqlens by name in place of other arguments (got {given})"
            )
        q, k, v = (x if self.batch_dim_idx == 0 else x.transpose(0, 1) for x in (query, key, value))
        batch, rows = q.shape[:2]
        flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))
        with Named(_NAME):
            chosen = self._mask(batch, rows, k.shape[1], mask, cu_seqlens)
            scale, cap = self.softmax_scale, self.softcap
            out, _ = flex_flash_attn_func(flat_q, flat_k, flat_v, chosen, softmax_scale=scale, softcap=cap)
        out = out.view(batch, rows, *out.shape[1:])
        return out if self.batch_dim_idx == 0 else out.transpose(0, 1)

    def _mask(self, batch: int, rows: int, rows_k: int, given: Any, cu_seqlens: Any) -> Mask:
        if given is not None and not isinstance(given, Mask):
            raise InvalidArgument(f"{_NAME}: mask must be a tangram.Mask (got {type(given).__name__})")
        if rows != rows_k:
            raise InvalidArgument(f"{_NAME}: query and key must have equally many rows (got {rows} and {rows_k})")
        borders = tuple(range(0, batch * rows + 1, rows))
        if cu_seqlens is not None:
            borders = tuple(sorted({*borders, *borders_of(_NAME, "cu_seqlens", cu_seqlens, batch * rows)}))
        if given is None:
            mask: Mask = Mask.varlen(list(borders), causal=self.causal)
        else:
            if (given.seqlen_q, given.seqlen_k) != (batch * rows,) * 2:
                raise InvalidArgument(
                    f"{_NAME}: mask must have a row for each of the batch (got {given.seqlen_q} x {given.seqlen_k} of "
                    f"{batch * rows})"
                )
            mask = narrowed(given, Limits(borders=(borders, borders)))
        return mask if self.window_size is None else narrowed(mask, Limits(left=self.window_size - 1))
