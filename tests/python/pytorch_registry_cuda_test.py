# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's registry of flash attention on a GPU: varlen_attn and SDPA's flash backend reach Tangram's kernels, with
results and gradients of PyTorch's own kernels."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available() or not hasattr(torch.nn.attention, "register_flash_attention_impl"):
    pytest.skip("needs a GPU and torch 2.11", allow_module_level=True)

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.varlen import varlen_attn  # noqa: E402

from tangram import InvalidArgument  # noqa: E402
from tangram.integrations import pytorch  # noqa: E402

CLOSE = {"rtol": 2e-2, "atol": 2e-2}
"""bfloat16, sums in another order."""


def compare(call, *inputs):
    """call with PyTorch's own kernels, then with Tangram's."""
    found = []
    dout = None
    for active in (False, True):
        if active:
            pytorch.register()
            torch.nn.attention.activate_flash_attention_impl("tangram")
        try:
            leaves = [x.clone().requires_grad_() for x in inputs]
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                out = call(*leaves)
            dout = torch.randn_like(out) if dout is None else dout
            found.append((out, *torch.autograd.grad(out, leaves, dout)))
        finally:
            if active:
                torch.nn.attention.restore_flash_attention_impl()
    for wanted, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, **CLOSE)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (100, 0)])
def test_varlen_attn(window):
    cu = torch.tensor([0, 300, 301, 1024], dtype=torch.int32, device="cuda")
    states = [torch.randn(1024, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    compare(lambda q, k, v: varlen_attn(q, k, v, cu, cu, 723, 723, window_size=window), *states)


@pytest.mark.parametrize("causal", [False, True])
def test_sdpa(causal):
    states = [torch.randn(2, 4, 512, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    compare(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal), *states)


def test_dropout_is_refused_by_name():
    pytorch.register()
    torch.nn.attention.activate_flash_attention_impl("tangram")
    try:
        x = torch.randn(1, 2, 128, 128, device="cuda", dtype=torch.bfloat16)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(InvalidArgument, match="dropout is not supported"):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
