# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rows between the whole tensor and the shards of the ranks: dispatch, undispatch, roll, labels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _cuda
from ._core import ShardMoves
from ._named import Named
from ._row_picks import INDEX_BYTES, RowPicks, written
from ._runtime_key import DistAttnRuntimeKey, Rows, Side, require_key
from ._torch_pass import require_no_transform
from ._worker_thread import run_on_worker
from .errors import InvalidArgument

IGNORED = -100
"""The label that torch.nn.functional.cross_entropy ignores by default."""
_MOVES = 32
SIDES: tuple[Side, ...] = ("q", "k")


def get_position_ids(key: DistAttnRuntimeKey, side: Side = "q", device: torch.device | str | None = None) -> Tensor:
    """Global rows of this rank's rows, int64 `[rows]` in the memory of `device` (None: the host's): what rotary
    embeddings need.

    Padded rows come last and have the last position of the sequence, `total_seqlen - 1`: a table of `total_seqlen`
    positions serves every rank. `get_loss_mask` tells which rows are padded.
    """
    rows = _rows_of("get_position_ids", key, side)
    positions = rows.positions.copy_at(_place(device))
    count = rows.per_rank - rows.num_real
    return torch.nn.functional.pad(positions, (0, count), value=rows.total - 1) if count else positions


def get_loss_mask(key: DistAttnRuntimeKey, side: Side = "q", device: torch.device | str | None = None) -> Tensor:
    """Which of this rank's rows are real, bool `[rows]`: padded rows must not count in a loss or a mean."""
    rows = _rows_of("get_loss_mask", key, side)
    mask = torch.ones(rows.per_rank, dtype=torch.bool, device=_place(device))
    mask[rows.num_real :] = False
    return mask


def _rows_of(function: str, key: object, side: Side) -> Rows:
    key = require_key(function, key)
    if side not in key.sizes:
        raise InvalidArgument(f"{function}: side must be 'q' or 'k' (got {side!r})")
    return key.rows(side)


def _place(device: torch.device | str | None) -> torch.device:
    return torch.empty(0, device="cpu" if device is None else device).device  # with its number


def _as_words(x: Tensor) -> Tensor:
    """The bytes of rows as `[rows, 1, n]` of a floating type: rows are copied, whatever they hold. A row of an odd
    number of bytes gets one more."""
    row_bytes = x.contiguous().view(x.shape[0], -1).view(torch.uint8)
    if row_bytes.shape[1] % 2 != 0:
        row_bytes = torch.nn.functional.pad(row_bytes, (0, 1))
    if row_bytes.storage_offset() % 4 != 0:
        row_bytes = row_bytes.clone()
    dtype = torch.float32 if row_bytes.shape[1] % 4 == 0 else torch.float16
    return row_bytes.view(dtype)[:, None]


def _from_words(words: Tensor, like: Tensor) -> Tensor:
    """The way back: rows of the dtype and shape of those of `like`."""
    width = like.numel() // like.shape[0] * like.element_size()
    row_bytes = words[:, 0].view(torch.uint8)[:, :width].contiguous()
    return row_bytes.view(like.dtype).view(-1, *like.shape[1:])


class _Moves:
    """One exchange: which local rows go to which rank, and where received rows belong."""

    def __init__(self, moves: ShardMoves, fingerprint: int) -> None:
        self.send = RowPicks(moves.sends)
        self.send_counts = moves.send_rows
        self.recv_counts = moves.recv_rows
        self.place = RowPicks(moves.places)
        """By wanted row, its place among the received rows."""
        self.most = moves.most_rows
        """The most rows that go from any rank to another one."""
        self.fingerprint = fingerprint
        """Fingerprint of the dispatch, alike on all ranks."""
        self.most_bytes = INDEX_BYTES * moves.most_table_rows
        """Bytes of both tables, on the rank where they are largest: NOTE [bytes of a key]."""

    def run(self, key: DistAttnRuntimeKey, x: Tensor, label: str) -> Tensor:
        """The wanted rows. Collective."""
        if x.numel() == 0:
            return x.new_empty((len(self.place), *x.shape[1:]))
        send = self.send.of(_as_words(x))
        recv = send.new_empty((len(self.place), 1, send.shape[2]))
        key.group.exchange(send, self.send_counts, recv, self.recv_counts, self.most, label, self.fingerprint)
        return _from_words(self.place.of(recv), x)


def _moves(key: DistAttnRuntimeKey, side: Side, name: Any, moves_of: Callable[[Rows], ShardMoves]) -> _Moves:
    rows = key.rows(side)
    known: _Moves | None = rows.derived.get(name)
    if known is None:
        if len(rows.derived) >= _MOVES:
            rows.derived.clear()
        known = rows.derived.setdefault(name, run_on_worker(lambda: _Moves(moves_of(rows), rows.fingerprint)))
        key.has_grown()
    return known


def _gather_moves(key: DistAttnRuntimeKey, side: Side) -> _Moves:
    return _moves(key, side, "gather", lambda rows: rows.map.gather(rows.rank, rows.total))


def prepare_rows(key: DistAttnRuntimeKey) -> None:
    """Data of a key for dispatch and undispatch, microseconds of work. Made on the thread that makes the key, since
    long-lived data must not lie among the tensors of a step (_worker_thread.py)."""
    for side in SIDES:
        _gather_moves(key, side)


def gathered(shard: Tensor, key: DistAttnRuntimeKey, side: Side) -> Tensor:
    """undispatch without autograd."""
    return _gather_moves(key, side).run(key, shard, "undispatch")


def scattered(whole: Tensor, key: DistAttnRuntimeKey, side: Side) -> Tensor:
    """This rank's rows of the sum over ranks of what each holds whole, `[total, ...]`. Collective.

    Added up in rank order and in float32, so that equal addends give equal bits.
    """
    rows = key.rows(side)
    padded = whole.new_zeros((rows.map.seqlen, *whole.shape[1:]))
    padded[: rows.total] = whole
    send = RowPicks(rows.map.rows_of_ranks()).of(padded)
    if send.numel() == 0 or key.cp_size == 1:
        return send
    words = _as_words(send)
    parts = torch.empty_like(words)
    counts = [rows.per_rank] * rows.cp_size
    key.group.exchange(words, counts, parts, counts, rows.per_rank, "undispatch", rows.fingerprint)
    came = _from_words(parts, send).view(rows.cp_size, rows.per_rank, *whole.shape[1:])
    wide = came.float() if came.dtype in (torch.bfloat16, torch.float16) else came
    return wide.sum(0).to(whole.dtype)


def _require_holds(function: str, name: str, value: float, dtype: torch.dtype) -> None:
    """Refuses what `dtype` does not hold: torch lets it wrap around, and -100 in uint8 is the label 156."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (low <= value <= high and value == int(value)):
        raise InvalidArgument(f"{function}: {name} must be a value of {dtype} (got {value})")


def shard_of(x: Tensor, key: DistAttnRuntimeKey, pad_value: float, side: Side) -> Tensor:
    """dispatch without autograd."""
    _require_holds("dispatch", "pad_value", pad_value, x.dtype)
    rows = key.rows(side)
    return rows.real.of(x, _padding(x, rows, pad_value))


def _padding(x: Tensor, rows: Rows, value: float) -> Tensor | None:
    """Rows like those of `x` that fill up a shard."""
    count = rows.per_rank - rows.num_real
    return x.new_full((count, *x.shape[1:]), value) if count else None


def rolled(x: Tensor, key: DistAttnRuntimeKey, shifts: int, side: Side) -> Tensor:
    """roll without autograd."""
    total = key.rows(side).total
    shift = shifts % total
    moves = _moves(key, side, ("roll", shift), lambda rows: rows.map.roll(rows.rank, total, shift))
    return moves.run(key, x, f"roll by {shifts}")


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey, pad_value: float, side: Side) -> Tensor:
        ctx.key, ctx.side = key, side
        return shard_of(x, key, pad_value, side)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Undispatch.apply(grad, ctx.key, ctx.side), None, None, None  # type: ignore[no-untyped-call]


class _Undispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey, side: Side) -> Tensor:
        ctx.key, ctx.side = key, side
        return gathered(x, key, side)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Dispatch.apply(grad, ctx.key, 0.0, ctx.side), None, None  # type: ignore[no-untyped-call]


def dispatch(x: Tensor, key: DistAttnRuntimeKey, pad_value: float = 0.0, side: Side = "q") -> Tensor:
    """This rank's rows of a tensor that every rank holds. Sends nothing; its backward is collective.

    Args:
        x: `[total_seqlen, ...]` of any dtype and further dims, in host or GPU memory.
        pad_value: what padded rows hold: pass the ignored label for labels.
        side: with cross attention, k and v (and what they are made of) take side "k", whose rows have a dispatch of
            their own.

    Returns:
        `[rows of the shard, ...]`, dtype and device of x; rows in GPU memory are put there on the current stream. The
        gradient is gathered: every rank gets the gradient of the whole tensor.

    Raises:
        InvalidArgument: x has not the key's rows, its dtype does not hold pad_value, or side is neither "q" nor "k".
    """
    _check("dispatch", x, key, side)
    total, rows = key.sizes[side]
    if x.ndim < 1 or x.shape[0] != total:
        raise InvalidArgument(f"dispatch: x must have {total} rows on side {side!r} (got shape={tuple(x.shape)})")
    if torch.compiler.is_compiling():
        return torch.ops.tangram.dispatch(x, key.handle, pad_value, side, rows)  # type: ignore[no-any-return]
    return _Dispatch.apply(x, key, pad_value, side)  # type: ignore[no-untyped-call,no-any-return]


def undispatch(x: Tensor, key: DistAttnRuntimeKey, side: Side = "q") -> Tensor:
    """The whole tensor from the ranks' rows, without padding. Collective; its backward sends nothing.

    Args:
        x: this rank's rows, `[rows of the shard, ...]` of any dtype and further dims, alike on all ranks.
        side: "q", or "k" for rows of keys in cross attention.

    Returns:
        `[total_seqlen, ...]` on every rank, dtype and device of x; in GPU memory on the current stream; the host does
        not wait for it. Backward takes this rank's rows of the gradient: every rank is taken to compute the same loss
        from the whole tensor.

    Raises:
        InvalidArgument: on every rank when x of one has not the rows of a shard. Timeout, CommError: a peer is gone;
            over GPUs in a later call, see check_errors.
    """
    check_shard("undispatch", x, key, side)
    if torch.compiler.is_compiling():
        total = key.sizes[side][0]
        return torch.ops.tangram.undispatch(x, key.handle, side, total)  # type: ignore[no-any-return]
    return _Undispatch.apply(x, key, side)  # type: ignore[no-untyped-call,no-any-return]


def _check(function: str, x: object, key: object, side: Side, name: str = "x") -> None:
    if not isinstance(x, Tensor):
        raise InvalidArgument(f"{function}: {name} must be a torch tensor, before the key (got {type(x).__name__})")
    if side not in require_key(function, key).sizes:
        raise InvalidArgument(f"{function}: side must be 'q' or 'k' (got {side!r})")
    if not torch.compiler.is_compiling():
        require_no_transform(function)


def check_shard(function: str, x: Tensor, key: DistAttnRuntimeKey, side: Side) -> None:
    _check(function, x, key, side)
    rows = key.sizes[side][1]
    if x.ndim < 1 or x.shape[0] != rows:
        reason = f"{function}: x must have the {rows} rows of a shard (got shape={tuple(x.shape)})"
        if not torch.compiler.is_compiling():
            key.group.refuse(_cuda.device_of(x), reason)
        raise InvalidArgument(reason)


class _Roll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: DistAttnRuntimeKey, shifts: int, side: Side) -> Tensor:
        ctx.key, ctx.shifts, ctx.side = key, shifts, side
        return rolled(x, key, shifts, side)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Roll.apply(grad, ctx.key, -ctx.shifts, ctx.side), None, None, None  # type: ignore[no-untyped-call]


def _whole(shifts: Any) -> Any:
    if isinstance(shifts, int | torch.SymInt):
        return shifts
    try:
        return operator.index(shifts)
    except TypeError:
        raise InvalidArgument(f"roll: shifts must be an integer (got {shifts!r})") from None


def roll(x: Tensor, key: DistAttnRuntimeKey, shifts: int, dims: int = 0, side: Side = "q") -> Tensor:
    """torch.roll along the global sequence of a dispatched tensor: what multi-token prediction does to labels.

    Moves only the rows that change ranks. Padded rows stay where they are. Collective, and so is its backward.

    Args:
        x: this rank's rows, `[rows of the shard, ...]` of any dtype and further dims, alike on all ranks.
        shifts: row i comes from row `i - shifts` of the sequence, as torch.roll; may be negative.
        dims: 0, or -x.ndim: the sequence.
        side: "q", or "k" for rows of keys in cross attention.

    Returns:
        A tensor like x; in GPU memory on the current stream.

    Raises:
        InvalidArgument: on every rank when x of one has not the rows of a shard; other dims; shifts that are no
            integer. Timeout, CommError: as undispatch.
    """
    if isinstance(x, Tensor) and dims not in (0, -x.ndim):
        raise InvalidArgument(f"roll: the sequence is dimension 0 of a dispatched tensor (got dims={dims})")
    check_shard("roll", x, key, side)
    shifts = _whole(shifts)
    if torch.compiler.is_compiling():
        return torch.ops.tangram.roll(x, key.handle, shifts, side)  # type: ignore[no-any-return]
    return _Roll.apply(x, key, shifts, side)  # type: ignore[no-untyped-call,no-any-return]


def dispatch_labels(
    tokens: Tensor, key: DistAttnRuntimeKey, shift: int = 1, cu_seqlens: Any = None, ignore_index: int = IGNORED
) -> Tensor:
    """The labels of this rank's rows: for row i the token `shift` further on, `ignore_index` where there is none.

    Args:
        tokens: `[total_seqlen]`, which every rank holds: the tokens, or labels that are in place with shift 0.
        cu_seqlens: borders of packed documents, `[documents + 1]` ints; labels do not reach into the next document.

    Padded rows carry ignore_index. Sends nothing; cu_seqlens in GPU memory are copied to the host, which synchronises.
    """
    _check("dispatch_labels", tokens, key, "q", "tokens")
    rows = key.rows("q")
    if tokens.shape != (rows.total,) or shift < 0:
        raise InvalidArgument(
            f"dispatch_labels: tokens must have shape [{rows.total}] and shift must not be negative "
            f"(got shape={tuple(tokens.shape)}, shift={shift})"
        )
    _require_holds("dispatch_labels", "ignore_index", ignore_index, tokens.dtype)
    if isinstance(cu_seqlens, Tensor):
        cu_seqlens = cu_seqlens.cpu()
    with Named("dispatch_labels"):
        borders = [0, rows.total] if cu_seqlens is None else cu_seqlens
        sources, without = rows.map.labels(rows.rank, rows.total, shift, borders)
    labels = RowPicks(sources).of(tokens, _padding(tokens, rows, ignore_index))
    if without.rows > 0:
        labels.index_fill_(0, written(without, torch.int64, tokens.device), ignore_index)
    return labels
