# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Whole numbers, as the extension takes them."""

from __future__ import annotations

import operator
from typing import Any


def whole(function: str, name: str, value: Any) -> int:
    """What Python would take for an index, of 64 bits: int, NumPy's and torch's integers, but no bool."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise TypeError(f"{function}: {name} must be a whole number of 64 bits (got {value!r:.60})")
    return number
