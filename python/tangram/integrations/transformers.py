# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""HuggingFace Transformers: `register()`, then `attn_implementation="tangram"` in any model of its attention interface.

Batches, padding on either side, packed documents (position ids that start again), sliding and chunked layers, caches of
`generate`, softcap and sinks keep their meaning. `model(..., tangram_mask=mask)` gives a mask of one's own, and
`model(..., tangram_key=key)` computes context-parallel on the rows that `tangram.dispatch` gave this rank.
"""

from __future__ import annotations

from ._attention import NAME, attention, register
from ._context_parallel import MODEL_TYPES, context_parallel
from ._versions import warn_of_untested

__all__ = ["MODEL_TYPES", "NAME", "attention", "context_parallel", "register"]

warn_of_untested("transformers")
