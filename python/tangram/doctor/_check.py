# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a case on a backend and compares it with float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._core import HeadConfig
from ..errors import InvalidArgument, NotAvailable
from ..flex import flex_flash_attn_func
from ..mask_buffer import MaskBuffer
from ..tokens import check_token_errors, token_attn_func
from . import _reference
from ._cases import Case, MaskCase, mask_case
from ._reference import Results

BOUNDS = {torch.bfloat16: 4 / 512, torch.float16: 8 / 4096, torch.float32: 2e-5}
"""Relative L2 errors of out: kernels round probabilities and results to 8 or 11 bits of fraction."""
_OF_GRADIENTS = 3
"""Times as large: dS is rounded, too, and rows of few keys have gradients of rounding alone."""
_OF_DSINK = 10
_FLOOR = 0.25
"""Added to the norm of a tensor, for those that are nearly zero."""
_LOGITS = {torch.bfloat16: 2e-3, torch.float16: 2e-3, torch.float32: 1e-4}
"""The largest absolute error of lse and max_logits."""
_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@dataclass
class Inputs:
    """Tensors of a case: q, k, v, dout and the sink."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    sink: Tensor | None
    mask: MaskCase
    cells: Tensor
    indices: Tensor | None = None


@dataclass
class Outcome:
    """What became of a case. errors: of each result how far it is from float64, and how far it may be."""

    name: str
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    refused: str = ""
    failed: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> str:
        return "failed" if self.failed else "refused" if self.refused else "passed"


def make_inputs(case: Case, rows: int, device: torch.device) -> Inputs:
    """Inputs of a case, the same in every run."""
    mask = mask_case(case.mask, rows)
    heads, heads_kv = case.heads
    dim, dim_v = case.dims
    generator = torch.Generator().manual_seed(dim * 1000 + heads * 10 + heads_kv)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, case.dtype)

    q, k = draw(mask.rows, heads, dim), draw(mask.keys, heads_kv, dim)
    v, dout = draw(mask.keys, heads_kv, dim_v), draw(mask.rows, heads, dim_v)
    sink = None
    if case.sink:
        lead = (mask.rows,) if case.sink == "ssh" else ()
        sink = torch.randn((*lead, 2, heads), generator=generator).to(device)
    inputs = Inputs(q, k, v, dout, sink, mask, mask.visible(heads, device))
    if case.how == "tokens":
        scores = torch.rand(mask.rows, heads_kv, mask.keys, generator=generator)
        inputs.indices = scores.topk(min(64, mask.keys // 2), dim=-1).indices.int().to(device)
        inputs.cells = torch.zeros(heads_kv, mask.rows, mask.keys, dtype=torch.bool, device=device)
        inputs.cells.scatter_(2, inputs.indices.long().transpose(0, 1), True)
        inputs.cells = inputs.cells.repeat_interleave(heads // heads_kv, 0)
    return inputs


def mask_buffer(case: Case, inputs: Inputs, backend: str) -> MaskBuffer:
    """For the mask of a case; without a mask yet."""
    heads = HeadConfig(*case.heads, *case.dims, _NAMES[case.dtype])
    device = inputs.q.device if inputs.q.is_cuda else torch.device("cpu")
    return MaskBuffer(
        inputs.mask.rows,
        inputs.mask.keys,
        heads,
        max_documents=8,
        max_slices=16,
        deterministic=case.deterministic,
        device=device,
        backend=backend,
    )


def given_mask(case: Case, inputs: Inputs, backend: str) -> Any:
    """What a call takes for the mask."""
    masks = inputs.mask.masks
    if case.how != "buffer":
        return masks[0] if len(masks) == 1 else list(masks)
    buffer = mask_buffer(case, inputs, backend)
    buffer.set(mask_case("causal", inputs.mask.rows).masks[0])  # one call with it, so that the next one replaces lists
    flex_flash_attn_func(inputs.q, inputs.k, inputs.v, buffer, backend=backend)
    buffer.set(masks[0])
    return buffer


def attend(case: Case, inputs: Inputs, mask: Any, backend: str) -> Results:
    """The case by Tangram: a call and its backward pass."""
    q, k, v = (x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    sink = None if inputs.sink is None else inputs.sink.detach().requires_grad_()
    if inputs.indices is not None:
        out, meta = token_attn_func(q, k, v, inputs.indices, deterministic=case.deterministic, backend=backend)
    else:
        dtype = torch.float32 if case.float32_results else None
        out, meta = flex_flash_attn_func(
            q,
            k,
            v,
            mask,
            sink=sink,
            sink_layout=case.sink or "sh",
            softcap=case.softcap,
            deterministic=case.deterministic,
            out_dtype=dtype,
            grad_dtype=dtype,
            return_max_logits=True,
            backend=backend,
        )
    out.backward(inputs.dout.to(out.dtype))
    if inputs.indices is not None and q.is_cuda:
        torch.cuda.synchronize(q.device)
        check_token_errors(q.get_device())
    dq, dk, dv = (x.grad for x in (q, k, v))
    assert dq is not None and dk is not None and dv is not None
    dsink = None if sink is None else sink.grad
    return Results(out.detach(), meta.lse, meta.max_logits, dq, dk, dv, dsink)


def expected(case: Case, inputs: Inputs) -> Results:
    """Results of a case by float64."""
    return _reference.attention(
        inputs.q, inputs.k, inputs.v, inputs.cells, inputs.dout, softcap=case.softcap, sink=inputs.sink
    )


def _relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / (want.norm() + _FLOOR))


def _absolute(got: Tensor, want: Tensor) -> float:
    """The largest difference; infinite where one of both is and the other is not."""
    got = got.double()
    if not torch.equal(got == -torch.inf, want == -torch.inf):
        return float("inf")
    return float((got - want).masked_fill(want == -torch.inf, 0).abs().amax())


def compare(case: Case, got: Results, want: Results) -> dict[str, tuple[float, float]]:
    """Errors and their bounds, by result."""
    bound = BOUNDS[case.dtype]
    errors = {"out": (_relative(got.out, want.out), bound), "lse": (_absolute(got.lse, want.lse), _LOGITS[case.dtype])}
    if got.max_logits is not None and want.max_logits is not None:
        errors["max_logits"] = (_absolute(got.max_logits, want.max_logits), _LOGITS[case.dtype])
    for name in ("dq", "dk", "dv"):
        errors[name] = (_relative(getattr(got, name), getattr(want, name)), _OF_GRADIENTS * bound)
    if got.dsink is not None and want.dsink is not None:
        errors["dsink"] = (_relative(got.dsink, want.dsink), _OF_DSINK * bound)
    return errors


def too_large(errors: dict[str, tuple[float, float]]) -> str:
    """Which errors exceed their bounds; NaN does."""
    wrong = [f"{name} {error:.2g} > {bound:.2g}" for name, (error, bound) in errors.items() if not error <= bound]
    return ", ".join(wrong)


def run_case(case: Case, rows: int, device: torch.device, backend: str) -> Outcome:
    """Never raises: what a call raises is what the case failed with, or was refused by."""
    outcome = Outcome(case.name)
    try:
        inputs = make_inputs(case, rows, device)
        got = attend(case, inputs, given_mask(case, inputs, backend), backend)
        outcome.errors = compare(case, got, expected(case, inputs))
        outcome.failed = too_large(outcome.errors)
    except (InvalidArgument, NotAvailable) as error:
        if case.may_refuse:
            outcome.refused = str(error)
        else:
            outcome.failed = f"{type(error).__name__}: {error}"
    except Exception as error:  # whatever it is belongs into the report
        outcome.failed = f"{type(error).__name__}: {error}"
    return outcome
