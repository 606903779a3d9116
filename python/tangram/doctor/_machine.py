# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the machine has, in words and as JSON. Needs no torch, and no GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from typing import Any

from .._core import VERSION, list_backends, list_env, list_gpus
from .._settings import configuration

_PACKAGES = ("torch", "triton", "numpy", "flash-attn", "transformers")


def accelerators_of_torch() -> list[str]:
    """Devices of the installed torch that no backend of Tangram computes on."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    found = []
    if getattr(torch.version, "hip", None):
        found.append(f"AMD GPUs (torch {torch.__version__} is for ROCm {torch.version.hip})")
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        found.append("the GPU of an Apple chip (mps)")
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        found.append("Intel GPUs (xpu)")
    return found


def gpu_line(gpu: Any) -> str:
    """Backend and reason of a GPU."""
    major, minor = gpu.compute_capability
    backend = gpu.backend or "no backend"
    return f"gpu {gpu.device}: {gpu.name}, compute capability {major}.{minor}: {backend} ({gpu.reason})"


def override_lines(backend: str | None) -> list[str]:
    """What changes the choice of a backend: an argument, tangram.configure, or a variable."""
    lines = []
    if backend is not None:
        lines.append(f"backend {backend}, by --backend")
    elif configuration().backend is not None:
        lines.append(f"backend {configuration().backend}, by tangram.configure")
    for name in ("TANGRAM_SM80_SHARED_KB", "CUDA_FORCE_PTX_JIT", "CUDA_VISIBLE_DEVICES", "TANGRAM_CPU_ISA"):
        if name in os.environ:
            lines.append(f"{name}={os.environ[name]}")
    return lines


def text(backend: str | None = None) -> str:
    """What `tangram doctor` prints."""
    lines = [f"tangram {VERSION}, Python {platform.python_version()}, {platform.platform()}", "", "GPUs"]
    gpus = list_gpus()
    lines += [f"  {gpu_line(gpu)}" for gpu in gpus]
    if not gpus:
        lines.append("  none that CUDA sees")
    for each in accelerators_of_torch():
        lines.append(
            f"  {each}: no backend computes there; masks, plans and ranks on the CPU work: move tensors by .cpu()"
        )
    lines += ["", "backends (the first that is available is used, here of the current GPU)"]
    for info in list_backends():
        lines.append(f"  {'✓' if info.available else '–'} {info.name:<10} {info.detail}")
    overrides = override_lines(backend)
    if overrides:
        lines += ["", "overrides", *(f"  {line}" for line in overrides)]
    lines += ["", "environment"]
    for variable in list_env():
        state = "set    " if variable.is_set else "default"
        lines.append(f"  {variable.name:<22} {variable.value or repr(''):<12} {state}  {variable.help}")
    return "\n".join(lines) + "\n"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def as_json(backend: str | None = None) -> dict[str, Any]:
    """The machine for reports: nothing that names the host or its user."""
    gpus = [
        {
            "device": gpu.device,
            "name": gpu.name,
            "compute_capability": "{}.{}".format(*gpu.compute_capability),
            "multiprocessors": gpu.multiprocessors,
            "memory_bytes": gpu.memory_bytes,
            "shared_memory_kb": gpu.shared_memory_kb,
            "backend": gpu.backend,
            "reason": gpu.reason,
        }
        for gpu in list_gpus()
    ]
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "tangram": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": {name: version for name, version in versions.items() if version},
        "gpus": gpus,
        "other_accelerators": accelerators_of_torch(),
        "backends": [
            {"name": info.name, "available": info.available, "detail": info.detail} for info in list_backends()
        ],
        "overrides": override_lines(backend),
        "environment": {variable.name: variable.value for variable in list_env() if variable.is_set},
    }
