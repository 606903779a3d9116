# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the text of an error must say to a user who does not know the code."""

import pytest

import tangram


def check_text(call, *wanted):
    """`wanted`: the function that was called, the argument, the value that was given, and what to pass instead."""
    with pytest.raises((tangram.Error, TypeError)) as raised:
        call()
    text = str(raised.value)
    assert text.startswith(f"{wanted[0]}: "), text  # what was called, not what found the mistake
    for what, part in zip(("function", "argument", "value", "remedy"), wanted, strict=True):
        assert part in text, f"{what} {part!r} is not in: {text}"
    assert len(text) < 500 and "(got " in text, text
