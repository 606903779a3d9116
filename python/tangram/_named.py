# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Errors carry the name of the function that was called, wherever below it a mistake is found.

with Named("mask_key"):
    plan = make_plan(mask, config)  # "make_plan: cp_size must ..." becomes "mask_key: cp_size must ..."
"""

from __future__ import annotations

from .errors import InvalidArgument, NotAvailable, _parts_of


def rename(error: BaseException, function: str) -> None:
    """Puts `function` in the place of the function that refused."""
    refused_by, requirement = _parts_of(str(error))
    # A TypeError may be ours, or one of Python's own.
    if isinstance(error, (InvalidArgument, NotAvailable)) or (
        isinstance(error, TypeError) and refused_by and "(got " in requirement
    ):
        error.args = (f"{function}: {requirement}",)


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
