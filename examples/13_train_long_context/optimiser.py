# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""AdamW on this rank's shards, with moments in float32, in bfloat16, or in pinned host memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

MOMENTS = ("fp32", "bf16", "host")
PIECE = 1 << 26
"""Elements that a step takes at a time: what it needs beside the moments is a few times as much."""
BYTES_OF_MOMENTS = {"fp32": 8, "bf16": 4, "host": 0}
"""Bytes of a parameter's moments, on the device."""


class AdamW:
    """Moments of each local shard. `host` keeps float32 moments in host memory and brings one parameter's at a time."""

    def __init__(self, model: torch.nn.Module, moments: str, lr: float, eps: float, decay: float = 0.1) -> None:
        if moments not in MOMENTS:
            raise ValueError(f"AdamW: moments must be of {MOMENTS} (got moments={moments!r})")
        self.lr, self.eps, self.decay, self.betas = lr, eps, decay, (0.9, 0.95)
        self.on_host, self.count = moments == "host", 0
        self._named = dict(model.named_parameters())
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        dtype = torch.bfloat16 if moments == "bf16" else torch.float32
        for name, parameter in self._named.items():
            local = _local(parameter)
            where: dict[str, Any] = {"device": "cpu" if self.on_host else local.device}
            if self.on_host and local.is_cuda:
                where["pin_memory"] = True
            first, second = (torch.zeros(local.shape, dtype=dtype, **where) for _ in range(2))
            self._moments[name] = (first, second)

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        """The norm of the gradients of all ranks, float32 on the device."""
        shards = [_local(p.grad) for p in self._named.values() if p.grad is not None]
        total = torch.stack([torch.linalg.vector_norm(s, dtype=torch.float32).square() for s in shards]).sum()
        dist.all_reduce(total)
        return total.sqrt()

    @torch.no_grad()
    def step(self, scale: Tensor) -> None:
        """scale: what gradients are multiplied by, a scalar on the device."""
        self.count += 1
        unbiased = [1 - beta**self.count for beta in self.betas]
        for name, parameter in self._named.items():
            if parameter.grad is None:
                continue
            flat = [x.view(-1) for x in (_local(parameter), _local(parameter.grad), *self._moments[name])]
            for begin in range(0, flat[0].numel(), PIECE):
                self._step_of(*(x[begin : begin + PIECE] for x in flat), scale, unbiased, parameter.dim() > 1)

    def _step_of(
        self,
        weights: Tensor,
        gradient: Tensor,
        kept_first: Tensor,
        kept_second: Tensor,
        scale: Tensor,
        unbiased: list[float],
        decays: bool,
    ) -> None:
        """A step of a piece of a shard; overwrites the gradient."""
        gradient, kept = gradient.float().mul_(scale), (kept_first, kept_second)
        first, second = (x.to(weights.device, torch.float32, non_blocking=True) for x in kept)
        first.lerp_(gradient, 1 - self.betas[0])
        second.lerp_(gradient.square_(), 1 - self.betas[1])
        for place, moment in zip(kept, (first, second), strict=True):
            if place is not moment:
                place.copy_(moment, non_blocking=True)
        if decays:
            weights.mul_(1 - self.lr * self.decay)
        divisor = (second / unbiased[1]).sqrt_().add_(self.eps)
        weights.addcdiv_(first, divisor, value=-self.lr / unbiased[0])

    def zero_grad(self) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """For torch.distributed.checkpoint: moments as shards of one tensor, so that other numbers of ranks read them;
        reading writes into the moments themselves."""
        if self.on_host and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # copies to the host may be under way
        state: dict[str, Any] = {}
        meshes: dict[str, DeviceMesh] = {}
        for name, moments in self._moments.items():
            parameter = self._named[name]
            for kind, moment in zip(("first", "second"), moments, strict=True):
                whole: Any = moment
                if isinstance(parameter, DTensor):
                    mesh = parameter.device_mesh
                    if moment.device.type != mesh.device_type:
                        mesh = meshes.setdefault("cpu", init_device_mesh("cpu", (mesh.size(),)))
                    shape, strides = parameter.shape, parameter.stride()
                    whole = DTensor.from_local(moment, mesh, parameter.placements, shape=shape, stride=strides)
                state[f"{name}.{kind}"] = whole
        return state


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local
