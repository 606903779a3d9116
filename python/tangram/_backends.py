# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Backends by name and device."""

from __future__ import annotations

import functools

from ._core import Backend, list_backends
from .errors import InvalidArgument, NotAvailable

_backends: dict[tuple[str, int], Backend] = {}


def default_backend(on_gpu: bool) -> str:
    """The best backend for tensors in that memory."""
    wanted = [info.name for info in list_backends() if info.available and info.on_gpu == on_gpu]
    if not wanted:
        listed = ", ".join(f"{info.name} ({info.detail})" for info in list_backends())
        memory = "CUDA" if on_gpu else "host"
        raise NotAvailable(f"flex_flash_attn_func: no backend of this build computes in {memory} memory (got {listed})")
    return wanted[0]


@functools.cache
def float32_backend(device: int) -> str | None:
    """The best backend of that GPU that computes float32; None: there is none."""
    for name in gpu_backends():
        if backend_named(name, True, device).takes("float32"):
            return name
    return None


_default_names: dict[bool, str] = {}


def gpu_backends() -> list[str]:
    """Names of the backends of GPU memory that can run here, best first."""
    return [info.name for info in list_backends() if info.available and info.on_gpu]


def backend_named(name: str | None, on_gpu: bool, device: int = -1) -> Backend:
    """One backend of that name for each GPU (`device`), since masks are prepared in its memory."""
    if name is None:
        name = _default_names.get(on_gpu) or _default_names.setdefault(on_gpu, default_backend(on_gpu))
    backend = _backends.get((name, device))
    if backend is None:
        names = [info.name for info in list_backends()]
        if name not in names:
            raise InvalidArgument(
                f"tangram: backend must be None, the best for the device, or one of {', '.join(names)} "
                f"(got backend={name!r})"
            )
        backend = _backends.setdefault((name, device), Backend(name, device=device))
    return backend
