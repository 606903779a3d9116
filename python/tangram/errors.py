# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions that Tangram raises. The text of each reads `function: requirement (got name=value, ...)`."""


def _parts_of(text: str) -> tuple[str, str]:
    """(function, requirement) of a text; no function where it names none."""
    head, colon, rest = text.partition(": ")
    is_name = head.replace(".", "").replace(":", "").isidentifier()
    return (head, rest) if colon and is_name else ("", text)


class Error(Exception):
    """Base of every exception of the package, so that a caller can catch all of them at once."""

    @property
    def function(self) -> str:
        """The function that refuses, empty where the text names none."""
        return _parts_of(str(self))[0]

    @property
    def requirement(self) -> str:
        """The text behind the function: what it wants, and what it got."""
        return _parts_of(str(self))[1]


class InvalidArgument(Error, ValueError):
    """The caller passed something that the function cannot accept. Nothing was computed or sent."""


class CudaError(Error, RuntimeError):
    """A CUDA call or a kernel launch failed."""


class CommError(Error, RuntimeError):
    """The communication between ranks failed, or a peer gave up."""


class Timeout(Error, RuntimeError, TimeoutError):
    """A peer did not answer before the deadline. The text names the rank and the operation."""


class NotAvailable(Error, RuntimeError):
    """What was asked for does not exist on this machine or in this build."""


class InternalError(Error, RuntimeError):
    """An invariant of Tangram itself does not hold: a bug, never the caller's fault."""
