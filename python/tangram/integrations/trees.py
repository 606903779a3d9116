# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Completions as a prefix tree for a model of Transformers with `attn_implementation="tangram"`, and back.

batch = tree_batch(input_ids, attention_mask, config=model.config, loss_mask=completion_mask)
log_p = batch.log_probs(model(**batch.inputs).logits)  # [batch, length], as of the padded batch
Over ranks: `tree_batch(..., config=model.config, cp_group_or_mesh=group)`; each rank then has its rows and edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from .._keys import make_mask_key_after_dispatch, mask_key
from .._rows import dispatch
from .._runtime_key import DistAttnRuntimeKey
from ..errors import InvalidArgument
from ..trees import Targets, Tree, from_sequences

_NAME = "tree_batch"


class TreeBatch:
    """A batch as one tree. Made by tree_batch.

    inputs: what the model gets: `model(**batch.inputs)`. tree: its rows. targets: the edges of tokens in loss_mask.
    key: over ranks the runtime key of the rows, else None; inputs and targets are then of this rank's rows.
    """

    def __init__(
        self,
        tree: Tree,
        inputs: dict[str, Any],
        targets: Targets,
        real: Tensor,
        key: DistAttnRuntimeKey | None = None,
    ) -> None:
        self.tree = tree
        self.inputs = inputs
        self.targets = targets
        self.key = key
        self._rows: int = inputs["input_ids"].shape[1]
        self._real = real
        """`[batch, length]` bool, False for padding."""
        self._kept: Tensor | None = inputs.get("logits_to_keep")

    def log_probs(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """Log probabilities of the batch's tokens, float32 `[batch, length]` (float64 of float64); 0 for padding, for
        the first token of a sequence and outside of loss_mask. Differentiable: gradients of shared rows add up.
        Over ranks also 0 for tokens whose edge another rank has: the sum over ranks is that of one process.

        logits: of `model(**batch.inputs)`, `[1, rows, vocabulary]`.
        """
        rows = self._rows_of_edges(logits)
        scores = logits[0] if logits.dtype == torch.float64 else logits[0].float()
        labels = self.targets.labels.to(torch.int64)
        of_edges = -torch.nn.functional.cross_entropy(scores[rows] / temperature, labels, reduction="none")
        return self._padded(self.targets.gather(of_edges))

    def logits(self, logits: Tensor) -> Tensor:
        """The logits of each token of the batch, `[batch, length, vocabulary]`, 0 for padding: as of the model without
        a tree. For small vocabularies; not for batches with loss_mask, whose model computes logits of edges alone."""
        if self.key is not None:
            raise InvalidArgument(
                "TreeBatch.logits: needs all rows on this rank; pass tangram.undispatch(logits[0], batch.key) through "
                "batch.tree.rows_of() (got a batch over ranks)"
            )
        if self._kept is not None:
            raise InvalidArgument(
                f"TreeBatch.logits: needs the logits of all rows, so a batch without loss_mask (got {len(self._kept)} "
                f"of {self.tree.num_rows} rows)"
            )
        self._check(logits, self.tree.num_rows)
        return self._padded(logits[0][self.tree.rows_of()])

    def _rows_of_edges(self, logits: Tensor) -> Tensor:
        rows: Tensor = self.targets.rows
        if self._kept is None:
            self._check(logits, self._rows)
            return rows
        self._check(logits, len(self._kept))
        return torch.searchsorted(self._kept, rows)

    def _check(self, logits: Tensor, rows: int) -> None:
        if logits.dim() != 3 or logits.shape[:2] != (1, rows):
            raise InvalidArgument(
                f"TreeBatch: logits must be those of model(**batch.inputs), [1, {rows}, vocabulary] "
                f"(got shape={list(logits.shape)})"
            )

    def _padded(self, values: Tensor) -> Tensor:
        """Values of the sequences' tokens, one sequence after the other, at their places in the batch."""
        whole = values.new_zeros((*self._real.shape, *values.shape[1:]))
        return whole.index_put((self._real.nonzero(as_tuple=True)), values)


def tree_batch(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    config: Any = None,
    loss_mask: Tensor | None = None,
    min_shared: int = 64,
    cp_group_or_mesh: Any = None,
) -> TreeBatch:
    """A batch whose sequences begin alike, such as the samples of prompts, as inputs that hold shared tokens once.

    Args:
        input_ids: `[batch, length]`, padded on either side or on both.
        attention_mask: `[batch, length]`, 0 for padding; None: no padding.
        config: the model's, which knows its windows: layers of sliding attention get their own mask. None: all layers
            see the whole prefix.
        loss_mask: `[batch, length]`, 0 for tokens whose log probability is not needed, such as prompts. The model then
            computes the logits of the others alone (`logits_to_keep`). None: all tokens.
        min_shared: as of trees.from_sequences.
        cp_group_or_mesh: ranks that share the rows, as of mask_key; all pass the same batch, and config. The model
            computes this rank's rows, and gradients are to be summed over the group. None: this process alone.

    Reads the tokens on the host: tensors on a GPU are copied, which synchronises.

    Raises:
        InvalidArgument: other shapes; a config with chunked attention, whose chunks are no window; a group without
            config.
    """
    real = _bools("attention_mask", attention_mask, input_ids)
    wanted = real if loss_mask is None else _bools("loss_mask", loss_mask, input_ids) & real
    lengths = real.sum(1)
    borders = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    tree = from_sequences(input_ids[real], min_shared, cu_seqlens=borders)
    targets = tree.targets(wanted[real])
    tokens, positions, masks = tree.tokens, tree.positions(), _masks(tree, config)
    key = None
    inputs: dict[str, Any] = {"use_cache": False}
    if cp_group_or_mesh is None:
        inputs["tangram_mask"] = masks
    else:
        key, inputs["tangram_key"] = _keys(masks, config, cp_group_or_mesh)
        tokens, positions = dispatch(tokens, key), dispatch(positions, key)
        targets = targets.local(key)
    inputs |= {"input_ids": tokens[None], "position_ids": positions[None]}
    if loss_mask is not None:
        inputs["logits_to_keep"] = targets.rows.unique()
    return TreeBatch(tree, inputs, targets, real, key)


def _keys(masks: Mask | dict[str, Mask], config: Any, group: Any) -> tuple[DistAttnRuntimeKey, Any]:
    """The key of the rows, and what layers take: that key, or one for each kind of layer, over the same rows."""
    if config is None:
        raise InvalidArgument(
            f"{_NAME}: cp_group_or_mesh needs config, which knows the heads; pass config=model.config (got config=None)"
        )
    text = config.get_text_config()
    heads, hidden = text.num_attention_heads, text.hidden_size
    heads_kv = getattr(text, "num_key_value_heads", None) or heads
    dim = getattr(text, "head_dim", None) or hidden // heads
    if isinstance(masks, Mask):
        key = mask_key(masks, heads, heads_kv, dim, group)
        return key, key
    key = mask_key(masks["full_attention"], heads, heads_kv, dim, group)
    windows = make_mask_key_after_dispatch(masks["sliding_attention"], key)
    return key, {"full_attention": key, "sliding_attention": windows}


def _bools(name: str, mask: Tensor | None, input_ids: Tensor) -> Tensor:
    if input_ids.dim() != 2:
        raise InvalidArgument(f"{_NAME}: input_ids must be [batch, length] (got shape={list(input_ids.shape)})")
    if mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    if mask.shape != input_ids.shape:
        raise InvalidArgument(
            f"{_NAME}: {name} must have the shape of input_ids, {list(input_ids.shape)} (got shape={list(mask.shape)})"
        )
    return mask.to(input_ids.device).bool()


def _masks(tree: Tree, config: Any) -> Mask | dict[str, Mask]:
    """One mask, or one for each kind of layer that the config names."""
    config = getattr(config, "get_text_config", lambda: config)()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    limited = None if window is None else (window - 1, 0)
    if not kinds:
        if getattr(config, "attention_chunk_size", None) is not None:
            kinds = {"chunked_attention"}
        elif window is None:
            return tree.mask()
    known = {"full_attention": tree.mask(), "sliding_attention": tree.mask(limited)}
    if not kinds <= set(known):
        raise InvalidArgument(
            f"{_NAME}: layers must be of {' or '.join(known)}; pass config=None and masks of your own for others "
            f"(got {', '.join(sorted(kinds - set(known)))})"
        )
    # Layers with a window take only a mapping unchanged: the window counts in positions, not in rows.
    return known if window is not None else known["full_attention"]
