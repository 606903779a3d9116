# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.flash_attn on tensors in GPU memory, over the part of its grid that the kernels take. Needs a Hopper GPU."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from flash_attn_test import GRID, LONG, run_case  # noqa: E402

CAN_RUN = torch.cuda.is_available() and any(b.name == "sm90" and b.available for b in tangram.list_backends())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason="no Hopper GPU")]

TAKEN = [case for case in GRID if case[1] % 8 == 0 and case[2] != torch.float32]
CASES = TAKEN if LONG else random.Random(3).sample(TAKEN, 24)
# Relative L2 errors of whole tensors: those of flex_cuda_test.py.
BOUND = {torch.bfloat16: 4 / 512, torch.float16: 8 / 4096}
FACTOR = {"out": 1, "dq": 3, "dk": 3, "dv": 3, "dsink": 10}


def check(x, want, dtype, what):
    error = np.linalg.norm(x.detach().double().cpu().numpy() - want)
    assert error <= FACTOR[what] * BOUND[dtype] * np.linalg.norm(want) + 1e-3, (what, error, np.linalg.norm(want))


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=lambda x: str(x) if isinstance(x, int) else "")
def test_a_case_of_the_grid(number, case):
    run_case(number, case, "cuda", check, 1e-3)
