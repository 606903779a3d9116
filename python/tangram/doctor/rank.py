# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""One of the two ranks of `tangram doctor --run`: a key over both against float64.

python -m tangram.doctor.rank RANK STORE cpu|cuda ROWS BACKEND
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from .._core import Mask
from .._keys import mask_key
from .._settings import configure
from ..distributed import calc_attn, dispatch, undispatch
from . import _reference
from ._cases import BASIC_MASKS, Case
from ._check import compare, make_inputs, too_large
from ._reference import Results


def check(case: Case, rows: int, device: torch.device) -> dict[str, tuple[float, float]]:
    """Errors of a distributed call and its backward pass."""
    inputs = make_inputs(case, rows, device)
    masks: Mask | list[Mask] = inputs.mask.masks[0] if len(inputs.mask.masks) == 1 else list(inputs.mask.masks)
    key = mask_key(masks, *case.heads, case.dims[0])
    leaves = [x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    q, k, v = (dispatch(x, key) for x in leaves)
    out, meta = calc_attn(q, k, v, key)
    whole = undispatch(out, key)
    torch.autograd.backward(whole, inputs.dout)
    lse = undispatch(meta.lse, key)
    want = _reference.attention(inputs.q, inputs.k, inputs.v, inputs.cells, inputs.dout)
    grads = []
    for leaf in leaves:
        assert leaf.grad is not None
        grads.append(leaf.grad)
    return compare(case, Results(whole.detach(), lse, None, *grads), want)


def main(arguments: list[str]) -> int:
    rank, store, kind, rows, backend = arguments
    device = torch.device(kind, int(rank)) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    configure(timeout_s=30, backend=backend)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    worst: dict[str, tuple[float, float]] = {}
    status = 0
    for name in BASIC_MASKS:
        errors = check(Case(name, name), int(rows), device)
        wrong = too_large(errors)
        if wrong:
            print(f"{name}: {wrong}", flush=True)
            status = 1
        for result, (error, bound) in errors.items():
            worst[result] = max(worst.get(result, (0.0, bound)), (error, bound))
    for result, (error, bound) in worst.items():
        print("error", result, error, bound, flush=True)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
