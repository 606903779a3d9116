# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's registry of flash attention with the installed torch. Its operators are those of GPUs: here Tangram's are
put under the CPU's key, so that varlen_attn and SDPA's operator reach them; pytorch_registry_cuda_test.py runs GPUs."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
registry = pytest.importorskip("torch.nn.attention", reason="torch has no registry of flash attention")
if not hasattr(registry, "register_flash_attention_impl"):
    pytest.skip("torch has no registry of flash attention", allow_module_level=True)

from torch.nn.attention.varlen import AuxRequest, varlen_attn  # noqa: E402

from tangram import InvalidArgument  # noqa: E402
from tangram.integrations import pytorch  # noqa: E402

LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
CU = [0, 9, 24, 40]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def active():
    pytorch.register()
    assert "tangram" in registry.list_flash_attention_impls()
    registry.register_flash_attention_impl("tangram on CPU", register_fn=lambda: pytorch.activate("CPU"))
    registry.activate_flash_attention_impl("tangram on CPU")
    assert registry.current_flash_attention_impl() == "tangram on CPU"
    yield
    registry.restore_flash_attention_impl()
    with pytest.raises(NotImplementedError):
        torch.ops.aten._flash_attention_forward(*states(40), None, None, 1, 1, 0.0, False, False)


def states(rows, heads=2):
    torch.manual_seed(rows)
    return [torch.randn(rows, heads, 16, requires_grad=True) for _ in range(3)]


def call_varlen(q, k, v, **options):
    cu = torch.tensor(CU, dtype=torch.int32)
    return varlen_attn(q, k, v, cu, cu, 16, 16, **options)


@pytest.mark.skipif(not LONG, reason="its first call takes torch eight seconds: make test-long runs it")
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (4, 0), (2, 3)])
def test_varlen_attn_reaches_tangram(window):
    q, k, v = states(40)
    out, lse = call_varlen(q, k, v, window_size=window, scale=0.2, return_aux=AuxRequest(lse=True))
    wanted_out, wanted_lse = [], []
    for begin, end in zip(CU, CU[1:]):
        away = torch.arange(end - begin)[None] - torch.arange(end - begin)[:, None]
        hidden = torch.zeros_like(away, dtype=torch.bool)
        hidden |= (away < -window[0]) if window[0] >= 0 else hidden
        hidden |= (away > window[1]) if window[1] >= 0 else hidden
        scores = 0.2 * torch.einsum("qhd,khd->hqk", q[begin:end], k[begin:end])
        scores = scores.masked_fill(hidden, -torch.inf)
        wanted_out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[begin:end]))
        wanted_lse.append(scores.logsumexp(-1))
    torch.testing.assert_close(out, torch.cat(wanted_out), **CLOSE)
    torch.testing.assert_close(lse, torch.cat(wanted_lse, 1), **CLOSE)
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), dout)
    for ours, theirs in zip(found, torch.autograd.grad(torch.cat(wanted_out), (q, k, v), dout), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_of_sdpa_reaches_tangram(causal):
    q, k, v = (x.view(2, 20, 2, 16).transpose(1, 2) for x in states(40))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    # Without autograd the CPU's own kernel; it is another operator, _scaled_dot_product_flash_attention_for_cpu.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert lse.shape == (2, 2, 20)
    torch.testing.assert_close(out, expected, **CLOSE)
    dout = torch.randn_like(out)
    wanted = torch.autograd.grad(expected, (q, k, v), dout)
    for ours, theirs in zip(torch.autograd.grad(out, (q, k, v), dout), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_what_masks_cannot_say_is_refused_by_name():
    q, k, v = (x.detach() for x in states(40))
    forward = torch.ops.aten._flash_attention_forward
    cu = torch.tensor(CU, dtype=torch.int32)
    given = (q, k, v, cu, cu, 16, 16)
    with pytest.raises(InvalidArgument, match=r"flash attention 'tangram': dropout is not supported.*dropout_p=0.1"):
        forward(*given, 0.1, False, False)
    with pytest.raises(InvalidArgument, match="alibi_slopes must be None"):
        forward(*given, 0.0, False, False, alibi_slopes=torch.ones(2))
    with pytest.raises(InvalidArgument, match="seqused_k is not supported"):
        forward(*given, 0.0, False, False, seqused_k=cu)
    with pytest.raises(InvalidArgument, match="return_debug_mask is not supported"):
        forward(*given, 0.0, False, True)
    q, k = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 4, 16)
    with pytest.raises(InvalidArgument, match="is_causal needs as many queries as keys"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, k, 0.0, True)
