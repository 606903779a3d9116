# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a decoder on sequences that share prefixes: as a prefix tree, and packed one after the other.

PYTHONPATH=build/dev/python .venv/bin/python benchmarks/python/tree_steps.py [--tokens 200000] [--layers 4]
    [--recompute] [--batches NAME ...] [--rounds 5] [--limit 100] [--predict RANKS] [--tiny] [--csv FILE]
The decoder has the width of Llama-3.2-1B: hidden 2048, 32/8 heads of 64, MLP 8192, bfloat16. By default it has 4 of the
16 layers and as large a part of the vocabulary of 128,256, so layers, head and attention keep their shares of a step,
and no activation is recomputed; `--recompute` puts each layer into a checkpoint, so that all 16 fit. A step is forward
and backward without an optimizer; the loss is the mean over sequences of the mean log probability of the tokens behind
the prompt. Batches: the first five forests of tests/data/prefix_trees.json, or those named; of each the trees, in
order, that fit into --tokens tokens of sequences.
Systems, in one process and in random turns:
- "tree": one row for each shared token, `tangram.trees` with Tangram's attention.
- "packed": the same sequences as causal documents with Tangram's attention.
- "fa4", else "fa2": the packed sequences with FlashAttention-4 (benchmarks/attn/README.md says how to install it), or
  with the FlashAttention-2 that PyTorch contains. On CPUs "sdpa", a call for each sequence. Over several ranks each has
  sequences of its own, assigned by their work, the longest first: nothing is transferred.
Before timing, log probabilities and gradients of all systems must agree. Predictions are printed before anything runs:
the cost model's attention, and other work at 500 TFLOP/s. CSV on standard output: `ms` medians of the slowest rank;
`tokens_per_s` in tokens of sequences; `peak_gib` what the allocator held at most within a step, less what it held
before; `gain` time of "packed" divided by this one; `predicted` the gain that was predicted; `of_predicted` their
ratio; `peer_ratio` time of the peer divided by this one. Batches that would begin after --limit seconds are named and
left out. Under torchrun rows are of all ranks. `--predict` prints predictions for so many ranks and ends.
`--tiny` is a small model on CPUs in float32, to see that it runs.
"""

import argparse
import os
import random
import statistics
import sys
import time

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kept_attention import slowest
from new_masks import machine
from tree_batches import assigned, read_batches
from tree_decoder import FULL_LAYERS, FULL_VOCABULARY, Decoder, Shape, WeightedLoss, peer_attention, turns_of

import tangram

OTHER_FLOPS = 500e12  # a second, of matrix products outside of attention
COLUMNS = (
    "version,machine,batch,system,ranks,layers,vocabulary,sequences,sequence_tokens,rows,area,edges,ms,tokens_per_s,"
    "peak_gib,gain,predicted,of_predicted,peer_ratio"
)


def predicted_s(tree, weights, shape, ranks):
    """Seconds of a step: attention by the cost model, other work by its matrix products."""
    hidden, heads, heads_kv, dim, wide = shape.layer
    rows = tree.num_rows + tangram.compute_pad_size(tree.num_rows, ranks, 128)
    plan = tangram.plan(tree.mask().padded(rows, rows), ranks, heads=tangram.HeadConfig(heads, heads_kv, dim))
    passes = 2 if shape.recompute else 1
    attention = shape.layers * (passes * plan.predicted.forward_s + plan.predicted.backward_s)
    of_row = shape.layers * hidden * ((2 * heads + 2 * heads_kv) * dim + 3 * wide)
    of_edge = hidden * shape.vocabulary
    flops = (4 + 2 * passes) * tree.num_rows * of_row + 6 * len(tree.targets(weights)) * of_edge
    return attention + flops / ranks / OTHER_FLOPS


class Step:
    """One system on one batch: its rows on the device and what it computes. With `attend` of these sequences of the
    batch alone, else of all, their rows over all ranks."""

    def __init__(self, decoder, tree, weights, shape, attend=None, sequences=None):
        _, heads, heads_kv, dim, _ = shape.layer
        mask, targets = tree.mask(), tree.targets(weights)
        tokens, positions = tree.tokens, tree.positions()
        if attend is not None:
            self.attend = attend
        elif dist.is_initialized():
            key = tangram.mask_key(mask, heads, heads_kv, dim)
            self.attend = lambda q, k, v: tangram.calc_attn(q, k, v, key)[0]
            targets = targets.local(key)
            tokens, positions = (tangram.dispatch(x.to(shape.device), key) for x in (tokens, positions))
        else:
            self.attend = lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, mask)[0]
        self.decoder, self.targets, self.borders, self.weights = decoder, targets, tree.cu_seqlens, weights
        self.sequences = range(tree.num_sequences) if sequences is None else sequences
        self.tokens = tokens.to(shape.device)
        self.turns = turns_of(positions.to(shape.device), dim, shape.dtype)
        self.edges = [x.to(shape.device) for x in (targets.rows, targets.labels, targets.weights.float())]

    def __call__(self):
        """log p of edges; gradients stay in the parameters."""
        self.decoder.zero_grad()
        rows, labels, weights = self.edges
        hidden = self.decoder(self.tokens, self.turns, self.attend).index_select(0, rows)
        loss, log_p = WeightedLoss.apply(hidden, self.decoder.head.weight, labels, weights)
        loss.backward()
        return log_p

    def results(self, num_sequences):
        """Mean log p of each sequence of the batch, and all gradients as one vector."""
        of_token = self.targets.gather(self().cpu()) * self.weights * num_sequences
        sums = torch.zeros(num_sequences, dtype=torch.float64)
        sums[list(self.sequences)] = F.pad(of_token.double().cumsum(0), (1, 0))[self.borders].diff()
        gradients = torch.cat([p.grad.flatten().float() for p in self.decoder.parameters()])
        if dist.is_initialized():
            gradients = gradients.cpu()
            for part in (sums, gradients):
                dist.all_reduce(part)
        return sums, gradients


def timed(step, shape):
    """(ms, bytes) of a step."""
    if dist.is_initialized():
        dist.barrier()
    if shape.device == "cpu":
        begin = time.perf_counter()
        step()
        return (time.perf_counter() - begin) * 1e3, 0
    step.decoder.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated() - held


def systems_of(batch, decoder, shape):
    """By name; the first peer that can do the batch is last."""
    steps = {
        "tree": Step(decoder, batch.tree, batch.weights, shape),
        "packed": Step(decoder, batch.packed, batch.weights, shape),
    }
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own = assigned(batch.packed.lengths, shape, ranks)[rank]
    tree, weights = batch.sequences(own)
    for name in ("sdpa",) if shape.device == "cpu" else ("fa4", "fa2"):
        failure = None
        try:
            peer = Step(decoder, tree, weights, shape, peer_attention(tree, shape, name), own)
            peer()
        except Exception as error:  # a peer that is not installed, or cannot do this
            failure = error
            note(f"no {name}: {' '.join(repr(error).split())[:300]}")
        if not (slowest([failure is not None])[0] if dist.is_initialized() else failure):
            return {**steps, name: peer}
    return steps


def note(text):
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def check(batch, steps, shape):
    """Ends the program unless all systems agree with "packed"."""
    log_p, gradients = steps["packed"].results(batch.packed.num_sequences)
    for name in [name for name in steps if name != "packed"]:  # in one order on all ranks
        other, others = steps[name].results(batch.packed.num_sequences)
        apart = ((other - log_p).abs() / log_p.abs()).max().item()
        norm = ((others - gradients).norm() / gradients.norm()).item()
        note(f"{batch.name}: {name} differs from packed by {apart:.1e} in log p, {norm:.1e} in gradients")
        if not (apart <= shape.log_p_bound and norm <= shape.gradient_bound):
            raise SystemExit("tree_steps: systems must agree before they are timed")


def lines_of(batch, shape, found, predicted, ranks):
    """Lines of COLUMNS."""
    name_of_machine = torch.cuda.get_device_name() if shape.device == "cuda" else machine()
    tokens = batch.packed.num_rows
    peer = next((ms for name, (ms, _) in found.items() if name not in ("tree", "packed")), None)
    for name, (ms, peak) in found.items():
        tree = batch.tree if name == "tree" else batch.packed
        gain = found["packed"][0] / ms
        of_tree = [f"{predicted:.3f}", f"{gain / predicted:.3f}"] if name == "tree" else ["", ""]
        cells = [tangram.__version__, f'"{name_of_machine}"', batch.name, name, ranks, shape.layers, shape.vocabulary]
        cells += [tree.num_sequences, tokens, tree.num_rows, tree.mask().area, len(tree.targets(batch.weights))]
        cells += [f"{ms:.2f}", f"{tokens / ms * 1e3:.0f}", f"{peak / 2**30:.2f}", f"{gain:.3f}", *of_tree]
        yield ",".join(str(cell) for cell in [*cells, f"{peer / ms:.3f}" if peer else ""])


def predict(batches, shape, ranks):
    gains = []
    for batch in batches:
        tree, packed = (predicted_s(t, batch.weights, shape, ranks) for t in (batch.tree, batch.packed))
        gains.append(packed / tree)
        rows = f"{batch.packed.num_rows / batch.tree.num_rows:.2f} x the rows"
        area = f"{batch.packed.mask().area / batch.tree.mask().area:.2f} x the area"
        note(
            f"predicted, {ranks} ranks, {batch.name}: {batch.tree.num_sequences} sequences of {batch.packed.num_rows} "
            f"tokens, {rows}, {area}: tree {tree * 1e3:.1f} ms, packed {packed * 1e3:.1f} ms, gain {gains[-1]:.3f}"
        )
    return gains


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--batches", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=100.0)
    parser.add_argument("--predict", type=int, metavar="RANKS")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    begun = time.monotonic()
    shape = Shape(
        layers=arguments.layers,
        vocabulary=FULL_VOCABULARY * arguments.layers // FULL_LAYERS,
        recompute=arguments.recompute,
    )
    shrink = 1
    if arguments.tiny:
        shape = Shape((64, 4, 2, 32, 128), 2, 100, "cpu", torch.float32, arguments.recompute, 1e-5, 1e-4)
        shrink = 256
    batches = list(read_batches(arguments.tokens // shrink, shrink, shape, arguments.batches))
    if arguments.predict:
        predict(batches, shape, arguments.predict)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if shape.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    gains = predict(batches, shape, ranks)
    torch.manual_seed(0)
    with torch.device(shape.device):
        decoder = Decoder(shape).to(shape.dtype)
    order, lines, left_out = random.Random(0), [COLUMNS], []
    for batch, gain in zip(batches, gains, strict=True):
        late = time.monotonic() - begun
        if (slowest([late])[0] if dist.is_initialized() else late) > arguments.limit:
            left_out.append(batch.name)
            continue
        steps = systems_of(batch, decoder, shape)
        check(batch, steps, shape)
        times = {name: [] for name in steps}
        for _ in range(arguments.rounds):
            for name in order.sample(list(steps), len(steps)):
                figures = timed(steps[name], shape)
                times[name].append(slowest(figures) if dist.is_initialized() else figures)
        found = {name: [statistics.median(column) for column in zip(*t, strict=True)] for name, t in times.items()}
        del steps
        lines += lines_of(batch, shape, found, gain, ranks)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print("\n".join(lines), flush=True)
            if arguments.csv:
                with open(arguments.csv, "a") as file:
                    file.writelines(line + "\n" for line in lines)
        lines.clear()
    if left_out:
        note(f"left out, after {arguments.limit:g} s: {', '.join(left_out)}")
    note(f"{time.monotonic() - begun:.0f} s in all")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
