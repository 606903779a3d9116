# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Oracles in NumPy float64, sharing no code with the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def typed_cells(q_ranges, k_ranges, types, seqlen_q, seqlen_k):
    """The dense mask of published ranges, cell by cell from the definition of the four types."""
    cells = np.zeros((seqlen_q, seqlen_k), dtype=bool)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, types, strict=True):
        i = np.arange(q0, q1)[:, None]
        j = np.arange(k0, k1)[None, :]
        visible = np.ones((q1 - q0, k1 - k0), dtype=bool)
        if kind in (1, 3):  # bottom-right aligned
            visible &= j - i <= k1 - q1
        if kind in (2, 3):  # top-left aligned
            visible &= j - i >= k0 - q0
        assert not (cells[q0:q1, k0:k1] & visible).any(), "a cell is covered twice"
        cells[q0:q1, k0:k1] |= visible
    return cells


def mask_cells(mask):
    """The dense form of a tangram.Mask, from its bands."""
    i = np.arange(mask.seqlen_q)[:, None]
    j = np.arange(mask.seqlen_k)[None, :]
    cells = np.zeros((mask.seqlen_q, mask.seqlen_k), dtype=bool)
    for s in mask.slices:
        rows = (s.q_range.begin <= i) & (i < s.q_range.end) & (s.k_range.begin <= j) & (j < s.k_range.end)
        cells |= rows & (s.min_diag <= j - i) & (j - i <= s.max_diag)
    return cells


@dataclass
class Attention:
    out: np.ndarray
    lse: np.ndarray
    max_logits: np.ndarray
    dq: np.ndarray | None = None
    dk: np.ndarray | None = None
    dv: np.ndarray | None = None
    dsink: np.ndarray | None = None


def attention(q, k, v, cells, *, scale=None, softcap=0.0, sink=None, dout=None):
    """Dense attention [rows, heads, dim] and its gradients. sink: [(seqlen_q,) seqlen_sink, heads]."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    kk, vv = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    raw = scale * np.einsum("ihd,jhd->hij", q, kk)
    score = softcap * np.tanh(raw / softcap) if softcap else raw
    slope = 1 - (score / softcap) ** 2 if softcap else np.ones_like(raw)
    score = np.where(cells[None], score, -np.inf)
    logits = score
    if sink is not None:
        sink = np.asarray(sink, dtype=np.float64)
        per_row = np.broadcast_to(sink, (q.shape[0], *sink.shape)) if sink.ndim == 2 else sink
        logits = np.concatenate([score, per_row.transpose(2, 0, 1)], axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = logits.max(axis=2, keepdims=True) if logits.shape[2] else np.full((*logits.shape[:2], 1), -np.inf)
        lse = np.where(np.isfinite(peak), peak + np.log(np.exp(logits - peak).sum(axis=2, keepdims=True)), -np.inf)
        p = np.where(cells[None], np.exp(score - lse), 0.0)
    out = np.einsum("hij,jhd->ihd", p, vv)
    visible = np.where(cells[None], raw, -np.inf)
    result = Attention(out, lse[:, :, 0].T, visible.max(axis=(1, 2), initial=-np.inf))
    if dout is None:
        return result
    dout = np.asarray(dout, dtype=np.float64)
    delta = (dout * out).sum(axis=2).T[:, :, None]
    ds = p * (np.einsum("ihd,jhd->hij", dout, vv) - delta) * slope
    heads_kv = k.shape[1]
    result.dq = scale * np.einsum("hij,jhd->ihd", ds, kk)
    result.dk = scale * np.einsum("hij,ihd->jhd", ds, q).reshape(k.shape[0], heads_kv, group, -1).sum(axis=2)
    result.dv = np.einsum("hij,ihd->jhd", p, dout).reshape(k.shape[0], heads_kv, group, -1).sum(axis=2)
    if sink is not None:
        with np.errstate(invalid="ignore"):
            p_sink = np.where(np.isfinite(lse), np.exp(per_row.transpose(2, 0, 1) - lse), 0.0)
        dsink = (-p_sink * delta).transpose(1, 2, 0)
        result.dsink = dsink.sum(axis=0) if sink.ndim == 2 else dsink
    return result
