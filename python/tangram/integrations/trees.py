# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Completions as a prefix tree for a model of Transformers with `attn_implementation="tangram"`, and back.

batch = tree_batch(input_ids, attention_mask, config=model.config, loss_mask=completion_mask)
log_p = batch.log_probs(model(**batch.inputs).logits)  # [batch, length], as of the padded batch
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Mask
from ..errors import InvalidArgument
from ..trees import Targets, Tree, from_sequences

_NAME = "tree_batch"


class TreeBatch:
    """A batch as one tree. Made by tree_batch.

    inputs: what the model gets: `model(**batch.inputs)`. tree: its rows. targets: the edges of tokens in loss_mask.
    """

    def __init__(self, tree: Tree, inputs: dict[str, Any], targets: Targets, real: Tensor) -> None:
        self.tree = tree
        self.inputs = inputs
        self.targets = targets
        self._real = real
        """`[batch, length]` bool, False for padding."""
        self._kept: Tensor | None = inputs.get("logits_to_keep")

    def log_probs(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """Log probabilities of the batch's tokens, float32 `[batch, length]` (float64 of float64); 0 for padding, for
        the first token of a sequence and outside of loss_mask. Differentiable: gradients of shared rows add up.

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
            self._check(logits, self.tree.num_rows)
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

    Reads the tokens on the host: tensors on a GPU are copied, which synchronises.

    Raises:
        InvalidArgument: other shapes; a config with chunked attention, whose chunks are no window.
    """
    real = _bools("attention_mask", attention_mask, input_ids)
    wanted = real if loss_mask is None else _bools("loss_mask", loss_mask, input_ids) & real
    lengths = real.sum(1)
    borders = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    tree = from_sequences(input_ids[real], min_shared, cu_seqlens=borders)
    targets = tree.targets(wanted[real])
    inputs: dict[str, Any] = {
        "input_ids": tree.tokens[None],
        "position_ids": tree.positions()[None],
        "tangram_mask": _masks(tree, config),
        "use_cache": False,
    }
    if loss_mask is not None:
        inputs["logits_to_keep"] = targets.rows.unique()
    return TreeBatch(tree, inputs, targets, real)


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
    # Of layers with a window only a mapping is taken as it is: the window counts in positions, not in rows.
    return known if window is not None else known["full_attention"]
