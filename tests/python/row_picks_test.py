# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that are taken out of tensors by runs, against indexing by tables."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tangram  # noqa: E402
from tangram import _core  # noqa: E402
from tangram._row_picks import RowPicks, RowTable, expanded  # noqa: E402

TOTAL = 4000


def dispatch_of(chunk_size, algorithm="random", cp_size=4):
    config = tangram.DistAttnConfig(
        cp_size=cp_size, dispatch=tangram.DispatchConfig(algorithm, chunk_size=chunk_size, seed=3)
    )
    rows = cp_size * chunk_size
    padded = -(-TOTAL // rows) * rows
    return tangram.plan(tangram.Mask.causal(TOTAL).padded(padded, padded), cp_size, config=config).q_dispatch


def positions_of(dispatch, rank):
    owners = torch.tensor(dispatch.rank_of_chunk).repeat_interleave(dispatch.chunk_size)
    return (owners == rank).nonzero()[:, 0]


def exchanged(dispatch, rank, wanted):
    """Tables for the wishes wanted[r] of rank r: (send, send_counts, recv_counts, place, most), as tables of rows say
    it."""
    owner = torch.tensor(dispatch.rank_of_chunk).repeat_interleave(dispatch.chunk_size)
    local = torch.full((dispatch.seqlen,), -1)
    positions = positions_of(dispatch, rank)
    local[positions] = torch.arange(positions.shape[0])
    owners = [owner[w] for w in wanted]
    sends = [local[w[o == rank]] for w, o in zip(wanted, owners, strict=True)]
    counts = [torch.bincount(o, minlength=dispatch.cp_size) for o in owners]
    most = max([int(c[r]) for w, c in enumerate(counts) for r in range(dispatch.cp_size) if r != w], default=0)
    place = torch.argsort(torch.argsort(owners[rank], stable=True))
    return torch.cat(sends), [s.shape[0] for s in sends], counts[rank].tolist(), place, most


def table(runs):
    return RowTable(runs, torch.int64).copy_at(torch.device("cpu"))


@pytest.mark.parametrize("cp_size", [1, 3])
@pytest.mark.parametrize("chunk_size", [1, 7, 500])
def test_moves_are_those_of_tables(chunk_size, cp_size):
    dispatch = dispatch_of(chunk_size, cp_size=cp_size)
    rows = _core.ShardMap(dispatch)
    every = [positions_of(dispatch, r) for r in range(cp_size)]
    for rank in range(cp_size):
        assert torch.equal(table(rows.rows_of_rank(rank, rows.seqlen)), every[rank])
        assert torch.equal(table(rows.rows_of_rank(rank, TOTAL)), every[rank][every[rank] < TOTAL])
        cases = [(rows.gather(rank, TOTAL), [torch.arange(TOTAL)] * cp_size)]
        for shift in (0, 1, -1, 2345, -TOTAL, 3 * TOTAL + 5):
            rolled = [torch.where(p < TOTAL, (p - shift) % TOTAL, p) for p in every]
            cases.append((rows.roll(rank, TOTAL, shift), rolled))
        for moves, wanted in cases:
            send, send_counts, recv_counts, place, most = exchanged(dispatch, rank, wanted)
            assert torch.equal(table(moves.sends), send) and torch.equal(table(moves.places), place)
            assert (moves.send_rows, moves.recv_rows, moves.most_rows) == (send_counts, recv_counts, most)
    assert torch.equal(table(rows.rows_of_ranks()), torch.cat(every))


# One run, a few, more than are taken one by one; long runs of host memory, of which many are.
@pytest.mark.parametrize("chunk_size", [1, 20, 30, 1000])
def test_picks_are_what_indexing_gives(chunk_size):
    dispatch = dispatch_of(chunk_size)
    runs = _core.ShardMap(dispatch).rows_of_rank(1, TOTAL)
    rows = positions_of(dispatch, 1)
    rows = rows[rows < TOTAL]
    x = torch.arange(TOTAL * 6).view(TOTAL, 3, 2)
    padding = torch.full((5, 3, 2), -1)
    picks = RowPicks(runs)
    assert len(picks) == rows.shape[0]
    for each in (x, x[:, ::2], x.double(), x % 3 == 0):
        taken = picks.of(each)
        assert torch.equal(taken, each[rows]) and taken.dtype == each.dtype
        taken.zero_()
        assert each.any()  # in memory of their own
    assert torch.equal(picks.of(x, padding), torch.cat((x[rows], padding)))


def test_no_rows_are_picked():
    runs = _core.ShardMap(dispatch_of(1000)).rows_of_rank(1, 0)
    x = torch.ones(TOTAL, 2)
    assert runs.rows == 0 and RowPicks(runs).of(x).shape == (0, 2)
    assert torch.equal(RowPicks(runs).of(x, x[:3]), x[:3])


@pytest.mark.parametrize("chunk_size", [1, 1000])
def test_tables_are_written_alike_by_torch_and_by_the_library(chunk_size):
    runs = _core.ShardMap(dispatch_of(chunk_size)).rows_of_rank(2, TOTAL)
    for dtype in (torch.int32, torch.int64):
        host = RowTable(runs, dtype)
        assert torch.equal(expanded(runs, dtype, torch.device("cpu")), host.at(torch.device("cpu")))
        assert host.at(torch.device("cpu")) is host.at(torch.device("cpu"))
        assert host.copy_at(torch.device("cpu")).dtype == dtype


def test_tables_of_another_length_are_refused():
    runs = _core.ShardMap(dispatch_of(1000)).rows_of_rank(0, TOTAL)
    with pytest.raises(tangram.InvalidArgument, match=r"RowRuns.write: table must have 1000 elements .*\(got 999"):
        runs.write(torch.empty(999, dtype=torch.int64))
    with pytest.raises(tangram.InvalidArgument, match=r"RowRuns.write_runs: table must be int64 \[2, 1\]"):
        runs.write_runs(torch.empty(2, 5, dtype=torch.int64))
