# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Recomputation of Megatron-Core that leaves attention out."""

from __future__ import annotations

from typing import Any

from ..checkpointing import keep_attention as kept


def keep_attention() -> None:
    """Megatron's recomputation of layers (recompute_granularity) keeps `out` and `lse` of Tangram's attention, so that
    neither attention nor its transfers run twice. Calling it again changes nothing.

    It replaces megatron.core.tensor_parallel.checkpoint. Transformer Engine's own checkpoint, which Megatron takes for
    layers in FP8, recomputes attention as before.
    """
    from megatron.core import tensor_parallel  # type: ignore[import-not-found,import-untyped,unused-ignore]

    theirs = tensor_parallel.checkpoint
    if hasattr(theirs, "_tangram_before"):
        return

    def checkpoint(function: Any, distribute_saved_activations: bool, *args: Any) -> Any:
        return theirs(kept(function), distribute_saved_activations, *args)

    checkpoint._tangram_before = theirs  # type: ignore[attr-defined]
    tensor_parallel.checkpoint = checkpoint
