# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of other packages that the tests have run with. The hooks into them are no stable interfaces."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

TESTED = {
    "transformers": ("4.57", "5.23", "5.24"),
    "accelerate": ("1.15",),
    "trl": ("1.16",),
    "deepspeed": ("0.19",),
    "megatron-core": ("0.16",),
    "diffusers": ("0.42",),
    "torchtitan": ("0.2",),
    "torch": ("2.11",),
}
_warned: set[str] = set()


def warn_of_untested(package: str) -> None:
    """One warning for each package whose version is not of TESTED; none if the package is not there."""
    try:
        found = version(package)
    except PackageNotFoundError:
        return
    if package in _warned or ".".join(found.split(".")[:2]) in TESTED[package]:
        return
    _warned.add(package)
    warnings.warn(
        f"tangram.integrations: tested with {package} {', '.join(TESTED[package])} (got {package} {found}); compare a "
        "step with one process before a long run",
        stacklevel=3,
    )
