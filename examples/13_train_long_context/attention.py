# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of a group, one class a system: which rows a rank holds, and attention of these rows.

`prepare(batch, windows)` says so for one step. All systems serve the same model, data and checkpoints, so losses and
times may be compared. Where a rival's kernels are not installed, `missing` says what is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernels
import rivals
import torch
import torch.distributed as dist
from data import Batch, Refused
from model import Shape
from torch import Tensor

import tangram
import tangram.checkpointing

RIVAL = torch.ops.train_long_context.attend.default
OPERATORS = (*tangram.checkpointing.OPERATORS, RIVAL)
"""What a checkpoint may keep: forward passes of attention."""
STRATEGIES = ("tangram", "ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp", "auto")
DENSE_ROWS = 8192

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Prepared:
    rows: Tensor  # [rows of this rank]: positions in the pack, -1 fills up
    attend: dict[int | None, Attend]  # by window: [rows, heads, head_dim] of this rank's q, k, v to its out


class System:
    """name: as --attention takes it. Every rank prepares the same batches in the same order."""

    def __init__(self, name: str, shape: Shape, device: torch.device, deterministic: bool = False) -> None:
        self.name, self.shape, self.device, self.deterministic = name, shape, device, deterministic
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        raise NotImplementedError

    def prepare_ahead(self, batch: Batch, windows: set[int | None]) -> None:
        """Begins to plan the next step's pack while this step runs; systems that plan nothing do nothing."""

    def remote_rows(self) -> int:
        """Most K/V rows of other ranks that this rank holds at a time, of the step that was prepared last."""
        return 0


class Dense(System):
    """PyTorch's SDPA with the mask written out, in one process: what the tests compare all others with."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.ranks > 1:
            raise Refused(f"attention: dense needs one process (got {self.ranks} ranks); choose another system")

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        if batch.num_rows > DENSE_ROWS:
            raise Refused(f"attention: dense takes {DENSE_ROWS} rows at most (got {batch.num_rows})")
        row = torch.arange(batch.num_rows, device=self.device)
        start = (row.cpu() - batch.positions).to(self.device)
        visible = {}
        for window in windows:
            reach = row[:, None] - row[None]
            near = reach < (window or batch.num_rows)
            visible[window] = (reach >= 0) & near & (start[:, None] == start[None])
        return Prepared(row.cpu(), {window: self._attend(mask) for window, mask in visible.items()})

    @staticmethod
    def _attend(mask: Tensor) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
            return out[0].transpose(0, 1)

        return attend


class Tangram(System):
    """`calc_attn` by a strategy of its planner; on one rank `flex_flash_attn_func`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        strategy = self.name.partition(":")[2] or "tangram"
        if strategy not in STRATEGIES:
            raise Refused(f"attention: strategy must be of {STRATEGIES} (got {self.name!r})")
        self.config = tangram.DistAttnConfig(strategy=strategy)
        self.heads = (self.shape.heads, self.shape.heads_kv, self.shape.head_dim)
        self._keys: list[Any] = []

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        masks = _masks(batch, windows)
        if self.ranks == 1:
            attend = {window: self._alone(mask) for window, mask in masks.items()}
            return Prepared(torch.arange(batch.num_rows), attend)
        # Rows are dispatched for the largest mask; layers of other masks share them.
        (first, mask), *others = masks.items()
        key = tangram.mask_key(mask, *self.heads, dist_attn_config=self.config)
        keys = {first: key}
        for window, other in others:
            keys[window] = tangram.make_mask_key_after_dispatch(other, key)
        self._keys = list(keys.values())
        real = tangram.get_loss_mask(key)
        rows = torch.where(real, tangram.get_position_ids(key), -1)
        return Prepared(rows, {window: self._over_ranks(each) for window, each in keys.items()})

    def prepare_ahead(self, batch: Batch, windows: set[int | None]) -> None:
        if self.ranks > 1:
            tangram.mask_key_async(
                next(iter(_masks(batch, windows).values())), *self.heads, dist_attn_config=self.config
            )

    def remote_rows(self) -> int:
        return max((key.plan.ranks[self.rank].remote_kv_rows for key in self._keys), default=0)

    def _alone(self, mask: tangram.Mask) -> Attend:
        return lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, mask, deterministic=self.deterministic)[0]

    def _over_ranks(self, key: Any) -> Attend:
        return lambda q, k, v: tangram.calc_attn(q, k, v, key, deterministic=self.deterministic)[0]


def _masks(batch: Batch, windows: set[int | None]) -> dict[int | None, tangram.Mask]:
    """By window, the largest mask first."""
    found: dict[int | None, tangram.Mask] = {}
    for window in sorted(windows, key=lambda window: -(window or batch.num_rows)):
        if window is None:
            found[window] = tangram.Mask.varlen(batch.borders, causal=True)
        else:
            found[window] = tangram.Mask.sliding_window(batch.borders, (window - 1, 0))
    return found


class Ulysses(System):
    """Equal contiguous rows; an exchange gives each rank all rows of some heads, and another one takes them back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        heads, heads_kv = self.shape.heads, self.shape.heads_kv
        if heads % self.ranks or (heads_kv % self.ranks and self.ranks % heads_kv):
            raise Refused(
                f"attention: {self.name} needs heads that divide over the ranks "
                f"(got heads={heads}, heads_kv={heads_kv}, ranks={self.ranks}); run fewer ranks, or --attention tangram"
            )
        self.kernel = self.name.partition("_")[2]

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        per_rank = -(-batch.num_rows // self.ranks)
        borders = _filled(batch.borders, per_rank * self.ranks)
        rows = torch.arange(self.rank * per_rank, (self.rank + 1) * per_rank)
        rows[rows >= batch.num_rows] = -1
        segments = kernels.Segments.of_documents(borders)
        heads = (self.shape.heads // self.ranks, max(self.shape.heads_kv // self.ranks, 1), self.shape.head_dim)
        attend = {}
        for window in windows:
            core = kernels.make_kernel(self.kernel, segments, window, heads, self.device, self.deterministic)
            attend[window] = self._attend(rivals.register(core))
        return Prepared(rows, attend)

    def remote_rows(self) -> int:
        return 0  # the buffers of an exchange are as large as its tensors: memory.py

    def _attend(self, core: Any) -> Attend:
        ranks = self.ranks

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if ranks == 1:
                return rivals.attend(q, k, v, core)
            k, v = (x.repeat_interleave(max(1, ranks // x.shape[1]), 1) for x in (k, v))
            q, k, v = rivals.rows_to_heads(q, k, v, ranks)
            return rivals.heads_to_rows(rivals.attend(q, k, v, core), ranks)

        return attend


class Gather(System):
    """All K/V rows on all ranks; query rows contiguous, or of each document one piece from its front and one from its
    back (zigzag). Zigzag balances causal masks and fills documents up to a multiple of 2 * ranks rows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.zigzag = self.name.startswith("gather_zigzag") or self.name == "torch_ring"
        self.gathered = 0

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        layout = rivals.zigzag if self.zigzag else rivals.contiguous
        rows, order, calls = layout(batch.borders, self.rank, self.ranks)
        self.gathered = len(order)
        heads = (self.shape.heads, self.shape.heads_kv, self.shape.head_dim)
        permutation = rivals.Permutation(order, self.device)
        attend = {}
        for window in windows:
            cores = []
            for queries, keys, segments in calls:
                core = kernels.make_kernel("fa4", segments, window, heads, self.device, self.deterministic)
                cores.append((queries, keys, rivals.register(core)))
            attend[window] = self._attend(cores, permutation)
        return Prepared(rows, attend)

    def remote_rows(self) -> int:
        return self.gathered * (self.ranks - 1) // self.ranks

    def _attend(self, cores: list[tuple[slice, slice, Any]], permutation: rivals.Permutation) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            both = torch.cat([k, v], 1)
            if self.ranks > 1:
                both = rivals.AllGather.apply(both, self.ranks)
            both = rivals.Permute.apply(both, permutation)
            k, v = both.split(k.shape[1], 1)
            parts = [rivals.attend(q[queries], k[keys], v[keys], core) for queries, keys, core in cores]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend


class TorchRing(Gather):
    """PyTorch's ring of context parallelism, for one causal document: in host memory, where it has no kernel, its rows
    with gathered keys."""

    core: Any = None

    def prepare(self, batch: Batch, windows: set[int | None]) -> Prepared:
        if len(batch.borders) > 2 or windows != {None}:
            raise Refused(
                "attention: torch_ring knows causal masks alone, neither documents nor windows "
                f"(got {len(batch.borders) - 1} documents, windows {windows}); use --mask causal"
            )
        if self.device.type != "cuda" or self.ranks == 1:
            return super().prepare(batch, windows)
        rows, _, _ = rivals.zigzag(batch.borders, self.rank, self.ranks)
        self.gathered = 2 * len(rows)  # a rank's, and those that come
        core = self.core = self.core or rivals.register(kernels.RingKernel(self.ranks))
        return Prepared(rows, {None: lambda q, k, v: rivals.attend(q, k, v, core)})


SYSTEMS: dict[str, type[System]] = {
    "dense": Dense,
    "tangram": Tangram,
    "ulysses_fa4": Ulysses,
    "ulysses_flex": Ulysses,
    "gather_zigzag": Gather,
    "gather_contiguous": Gather,
    "torch_ring": TorchRing,
}


def missing(name: str, device: torch.device) -> str | None:
    """What is not installed that the system needs on the device; None: nothing. CPUs have a fallback for each."""
    if device.type != "cuda" or name.startswith(("tangram", "dense", "torch_ring")):
        return None
    return kernels.missing_package("flex" if name == "ulysses_flex" else "fa4")


def make_system(name: str, shape: Shape, device: torch.device, deterministic: bool = False) -> System:
    """Raises Refused for a name that is unknown, or a system that is not installed, with the package to install."""
    kind = SYSTEMS.get(name.partition(":")[0])
    if kind is None:
        raise Refused(f"attention: must be one of {', '.join(SYSTEMS)} or tangram:STRATEGY (got {name!r})")
    package = missing(name, device)
    if package is not None:
        raise Refused(f"attention: {name} needs a package that is not installed: pip install {package}")
    return kind(name, shape, device, deterministic)


def _filled(borders: list[int], rows: int) -> list[int]:
    """Rows behind the last document are one of their own."""
    return borders if borders[-1] == rows else [*borders, rows]
