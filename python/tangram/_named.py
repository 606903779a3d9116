# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Errors carry the name of the function that was called, wherever below it a mistake is found.

with Named("mask_key"):
    plan = make_plan(mask, config)  # "make_plan: cp_size must ..." becomes "mask_key: cp_size must ..."
"""

from __future__ import annotations

import re

from .errors import InvalidArgument, NotAvailable

_HEAD = re.compile(r"[A-Za-z_][\w.:]*: ")


def rename(error: BaseException, function: str) -> None:
    """Puts `function` in the place of the name with which the text of an error begins."""
    text = str(error)
    head = _HEAD.match(text)
    if isinstance(error, (InvalidArgument, NotAvailable)):
        error.args = (f"{function}: {text[head.end() :] if head else text}",)
    elif isinstance(error, TypeError) and head and "(got " in text:  # ours, not one of Python's own
        error.args = (f"{function}: {text[head.end() :]}",)


class Named:
    """What is refused within is refused by this function."""

    __slots__ = ("_function",)

    def __init__(self, function: str) -> None:
        self._function = function

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            rename(error, self._function)
