# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Finds where the masks of ranks differ, for the error text. All ranks raise the error, then exchange what they have
through the store of torch.distributed."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from typing import Any

import torch.distributed as dist

from ._core import Mask

_SLICES = 4096
"""So many are compared, 100 KB of text."""
_SECONDS = 2.0
"""What a rank waits for another one, which raises at the same time."""


def first_difference(mine: list[Any], theirs: list[Any]) -> str:
    """In words, of what `compared_of` makes; empty where there is none among what was told."""
    for name, a, b in (("seqlen_q", mine[0], theirs[0]), ("seqlen_k", mine[1], theirs[1])):
        if a != b:
            return f"{name} is {a} here and {b} there"
    for place, (a, b) in enumerate(zip(mine[3], theirs[3])):
        if a != b:
            return f"slice {place} is {_text(a)} here and {_text(b)} there"
    if mine[2] != theirs[2]:
        return f"there are {mine[2]} slices here and {theirs[2]} there"
    return ""


def _text(each: list[int]) -> str:
    q0, q1, k0, k1, low, high = each
    return f"queries [{q0}, {q1}) x keys [{k0}, {k1}) with {low} <= key - query <= {high}"


def compared_of(mask: Mask) -> list[Any]:
    slices = mask.slices
    told = [
        [s.q_range.begin, s.q_range.end, s.k_range.begin, s.k_range.end, s.min_diag, s.max_diag]
        for s in slices[:_SLICES]
    ]
    return [mask.seqlen_q, mask.seqlen_k, len(slices), told]


def where_masks_differ(key: Any) -> str:
    """What to append to the error of this rank; empty where the others do not answer."""
    group, mine = key.group, compared_of(key.plan.mask)
    group.num_differences += 1  # all ranks count alike
    name = sha256(json.dumps([list(group.ranks), group.num_differences]).encode()).hexdigest()[:16]
    try:
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"tangram/differing/{name}", dist.distributed_c10d._get_default_store()
        )
        store.set(str(group.rank), json.dumps(mine))
        end = time.monotonic() + _SECONDS
        for other in range(group.size):
            while other != group.rank and not store.check([str(other)]):
                if time.monotonic() > end:
                    return ""
                time.sleep(0.01)
            text = "" if other == group.rank else first_difference(mine, json.loads(store.get(str(other))))
            if text:
                return f"; beside rank {other}: {text}"
    except (RuntimeError, ValueError):  # a store that is gone
        pass
    return ""
