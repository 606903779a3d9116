#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What an installed package says of the machine, and whether it computes: fails if it does not. Needs NumPy."""

import numpy as np

import tangram

print(f"tangram {tangram.__version__}")
for backend in tangram.list_backends():
    print(f"  backend {backend.name}: {'yes' if backend.available else 'no'}, {backend.detail}")

mask = tangram.Mask.varlen([0, 100, 300, 512], causal=True)
rng = np.random.default_rng(0)
q = rng.standard_normal((512, 4, 64), dtype=np.float32)
k, v = rng.standard_normal((2, 512, 2, 64), dtype=np.float32)
out, _ = tangram.flex_flash_attn_func(q, k, v, mask, backend="cpu")
expected, _ = tangram.flex_flash_attn_func(q, k, v, mask, backend="reference")
error = float(np.abs(out - expected).max())
assert error <= 1e-5, error  # sums of float32 against sums of float64
print(f"attention on the CPU differs from float64 by {error:.1e} at most")
