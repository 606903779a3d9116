# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Rates of block-sparse masks by block size and share of visible blocks, Tangram beside its peers, on one GPU.

Peers: `cudnn.flex_attention` (`flex`), FlashAttention-4's block lists (`fa4`) and PyTorch's FlexAttention under
torch.compile (`torch_flex`). All in one process, each call as a CUDA graph, in turns of 12 ms in random order. Prints
CSV: TFLOP/s by visible area (backward counts 2 * area * heads_q * (3 head_dim + 2 head_dim_v)) and the ratio to the
best peer; on standard error why a peer left a cell empty, and how far results differ. Needs a Hopper GPU, torch, triton
and the peers of benchmarks/attn/README.md.

    python benchmarks/attn/block_masks.py [--blocks 128 64 32 16] [--shares 0.12 0.3 0.06 0.6 1.0] [--rows 16384]
        [--head-dim 128] [--systems tangram fa4 flex torch_flex] [--seconds 420] > blocks.csv

Without `--rows`: 16,384, and blocks of 16 at 4,096 and 8,192 too. Masks are random, seeded, their diagonal visible.

How peers are told the mask: flex by the borders of the keys of each row. fa4 by lists of full blocks, of 128 or 64; its
backward tiles are 128 keys, so that blocks of 64 run forward alone. torch_flex by lists of full blocks of 128, and of
64 forward; else by lists of blocks of 128, full and partial, with a mask function that looks the small block up.
"""

import argparse
import gc
import sys
import time
import traceback

import torch
from side_by_side import DEVICE, ROOT, Case, Contest, block_table, cudnn, fa4, mask_of, report, runs_of, visible_blocks
from torch_peers import TILE, BlockMask, flex_attention, flex_call

SYSTEMS = ("tangram", "fa4", "flex", "torch_flex")
HEAD = "version,machine,mask,share,seqlen,heads_q,heads_kv,head_dim,head_dim_v,pass"


def borders_of(table, block):
    """The keys of every row as cuDNN Flex takes them: [1, n, rows], see side_by_side.intervals_of."""
    row, first, behind = runs_of(table)
    runs = torch.bincount(row, minlength=len(table))
    place = torch.arange(len(row)) - (runs.cumsum(0) - runs)[row]
    borders = torch.zeros(2 * int(runs.max()) + 1, len(table), dtype=torch.int32)
    borders[2 * place + 1, row] = (first * block).int()
    borders[2 * place + 2, row] = (behind * block).int()
    borders = borders.cummax(0).values  # rows of fewer runs repeat their last border
    if not borders[1].any():  # all rows see the first key
        borders = borders[2:]
    return borders.repeat_interleave(block, 1)[None].contiguous()


def lists_of(table):
    """How many blocks each row of blocks sees, and which, in front: [1, 1, n] and [1, 1, n, m] int32 on the GPU."""
    order = table.int().argsort(dim=1, descending=True, stable=True)
    return [t.int()[None, None].contiguous().to(DEVICE) for t in (table.sum(1), order)]


def fa4_lists(table, block):
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    counts, indices = lists_of(table)
    empty = torch.zeros_like(counts), torch.zeros_like(indices)
    return BlockSparseTensorsTorch(*empty, counts, indices, block_size=(block, block))


def torch_mask(table, block, tile):
    """A BlockMask of blocks of `tile` keys and rows, which hold one or several blocks of the table."""
    across = tile // block
    shape = (len(table) // across, across, len(table) // across, across)
    visible = table.reshape(shape).sum((1, 3))
    full = visible == across * across
    rows = len(table) * block
    looked_up = None
    if across > 1:
        on_gpu = table.to(DEVICE)

        def looked_up(batch, head, row, key):
            return on_gpu[row // block, key // block]

    partial = (visible > 0) & ~full
    return BlockMask.from_kv_blocks(
        *lists_of(partial), *lists_of(full), BLOCK_SIZE=tile, mask_mod=looked_up, seq_lengths=(rows, rows)
    )


class BlockContest(Contest):
    """Systems on one block mask."""

    def __init__(self, rows, block, share, head_dim):
        self.block, self.share, self.table = block, share, block_table(rows, block, share)
        slices = visible_blocks(self.table, block)
        name = f"blocks{block}"
        super().__init__(Case(name, rows, mask_of(slices), "slices", slices, head_dim=head_dim, head_dim_v=head_dim))

    def note(self, text):
        super().note(f"{self.share:g} visible: {text}")

    def flex_borders(self):
        return borders_of(self.table, self.block).to(DEVICE)

    def add_fa4(self, name):
        if self.block < 64:
            raise ValueError("blocks of 64 or 128 alone")
        lists, transposed = (fa4_lists(t, self.block) for t in (self.table, self.table.T.contiguous()))
        options = {"block_sparse_tensors": lists, "block_sparse_tensors_bwd": transposed}

        def call(q, k, v):
            result = fa4.flash_attn_func(q[None], k[None], v[None], **options)
            return (result[0] if isinstance(result, tuple) else result)[0]

        self.add(name, call)

    def add_torch_flex(self, name):
        torch._dynamo.reset()  # functions of masks before
        call, whole = flex_call(torch_mask(self.table, self.block, TILE)), None
        if self.block == 64:
            tiles = {"BLOCK_M": 64, "BLOCK_N": 64}
            whole = flex_call(torch_mask(self.table, 64, 64), kernel_options=tiles)
            try:
                with torch.no_grad():
                    whole(self.q, self.k, self.v)
            except Exception as error:
                self.note(f"{name} without blocks of 64: {' '.join(repr(error).split())[:300]}")
                whole = None
        self.add(name, call, whole)

    def attempt(self, name, function):
        super().attempt(name, function)
        # The first backward pass that a process captures may fail, whichever system comes first.
        if name == "tangram" and name not in self.backward:
            super().attempt(name, function)

    def gather(self, systems):
        installed = {"tangram": True, "fa4": fa4, "flex": cudnn, "torch_flex": flex_attention}
        for name in systems:
            if installed[name]:
                begin = time.monotonic()
                self.attempt(name, getattr(self, f"add_{name}"))
                self.note(f"{name} made in {time.monotonic() - begin:.1f} s")


def measure(case, head_dim, systems, before):
    """Prints the rows of a mask; whether Tangram's passes could be captured."""
    contest = BlockContest(*case, head_dim)
    contest.gather(systems)
    if "tangram" in systems and "tangram" not in contest.backward:
        return False
    shape = f"{contest.case.rows},{contest.case.heads_q},{contest.case.heads_kv},{head_dim},{head_dim}"
    report(contest, f"{before},{contest.case.name},{contest.share:g},{shape}", SYSTEMS)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[128, 64, 32, 16])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.12, 0.3, 0.06, 0.6, 1.0])
    parser.add_argument("--rows", type=int, nargs="+", help="multiples of 128")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=420, help="no mask begins after that")
    args = parser.parse_args()

    shapes = [(rows, block) for rows in args.rows or [16384] for block in args.blocks]
    if not args.rows and 16 in args.blocks:
        shapes += [(4096, 16), (8192, 16)]
    torch.manual_seed(0)
    version = (ROOT / "VERSION").read_text().strip()
    before = f"{version},{torch.cuda.get_device_name().replace(' ', '_')}"
    print(f"{HEAD},{','.join(f'{s}_tflops' for s in SYSTEMS)},ratio", flush=True)
    begin = time.monotonic()
    cases = [(rows, block, share) for share in args.shares for rows, block in shapes]
    seen = set()
    for case in cases:
        if time.monotonic() - begin > args.seconds:
            raise SystemExit(f"out of time before {case}")
        try:
            if not measure(case, args.head_dim, args.systems, before) and case not in seen:
                cases.append(case)  # a capture failed: once more at the end
            seen.add(case)
        except Exception:  # the next mask may do
            traceback.print_exc()
            sys.stderr.flush()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
