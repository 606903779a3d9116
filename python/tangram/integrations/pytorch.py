# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's registry of flash attention: SDPA's flash backend and torch.nn.attention.varlen.varlen_attn on GPUs.

    register()
    torch.nn.attention.activate_flash_attention_impl("tangram")

In PyTorch releases whose varlen_attn asks cuDNN first, call it within sdpa_kernel(SDPBackend.FLASH_ATTENTION).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._flash_attend import Given, Options, _mask_of_batch, _mask_of_borders, attend_batch, attend_packed, refuse
from .._torch_pass import _attention, _backward, _Call, _options, _rows
from ..errors import InvalidArgument, NotAvailable
from ..flex import _import_torch
from ._versions import warn_of_untested

__all__ = ["NAME", "register"]
NAME = "tangram"
_NAME = "flash attention 'tangram'"


def register() -> None:
    """Makes the implementation known to activate_flash_attention_impl. restore_flash_attention_impl undoes that.

    Raises NotAvailable where PyTorch has no such registry (before 2.11).
    """
    try:
        from torch.nn.attention import register_flash_attention_impl
    except ImportError as error:
        raise NotAvailable(f"tangram.integrations.pytorch.register: it needs torch 2.11 (got {error})") from None
    warn_of_untested("torch")
    register_flash_attention_impl(NAME, register_fn=activate)


class _Handle:
    def __init__(self, library: Any) -> None:
        self.library = library

    def remove(self) -> None:
        self.library._destroy()


def activate(dispatch_key: str = "CUDA") -> _Handle:
    """Overrides PyTorch's flash operators. Of fp8 tensors they stay as they are."""
    _import_torch()
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    for name, function in (
        ("_flash_attention_forward", _forward),
        ("_flash_attention_backward", _backward_of_rows),
        ("_scaled_dot_product_flash_attention", _forward_of_heads),
        ("_scaled_dot_product_flash_attention_backward", _backward_of_heads),
    ):
        library.impl(name, function, dispatch_key)
    return _Handle(library)


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    return -1 if left is None else left, -1 if right is None else right


def _options_of(scale: float | None, is_causal: bool, window: tuple[int, int]) -> Options:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return Options(_NAME, scale, is_causal, window, 0.0, deterministic, True)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """aten::_flash_attention_forward: states `[batch, rows, heads, dim]`, or `[rows, heads, dim]` with borders."""
    refuse(_NAME, dropout_p, alibi_slopes)
    if seqused_k is not None or return_debug_mask:
        name = "return_debug_mask" if seqused_k is None else "seqused_k"
        raise InvalidArgument(f"{_NAME}: {name} is not supported (got {name})")
    options = _options_of(scale, is_causal, _window(window_size_left, window_size_right))
    made: Any
    with torch.no_grad():  # autograd differentiates the operator
        if cum_seq_q is None:
            made = attend_batch(query, key, value, options)
        else:
            made = attend_packed(query, key, value, Given(cum_seq_q, cum_seq_k, max_q, max_k), options)
    out, lse, _ = made
    return out, lse.contiguous(), *_unused(query)


def _unused(query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """State of a dropout, and a mask to look at."""
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    offset = torch.zeros((), dtype=torch.uint64, device=query.device)
    return state, offset, torch.empty(0, dtype=query.dtype, device=query.device)


def _backward_of_rows(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    refuse(_NAME, dropout_p)
    options = _options_of(scale, is_causal, _window(window_size_left, window_size_right))
    states = [query, key, value, out, grad_out]
    mask: Any
    packed = query.dim() == 3
    if packed:
        known = _mask_of_borders(query, key, Given(cum_seq_q, cum_seq_k, max_q, max_k), options.window(), _NAME)
        mask, lse = known.mask, logsumexp.transpose(0, 1)
    else:
        (mask,) = _mask_of_batch(query.shape[0], query.shape[1], key.shape[1], options.window())
        states = [x.flatten(0, 1) for x in states]
        lse = logsumexp.transpose(1, 2).flatten(0, 1)
    q, k, v, flat_out, dout = (_rows(x) for x in states)
    attention, watched = _attention(q, k, v, (mask, None, None), None)
    of_call = _options(scale, 0.0, options.deterministic, 0)
    call = _Call(attention, "sh", of_call, None, False, None, watched, None)
    gradients = _backward(call, dout, q, k, v, flat_out.contiguous(), lse.contiguous(), None)[:3]
    if packed:
        return gradients
    dq, dk, dv = (x.view_as(y) for x, y in zip(gradients, (query, key, value), strict=True))
    return dq, dk, dv


def _forward_of_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention: states `[batch, heads, rows, dim]`."""
    rows, keys = query.shape[2], key.shape[2]
    if is_causal and rows != keys:
        raise InvalidArgument(f"{_NAME}: is_causal needs as many queries as keys (got {rows} and {keys})")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse, state, offset, mask = _forward(
        q, k, v, None, None, rows, keys, dropout_p, is_causal, return_debug_mask, scale=scale
    )
    return out.transpose(1, 2), lse, None, None, rows, keys, state, offset, mask


def _backward_of_heads(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    dout, q, k, v, out = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    dq, dk, dv = _backward_of_rows(
        dout,
        q,
        k,
        v,
        out,
        logsumexp,
        None,
        None,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        philox_seed,
        philox_offset,
        scale=scale,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
