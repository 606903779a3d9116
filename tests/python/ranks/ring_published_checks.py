# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""The published ring_flash_attn over ranks, its kernels of flash-attn replaced by dense attention, beside Tangram's
functions of the same names: signatures, results and gradients. ring_flash_attn_test.py starts the ranks."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import stacks  # noqa: E402
import tangram.integrations.ring_flash_attn as ours  # noqa: E402

HEADS, HEADS_KV, DIM = 4, 2, 16


def dense(q, k, v, scale, causal):
    """out and lse `[batch, heads, rows]` of sequences `[batch, rows, heads, dim]`, causal from the last corner."""
    dtype = q.dtype
    q, k, v = (x.float() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = scale * torch.einsum("bqhd,bkhd->bhqk", q, k)
    if causal:
        rows, keys = scores.shape[2:]
        hidden = torch.arange(keys)[None] > torch.arange(rows)[:, None] + keys - rows
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.nan_to_num((scores - lse[..., None]).exp())
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(dtype), lse


def _flash_attn_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    return_softmax,
):
    return *dense(q, k, v, softmax_scale, causal), None, None


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    """Gradients of a part of all keys, with the lse of all of them."""
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    groups = q.shape[2] // k.shape[2]
    wide_k, wide_v = (x.repeat_interleave(groups, 2) for x in (k, v))
    scores = softmax_scale * torch.einsum("bqhd,bkhd->bhqk", q, wide_k)
    weights = (scores - softmax_lse[..., None]).exp()
    if causal:
        rows, keys = scores.shape[2:]
        weights = weights * (torch.arange(keys)[None] <= torch.arange(rows)[:, None] + keys - rows)
    delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
    dscores = weights * (torch.einsum("bqhd,bkhd->bhqk", dout, wide_v) - delta) * softmax_scale
    dq.copy_(torch.einsum("bhqk,bkhd->bqhd", dscores, wide_k))
    for gradient, wide in (
        (dk, torch.einsum("bhqk,bqhd->bkhd", dscores, q)),
        (dv, torch.einsum("bhqk,bqhd->bkhd", weights, dout)),
    ):
        gradient.copy_(wide.unflatten(2, (-1, groups)).sum(3))


def documents_of(cu_q, cu_k):
    ends_q, ends_k = cu_q.tolist(), cu_k.tolist()
    return zip(*(map(slice, ends, ends[1:]) for ends in (ends_q, ends_k)), strict=True)


def _flash_attn_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
):
    parts = [
        dense(q[None, of_q], k[None, of_k], v[None, of_k], softmax_scale, causal)
        for of_q, of_k in documents_of(cu_seqlens_q, cu_seqlens_k)
    ]
    return torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1), None, None


def _flash_attn_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    rng_state=None,
):
    for of_q, of_k in documents_of(cu_seqlens_q, cu_seqlens_k):
        rows = [x[None, of_q] for x in (dout, q)] + [x[None, of_k] for x in (k, v)]
        of_document = [rows[0], *rows[1:], out[None, of_q], softmax_lse[None, :, of_q]]
        gradients = [dq[None, of_q], dk[None, of_k], dv[None, of_k]]
        _flash_attn_backward(*of_document, *gradients, 0.0, softmax_scale, causal, -1, -1, 0.0, None, False)


def published():
    """Its modules without its __init__, whose adapter imports what Transformers no longer has."""
    interface = ModuleType("flash_attn.flash_attn_interface")
    kernels = (_flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward)
    for kernel in kernels:
        setattr(interface, kernel.__name__, kernel)
    sys.modules |= {"flash_attn": ModuleType("flash_attn"), "flash_attn.flash_attn_interface": interface}
    package = ModuleType("ring_flash_attn")
    package.__path__ = [str(stacks.FOLDER / "ring_flash_attn" / "ring_flash_attn")]
    sys.modules["ring_flash_attn"] = package
    names = ("ring_flash_attn", "ring_flash_attn_varlen", "zigzag_ring_flash_attn", "zigzag_ring_flash_attn_varlen")
    for name in (*names, "stripe_flash_attn", "llama3_flash_attn_varlen"):
        module = importlib.import_module(f"ring_flash_attn.{name}")
        for function, value in vars(module).items():
            if function.endswith("_func") or function == "llama3_flash_attn_prepare_cu_seqlens":
                setattr(package, function, value)
    return package


def compare(theirs, name, shapes, *args, **kwargs):
    torch.manual_seed(dist.get_rank())
    # Its gradients are wrong in float32, whose buffers it takes for copies.
    inputs = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    found, dout = [], None
    for package in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, lse, _ = getattr(package, name)(*leaves, *args, **kwargs, return_attn_probs=True)
        dout = torch.randn_like(out) if dout is None else dout
        out.backward(dout)
        found.append((out.detach(), lse.detach(), *(x.grad for x in leaves)))
    for place, (wanted, got) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=3e-2, msg=lambda t, i=place: f"{name}, result {i}: {t}")


def main():
    dist.init_process_group("gloo")
    theirs = published()
    functions = [name for name in ours.__all__ if name.endswith("_func") or "prepare" in name]
    assert len(functions) == 19 and all(hasattr(theirs, name) for name in functions)
    for name in functions:
        if "packed" in name:
            continue  # whose further arguments are those of the others
        wanted, got = (list(inspect.signature(getattr(x, name)).parameters.values()) for x in (theirs, ours))
        assert [(p.name, p.default) for p in got] == [(p.name, p.default) for p in wanted], name
    batch = [(2, 12, heads, DIM) for heads in (HEADS, HEADS_KV, HEADS_KV)]
    rows = [(20, heads, DIM) for heads in (HEADS, HEADS_KV, HEADS_KV)]
    compare(theirs, "ring_flash_attn_func", batch)
    for name in ("ring", "zigzag_ring", "stripe"):
        compare(theirs, f"{name}_flash_attn_func", batch, causal=True)
        compare(theirs, f"{name}_flash_attn_qkvpacked_func", [(2, 12, 3, HEADS, DIM)], causal=True)
        packed = [(2, 12, HEADS, DIM), (2, 12, 2, HEADS_KV, DIM)]
        compare(theirs, f"{name}_flash_attn_kvpacked_func", packed, causal=True)
    cu = torch.tensor([0, 12, 20], dtype=torch.int32)
    for name in ("ring", "zigzag_ring"):
        compare(theirs, f"{name}_flash_attn_varlen_func", rows, cu, 12, causal=True)
        packed = [(20, HEADS, DIM), (20, 2, HEADS_KV, DIM)]
        compare(theirs, f"{name}_flash_attn_varlen_kvpacked_func", packed, cu, 12, causal=True)
        compare(theirs, f"{name}_flash_attn_varlen_qkvpacked_func", [(20, 3, HEADS, DIM)], cu, 12, causal=True)
    whole = torch.tensor([0, 7, 27, 40], dtype=torch.int32)
    for causal in (True, False):
        prepared = [
            x.llama3_flash_attn_prepare_cu_seqlens(whole, causal, dist.get_rank(), dist.get_world_size())
            for x in (theirs, ours)
        ]
        for wanted, got in zip(*prepared, strict=True):
            assert torch.equal(torch.as_tensor(got), wanted) if isinstance(wanted, torch.Tensor) else got == wanted
        *of_rank, local = prepared[0]
        more = {"heads_k_stride": 1, "local_k_slice": local, "causal": causal}
        compare(theirs, "llama3_flash_attn_varlen_func", rows, *of_rank, **more)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
