# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Backends by name and device."""

from __future__ import annotations

import functools
import sys

from ._core import AttnBackendInfo, Backend, list_backends
from .errors import CudaError, InvalidArgument, NotAvailable

_backends: dict[tuple[str, int], Backend] = {}


def _listed(device: int) -> list[AttnBackendInfo]:
    """Backends as the GPU can run them. Without a driver no GPU can be chosen, and the list says why."""
    try:
        return list_backends(device)
    except CudaError:
        return list_backends()


def default_backend(on_gpu: bool, device: int = -1) -> str:
    """The best backend for tensors in that memory, of that GPU (-1: the current one)."""
    infos = _listed(device)
    wanted = [info.name for info in infos if info.available and info.on_gpu == on_gpu]
    if not wanted:
        listed = ", ".join(f"{info.name} ({info.detail})" for info in infos)
        memory = "CUDA" if on_gpu else "host"
        raise NotAvailable(
            f"flex_flash_attn_func: no backend of this build computes in {memory} memory{_of_rocm()} (got {listed})"
        )
    return wanted[0]


@functools.cache
def float32_backend(device: int) -> str | None:
    """The best backend of that GPU that computes float32; None: there is none."""
    for name in gpu_backends(device):
        if backend_named(name, True, device).takes_float32:
            return name
    return None


def _of_rocm() -> str:
    """What torch for AMD GPUs calls CUDA is none."""
    torch = sys.modules.get("torch")
    hip = getattr(getattr(torch, "version", None), "hip", None)
    return (
        f", and none on AMD GPUs (torch is for ROCm {hip}): compute on the CPU, move tensors by .cpu()" if hip else ""
    )


_default_names: dict[tuple[bool, int], str] = {}
"""By memory and GPU: a machine may have several kinds."""


def gpu_backends(device: int = -1) -> list[str]:
    """Names of the backends of GPU memory that the GPU (-1: the current one) can run, best first."""
    return [info.name for info in _listed(device) if info.available and info.on_gpu]


def backend_named(name: str | None, on_gpu: bool, device: int = -1) -> Backend:
    """One backend of that name for each GPU (`device`), since masks are prepared in its memory."""
    if name is None:
        gpu = device if on_gpu else -1
        memory = (on_gpu, gpu)
        name = _default_names.get(memory) or _default_names.setdefault(memory, default_backend(on_gpu, gpu))
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
