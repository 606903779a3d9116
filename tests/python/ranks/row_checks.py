# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of shards: dispatch, undispatch, roll, labels."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tangram
from ranks.step_checks import RANGES, flex_key, whole
from tangram import InvalidArgument


def check_rows(group):
    total = 150
    # Runs of whole chunks, which are taken one by one; and of single rows, for which there are tables.
    scattered = tangram.DistAttnConfig(dispatch=tangram.DispatchConfig("random"))
    keys = flex_key(RANGES, total, group), flex_key(RANGES, total, group, scattered, chunk_size=1)
    for key in keys:
        for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.int32):
            x = torch.arange(total * 2).reshape(total, 2).to(dtype)
            shard = tangram.dispatch(x, key, pad_value=-7)
            positions = tangram.get_position_ids(key)
            real = tangram.get_loss_mask(key)
            assert torch.equal(shard[real], x[positions[real]]) and (shard[~real] == -7).all()
            assert torch.equal(tangram.undispatch(shard, key), x)
            for shifts in (1, -1, 77, 0):
                rolled = tangram.undispatch(tangram.roll(shard, key, shifts), key)
                assert torch.equal(rolled, x.roll(shifts, 0)), (dtype, shifts)
    key = keys[0]
    labels = torch.arange(total)
    assert torch.equal(tangram.undispatch(tangram.dispatch(labels, key), key), labels)

    x = torch.randn(total, 3, generator=torch.Generator().manual_seed(3)).requires_grad_()
    weight = torch.randn(total, 3, generator=torch.Generator().manual_seed(4))
    y = tangram.undispatch(tangram.roll(tangram.dispatch(x, key), key, -1), key)
    y.backward(weight)
    assert torch.equal(x.grad, weight.roll(1, 0))


def check_positions_of_padded_rows(group):
    """A table of exactly the sequence's length serves every rank, those that hold padding too: positions went on beyond
    it there, and an embedding failed on that rank alone."""
    size = dist.get_world_size(group)
    for total in (1, 7, 150):
        key = tangram.mask_key(tangram.Mask.causal(total), 1, 1, 8, group, pad_size=-total % (8 * size) + 8 * size)
        for side in ("q", "k"):
            positions, real = tangram.get_position_ids(key, side), tangram.get_loss_mask(key, side)
            embedded = torch.nn.functional.embedding(positions, torch.arange(total)[:, None])[:, 0]
            assert positions.shape == real.shape and torch.equal(embedded, positions)
            assert torch.equal(positions[real], tangram.dispatch(torch.arange(total), key)[real])
            assert (positions[~real] == total - 1).all(), (positions, real)
        assert len(real) * size > total


def check_bytes_of_a_key(group):
    """What a cache counts of a key follows what is made for it."""
    key = flex_key(RANGES, 152, group, chunk_size=4)
    q, k, v = (tangram.dispatch(x, key) for x in whole(152, 1))
    counted = [key.num_bytes]
    for call in (
        lambda: tangram.roll(q, key, 3),
        lambda: tangram.calc_attn(q, k, v, key),
        lambda: tangram.roll(q, key, 4),
    ):
        call()
        counted.append(key.num_bytes)
        call()
        assert key.num_bytes == counted[-1]
    assert counted == sorted(set(counted)), counted


def check_rows_of_any_kind(group):
    """Odd numbers of bytes, views with offsets, several dimensions, none at all."""
    total = 150
    key = flex_key(RANGES, total, group)
    generator = torch.Generator().manual_seed(9)
    for x in (
        torch.rand(total, generator=generator) < 0.5,
        torch.randint(0, 255, (total, 3), generator=generator, dtype=torch.uint8),
        torch.randint(0, 255, (total, 2, 7), generator=generator, dtype=torch.uint8),
        torch.randn(total + 1, 5, generator=generator).to(torch.float16)[1:],
        torch.randn(7, total, generator=generator).t(),
        torch.randn(total, 2, 3, 2, generator=generator, dtype=torch.float64),
        torch.empty(total, 0),
    ):
        shard = tangram.dispatch(x, key, pad_value=1)
        assert torch.equal(tangram.undispatch(shard, key), x), (x.dtype, x.shape)
        rolled = tangram.undispatch(tangram.roll(shard, key, 5), key)
        assert torch.equal(rolled, x.roll(5, 0)) and rolled.dtype == x.dtype


def check_labels(group):
    """Labels of shards against those of the whole sequence."""
    total, cu = 150, [0, 37, 37, 38, 150]
    key = flex_key(RANGES, total, group)
    tokens = torch.arange(1000, 1000 + total)
    real = tangram.get_loss_mask(key)
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(key.cp_size)]
    dist.all_gather(counts, real.sum()[None], group=group)
    assert sum(counts).item() == total and real.shape[0] * key.cp_size >= total
    for shift in (0, 1, 2, 200):
        for borders in (None, cu, torch.tensor(cu, dtype=torch.int32)):
            labels = tangram.dispatch_labels(tokens, key, shift, borders, ignore_index=-7)
            assert (labels[~real] == -7).all()
            ends = [e for b, e in zip(cu, cu[1:], strict=False) for _ in range(e - b)] if borders is not None else None
            whole = [1000 + i + shift if i + shift < (total if ends is None else ends[i]) else -7 for i in range(total)]
            assert tangram.undispatch(labels, key).tolist() == whole
    for wrong in ([0, 100], [0, 90, 80, 150]):
        try:
            tangram.dispatch_labels(tokens, key, 1, wrong)
        except InvalidArgument as error:
            assert "cu_seqlens must rise from 0 to 150" in str(error), error
        else:
            raise AssertionError("accepted borders that do not fit")
    # -100 became 156 in uint8, a byte like any other, at the end of documents and in padded rows.
    bytes_ = tokens.to(torch.uint8)
    for call, text in (
        (lambda: tangram.dispatch_labels(bytes_, key), "ignore_index must be a value of torch.uint8 (got -100)"),
        (lambda: tangram.dispatch(bytes_, key, pad_value=-100), "pad_value must be a value of torch.uint8 (got -100)"),
        (lambda: tangram.dispatch(tokens, key, pad_value=1.5), "pad_value must be a value of torch.int64 (got 1.5)"),
    ):
        try:
            call()
        except InvalidArgument as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")
    assert (tangram.dispatch_labels(bytes_, key, ignore_index=255)[~real] == 255).all()
