# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels of the systems beside Tangram: forward to `out` and `lse`, and backward from them, of a step's segments.

Where tensors are in host memory every kernel is `Products`, which is written out and slow.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PACKAGES = {
    "fa4": ("flash_attn.cute.interface", "flash-attn-4"),
    "flex": ("cudnn.flex_attention", "nvidia-cudnn-frontend"),
}


def missing_package(kind: str) -> str | None:
    module, package = PACKAGES[kind]
    try:
        importlib.import_module(module)
    except Exception:  # a broken installation raises more than ImportError
        return package
    return None


@dataclass
class Segments:
    """Runs of queries, one after the other, and the keys that each sees: the last query all of them, the query before
    it one less. Keys of run i begin at key_borders[i]."""

    query_borders: list[int]
    key_borders: list[int]
    keys: list[int]  # of each run, at most key_borders[i + 1] - key_borders[i]

    @classmethod
    def of_documents(cls, borders: list[int]) -> Segments:
        return cls(borders, borders, [b - a for a, b in zip(borders, borders[1:], strict=False)])

    def ranges(self) -> list[tuple[int, int, int, int]]:
        q, k = self.query_borders, self.key_borders
        return [(q[i], q[i + 1], k[i], k[i] + n) for i, n in enumerate(self.keys)]

    @property
    def all_keys_used(self) -> bool:
        return all(b - a == n for a, b, n in zip(self.key_borders, self.key_borders[1:], self.keys, strict=False))


class Products:
    """Attention as it is defined, run by run."""

    def __init__(self, segments: Segments, window: int | None) -> None:
        self.segments, self.window = segments, window

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[heads_kv, queries a key head, queries, keys]"""
        grouped = q.view(len(q), k.shape[1], -1, q.shape[2])
        scores = torch.einsum("qhgd,khd->hgqk", grouped.float(), k.float()) * q.shape[2] ** -0.5
        reach = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
        reach = reach - torch.arange(len(k), device=q.device)
        visible = reach >= 0 if self.window is None else (reach >= 0) & (reach < self.window)
        return scores.masked_fill(~visible, float("-inf"))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q), device=q.device)
        for q0, q1, k0, k1 in self.segments.ranges():
            scores = self._scores(q[q0:q1], k[k0:k1])
            sums = scores.logsumexp(-1)
            products = torch.einsum("hgqk,khd->qhgd", (scores - sums[..., None]).exp(), v[k0:k1].float())
            out[q0:q1] = products.reshape(q1 - q0, *q.shape[1:]).to(q.dtype)
            lse[:, q0:q1] = sums.reshape(q.shape[1], -1)
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (dout.float() * out.float()).sum(-1).T
        scale = q.shape[2] ** -0.5
        for q0, q1, k0, k1 in self.segments.ranges():
            scores = self._scores(q[q0:q1], k[k0:k1])
            of_run = [x[:, q0:q1].reshape(*scores.shape[:3], 1) for x in (lse, delta)]
            p = (scores - of_run[0]).exp()
            grouped = [x[q0:q1].reshape(q1 - q0, k.shape[1], -1, q.shape[2]).float() for x in (dout, q)]
            ds = p * (torch.einsum("qhgd,khd->hgqk", grouped[0], v[k0:k1].float()) - of_run[1]) * scale
            dv[k0:k1] += torch.einsum("hgqk,qhgd->khd", p, grouped[0]).to(v.dtype)
            dk[k0:k1] += torch.einsum("hgqk,qhgd->khd", ds, grouped[1]).to(k.dtype)
            dq[q0:q1] = torch.einsum("hgqk,khd->qhgd", ds, k[k0:k1].float()).reshape(dq[q0:q1].shape).to(q.dtype)
        return dq, dk, dv


class Flash4:
    """FlashAttention-4, packed."""

    def __init__(self, segments: Segments, window: int | None, device: torch.device, deterministic: bool) -> None:
        self.interface = importlib.import_module("flash_attn.cute.interface")
        queries, keys = segments.query_borders, segments.key_borders
        self.options: dict[str, Any] = {
            "causal": window is None,
            "window_size_left": None if window is None else window - 1,
            "window_size_right": None if window is None else 0,
            "cu_seqlens_q": torch.tensor(queries, dtype=torch.int32, device=device),
            "cu_seqlens_k": torch.tensor(keys, dtype=torch.int32, device=device),
            "max_seqlen_q": max(b - a for a, b in zip(queries, queries[1:], strict=False)),
            "max_seqlen_k": max(segments.keys),
        }
        if not segments.all_keys_used:
            used = torch.tensor(segments.keys, dtype=torch.int32, device=device)
            self.options["seqused_k"] = used
        self.deterministic = deterministic

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = self.interface._flash_attn_fwd(q, k, v, return_lse=True, **self.options)[:2]
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        # Gradients of keys that no run uses are not written: they must be zero.
        make = torch.zeros_like if "seqused_k" in self.options else torch.empty_like
        dk, dv = (make(x, memory_format=torch.contiguous_format) for x in (k, v))
        options = {**self.options, "dk": dk, "dv": dv, "deterministic": self.deterministic}
        dq, dk, dv = self.interface._flash_attn_bwd(q, k, v, out, dout.contiguous(), lse, **options)
        return dq, dk, dv


class CudnnFlex:
    """cudnn.flex_attention by an interval of keys for each row. The plan is made of tensors of the shapes to come."""

    def __init__(
        self,
        segments: Segments,
        window: int | None,
        heads: tuple[int, int, int],
        device: torch.device,
        deterministic: bool,
    ) -> None:
        flex = importlib.import_module("cudnn.flex_attention")
        self.execution = importlib.import_module("cudnn.flex_attention.execution")
        borders = torch.tensor(segments.query_borders, device=device)
        rows = segments.query_borders[-1]
        row = torch.arange(rows, device=device)
        first = borders[torch.searchsorted(borders, row, right=True) - 1]
        if window is not None:
            first = torch.maximum(first, row - window + 1)
        intervals = torch.stack([torch.zeros_like(row), first, row + 1]).int()[None].contiguous()
        count, count_kv, dim = heads
        samples = [
            torch.empty(1, rows, n, dim, dtype=torch.bfloat16, device=device) for n in (count, count_kv, count_kv)
        ]
        self.options = {"mask_plan": flex.create_mask_plan(intervals, *samples, build_backward=True)}
        self.deterministic = deterministic

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, _ = self.execution._flex_attention_forward(
            *(x[None].contiguous() for x in (q, k, v)),
            softmax_scale=None,
            return_lse=True,
            return_max_logit=False,
            **self.options,
        )
        return out[0], lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        gradients = self.execution._flex_attention_backward(
            *(x[None].contiguous() for x in (q, k, v, out, dout)),
            lse,
            softmax_scale=None,
            deterministic=self.deterministic,
            dlse_tensor=None,
            **self.options,
        )
        return tuple(x[0] for x in gradients)


class RingKernel:
    """PyTorch's ring with its FlashAttention, whose query heads have key heads of their own: K and V are repeated."""

    def __init__(self, ranks: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental._context_parallel import _attention

        self.ring, self.mesh = _attention, init_device_mesh("cuda", (ranks,))
        self.rest: list[Any] = []  # of the forward pass; alike in all layers, since nothing is dropped

    def _batched(self, *tensors: Tensor, heads: int) -> list[Tensor]:
        repeated = (x.repeat_interleave(heads // x.shape[1], 1) for x in tensors)
        return [x.transpose(0, 1)[None].contiguous() for x in repeated]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        batched = self._batched(q, k, v, heads=q.shape[1])
        out, lse, *self.rest = self.ring._scaled_dot_product_ring_flash_attention(self.mesh, *batched, is_causal=True)
        return out[0].transpose(0, 1).contiguous(), lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        q1, k1, v1, out1, dout1 = self._batched(q, k, v, out, dout, heads=q.shape[1])
        cu_q, cu_k, max_q, max_k, seed, offset = self.rest[:6]
        gradients = self.ring._scaled_dot_product_ring_flash_attention_backward(
            self.mesh, dout1, q1, k1, v1, out1, lse, cu_q, cu_k, max_q, max_k, 0.0, True, seed, offset
        )
        dq, dk, dv = (x[0].transpose(0, 1) for x in gradients)
        return dq, *(x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))


def make_kernel(
    kind: str,
    segments: Segments,
    window: int | None,
    heads: tuple[int, int, int],
    device: torch.device,
    deterministic: bool,
) -> Any:
    """heads: query heads, key heads, and their dim, as this rank's kernel sees them."""
    if device.type != "cuda":
        return Products(segments, window)
    if kind == "flex":
        return CudnnFlex(segments, window, heads, device, deterministic)
    return Flash4(segments, window, device, deterministic)
