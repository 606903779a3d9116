# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Measures Tangram beside the systems that people use, on one GPU: FlashAttention-4, cuDNN Flex, cuDNN's graph API, and
PyTorch's FlexAttention and FlashAttention-2 (torch_peers.py).

All run in one process, each call as a CUDA graph, in turns of 12 ms in random order, so that all meet the same clocks.
Prints CSV: TFLOP/s by visible area (backward counts 2 * area * heads_q * (3 head_dim + 2 head_dim_v)) and the ratio to
the best peer; on standard error how far results differ and what planning a mask takes. A system that is not installed,
or that cannot do a case, leaves its cell empty. Needs a Hopper GPU, torch and the package tangram; how to install the
peers: benchmarks/attn/README.md.

    python benchmarks/attn/side_by_side.py         # four minutes without torch_flex
    python benchmarks/attn/side_by_side.py --cases cases.json --seconds 300 --systems tangram fa4 flex

A case: {"kind": "causal" or "full", "S": rows}, with "cu": [0, ..., S] for documents; {"kind": "window", "S", "w": keys
back}; {"kind": "slices", "S", "name", "q_ranges", "k_ranges", "attn_types"}; {"kind": "blocks", "S", "B": size, "p":
share of the blocks that are visible}. With "d", "dv", "hq", "hk", "det" where they are not 128, d, 64, 8, false.
"""

import argparse
import contextlib
import gc
import json
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch_peers import block_mask_of, flash2_call, flex_attention, flex_call, mask_function, varlen_attn
from turns import take_turns

import tangram

try:
    import flash_attn.cute as fa4
except Exception as error:  # a broken installation raises more than ImportError
    fa4 = None
    print(f"no FlashAttention-4: {error!r}"[:300], file=sys.stderr)
try:
    import cudnn
    from cudnn.flex_attention import create_mask_plan, flex_attn_func
except Exception as error:
    cudnn = None
    print(f"no cuDNN frontend: {error!r}"[:300], file=sys.stderr)

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
ROUNDS = 7
PEERS = ("fa4", "flex", "cudnn", "torch_flex", "fa2")


@dataclass
class Case:
    name: str
    rows: int
    mask: tangram.Mask
    kind: str  # full, causal, window or slices: what peers can say without a list of slices
    slices: list = field(default_factory=list)  # ((q0, q1), (k0, k1), type) where it takes them
    documents: list | None = None
    window: int | None = None
    heads_q: int = 64
    heads_kv: int = 8
    head_dim: int = 128
    head_dim_v: int = 128
    deterministic: bool = False


def block_table(rows, block, share):
    """Which blocks of a random block mask are visible, [query blocks, key blocks]: a share of them and the diagonal."""
    count = rows // block
    visible = torch.rand(count, count, generator=torch.Generator().manual_seed(5)) < share
    return visible | torch.eye(count, dtype=torch.bool)


def runs_of(table):
    """Runs of neighbouring visible blocks: their rows, first blocks, and blocks behind the last."""
    edges = torch.nn.functional.pad(table.int(), (1, 1)).diff(dim=1)
    row, first = (edges == 1).nonzero().unbind(1)
    return row, first, (edges == -1).nonzero()[:, 1]


def visible_blocks(table, block):
    """Slices of a block mask, one for each run."""
    runs = (t.tolist() for t in runs_of(table))
    return [((i * block, (i + 1) * block), (a * block, b * block), 0) for i, a, b in zip(*runs, strict=True)]


def mask_of(slices):
    return tangram.Mask.from_ranges([s[0] for s in slices], [s[1] for s in slices], [s[2] for s in slices])


def read_case(spec):
    rows, kind = spec["S"], spec["kind"]
    head_dim = spec.get("d", 128)
    shape = {
        "heads_q": spec.get("hq", 64),
        "heads_kv": spec.get("hk", 8),
        "head_dim": head_dim,
        "head_dim_v": spec.get("dv", head_dim),
        "deterministic": spec.get("det", False),
    }
    if kind == "window":
        mask = tangram.Mask.sliding_window(rows, (spec["w"], 0))
        return Case("window", rows, mask, kind, window=spec["w"], **shape)
    if kind == "slices":
        types = spec["attn_types"]
        slices = [(tuple(q), tuple(k), t) for q, k, t in zip(spec["q_ranges"], spec["k_ranges"], types, strict=True)]
        return Case(spec["name"], rows, mask_of(slices), kind, slices, **shape)
    if kind == "blocks":
        slices = visible_blocks(block_table(rows, spec["B"], spec["p"]), spec["B"])
        return Case(f"blocks{spec['B']}", rows, mask_of(slices), "slices", slices, **shape)
    if "cu" in spec:
        borders = spec["cu"]
        mask = tangram.Mask.varlen(borders, causal=kind == "causal")
        kind_number = 1 if kind == "causal" else 0
        slices = [((a, b), (a, b), kind_number) for a, b in zip(borders, borders[1:], strict=False)]
        return Case(f"varlen_{kind}", rows, mask, kind, slices, borders, **shape)
    mask = tangram.Mask.causal(rows) if kind == "causal" else tangram.Mask.full(rows)
    return Case(kind, rows, mask, kind, **shape)


def intervals_of(rows, slices):
    """The keys of every row as cuDNN Flex takes them: [1, n, rows] int32 borders at which visibility changes, n odd.

    Rows are visible from key 0 on up to the first border, so that one of 0 says that they are not.
    """
    of_row = [[] for _ in range(rows)]
    for (q0, q1), (k0, k1), kind in slices:
        for row in range(q0, q1):
            low = max(k0, row + (k0 - q0)) if kind in (2, 3) else k0
            high = min(k1, row + (k1 - q1) + 1) if kind in (1, 3) else k1
            if low < high:
                of_row[row].append((low, high))
    merged = []
    for intervals in of_row:
        joined = []
        for low, high in sorted(intervals):
            if joined and low <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        merged.append(joined)
    most = max(len(joined) for joined in merged)
    all_from_first_key = all(not joined or joined[0][0] == 0 for joined in merged)
    borders = torch.zeros(2 * most - 1 if all_from_first_key else 2 * most + 1, rows, dtype=torch.int32)
    for row, joined in enumerate(merged):
        flat = [border for interval in joined for border in interval]
        flat = flat[1:] if all_from_first_key and joined else [0, *flat]
        flat += [flat[-1] if flat else 0] * (len(borders) - len(flat))
        borders[:, row] = torch.tensor(flat[: len(borders)], dtype=torch.int32)
    return borders[None].contiguous().to(DEVICE)


def flex_borders(case):
    row = torch.arange(case.rows, dtype=torch.int32, device=DEVICE)
    if case.window is not None:
        return torch.stack([torch.zeros_like(row), (row - case.window).clamp(min=0), row + 1])[None].contiguous()
    if case.slices:
        return intervals_of(case.rows, case.slices)
    return (row + 1 if case.kind == "causal" else torch.full_like(row, case.rows))[None, None].contiguous()


class CudnnGraph:
    """cuDNN's own graph API, forward and backward, on one sequence of [rows, heads, dim] tensors."""

    def __init__(self, case, q, k, v, dout):
        self.handle = cudnn.create_handle()
        batched = [t.detach()[None].transpose(1, 2) for t in (q, k, v, dout)]
        self.q, self.k, self.v, self.dout = batched
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(t) for t in (self.dout, self.q, self.k, self.v))
        self.stats = torch.empty(1, case.heads_q, case.rows, 1, device=DEVICE)
        options = {"attn_scale": case.head_dim**-0.5}
        if case.kind in ("causal", "window"):
            options["use_causal_mask"] = True
        if case.window is not None:
            options["sliding_window_length"] = case.window + 1
        self.forward_graph, self.forward_tensors, self.forward_memory = self.build_forward(options)
        self.backward_graph, self.backward_tensors, self.backward_memory = self.build_backward(options)

    def new_graph(self):
        return cudnn.pygraph(
            io_data_type=cudnn.data_type.BFLOAT16,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=self.handle,
        )

    @staticmethod
    def finish(graph):
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        return torch.empty(max(1, graph.get_workspace_size()), device=DEVICE, dtype=torch.uint8)

    def build_forward(self, options):
        graph = self.new_graph()
        q, k, v = (graph.tensor_like(t) for t in (self.q, self.k, self.v))
        out, stats = graph.sdpa(name="forward", q=q, k=k, v=v, is_inference=False, **options)
        out.set_output(True).set_dim(self.out.size()).set_stride(self.out.stride())
        stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
        memory = self.finish(graph)
        return graph, {q: self.q, k: self.k, v: self.v, out: self.out, stats: self.stats}, memory

    def build_backward(self, options):
        graph = self.new_graph()
        given = (self.q, self.k, self.v, self.out, self.dout, self.stats)
        q, k, v, out, dout, stats = (graph.tensor_like(t) for t in given)
        made = graph.sdpa_backward(name="backward", q=q, k=k, v=v, o=out, dO=dout, stats=stats, **options)
        tensors = dict(zip((q, k, v, out, dout, stats), given, strict=True))
        for symbol, tensor in zip(made, (self.dq, self.dk, self.dv), strict=True):
            symbol.set_output(True).set_dim(tensor.size()).set_stride(tensor.stride())
            tensors[symbol] = tensor
        return graph, tensors, self.finish(graph)

    def run(self, graph, tensors, memory):
        cudnn.set_stream(self.handle, torch.cuda.current_stream().cuda_stream)
        graph.execute(tensors, memory, handle=self.handle)

    def forward(self):
        self.run(self.forward_graph, self.forward_tensors, self.forward_memory)

    def backward(self):
        self.run(self.backward_graph, self.backward_tensors, self.backward_memory)


def captured(function):
    """A CUDA graph of one call, as a function that replays it and keeps what the call computes with."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()
    gc.disable()  # a graph that is freed during a capture spoils it
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            function()
    finally:
        gc.enable()

    def replay(kept=function):
        graph.replay()

    return replay


class Contest:
    """All systems on one case: graphs of both passes, and results to compare."""

    def __init__(self, case):
        self.case = case
        rows, options = case.rows, {"device": DEVICE, "dtype": torch.bfloat16}
        self.q = torch.randn(rows, case.heads_q, case.head_dim, requires_grad=True, **options)
        self.k = torch.randn(rows, case.heads_kv, case.head_dim, requires_grad=True, **options)
        self.v = torch.randn(rows, case.heads_kv, case.head_dim_v, requires_grad=True, **options)
        self.dout = torch.randn(rows, case.heads_q, case.head_dim_v, **options)
        self.forward, self.backward, self.results = {}, {}, {}

    def note(self, text):
        print(f"{self.case.name} {self.case.rows}: {text}", file=sys.stderr, flush=True)

    def attempt(self, name, function):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # peers print what they compile
                function(name)
        except Exception as error:  # a peer that cannot do a case leaves its cell empty
            self.note(f"{name} failed: {' '.join(repr(error).split())[:300]}")
            torch.cuda.synchronize()

    def add(self, name, call, forward_call=None):
        """`call(q, k, v)` with gradients by autograd. A forward pass stays where the backward pass cannot be had."""
        leaves = (self.q, self.k, self.v)
        with torch.no_grad():
            self.forward[name] = captured(lambda: (forward_call or call)(*leaves))
        out = call(*leaves)
        self.results[name] = [out.detach().reshape(-1, out.shape[-1])]
        dout = self.dout.reshape(out.shape)
        gradients = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        self.backward[name] = captured(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))
        self.results[name] += [t.reshape(-1, t.shape[-1]) for t in gradients]

    def add_tangram(self, name):
        mask, fixed = self.case.mask, self.case.deterministic
        self.add(name, lambda q, k, v: tangram.flex_flash_attn_func(q, k, v, mask, deterministic=fixed)[0])

    def add_fa4(self, name):
        case = self.case
        options = {"causal": case.kind == "causal", "deterministic": case.deterministic}

        def first(result):
            return result[0] if isinstance(result, tuple) else result

        if case.documents is not None:
            borders = torch.tensor(case.documents, dtype=torch.int32, device=DEVICE)
            longest = max(b - a for a, b in zip(case.documents, case.documents[1:], strict=False))
            options |= {"cu_seqlens_q": borders, "cu_seqlens_k": borders}
            options |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
            self.add(name, lambda q, k, v: first(fa4.flash_attn_varlen_func(q, k, v, **options)))
        else:
            options["window_size"] = (None, None) if case.window is None else (case.window, 0)
            self.add(name, lambda q, k, v: first(fa4.flash_attn_func(q[None], k[None], v[None], **options))[0])

    def flex_borders(self):
        return flex_borders(self.case)

    def add_flex(self, name):
        borders, fixed = self.flex_borders(), self.case.deterministic
        times = []
        for _ in range(2):  # the first one compiles
            begin = time.perf_counter()
            plan = create_mask_plan(borders, self.q[None], self.k[None], self.v[None], build_backward=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        self.note(f"flex plans in {1e3 * times[1]:.1f} ms, first {times[0]:.1f} s")
        self.add(
            name,
            lambda q, k, v: flex_attn_func(q[None], k[None], v[None], mask_plan=plan, deterministic=fixed)[0],
        )

    def add_cudnn(self, name):
        graph = CudnnGraph(self.case, self.q, self.k, self.v, self.dout)
        forward, backward = captured(graph.forward), captured(graph.backward)
        graph.forward()
        graph.backward()
        made = (graph.out, graph.dq, graph.dk, graph.dv)
        self.results[name] = [t[0].transpose(0, 1).reshape(-1, t.shape[-1]).clone() for t in made]
        self.forward[name], self.backward[name] = forward, backward

    def add_torch_flex(self, name):
        torch._dynamo.reset()  # functions of masks before
        case = self.case
        others = self.flex_borders()[0] if case.slices and case.documents is None else None
        function = mask_function(case.kind, case.rows, case.documents, case.window, others, DEVICE)
        self.add(name, flex_call(function and block_mask_of(function, case.rows, DEVICE)))

    def add_fa2(self, name):
        self.add(name, flash2_call(self.case.kind, self.case.rows, self.case.documents, self.case.window, DEVICE))

    def gather(self, systems):
        case = self.case
        typical = not case.slices or case.documents is not None
        can = {
            "tangram": True,
            "fa4": fa4 is not None and typical,
            "flex": cudnn is not None,
            "cudnn": cudnn is not None and not case.slices and not case.deterministic,
            "torch_flex": flex_attention is not None and not case.deterministic,
            "fa2": varlen_attn is not None and typical and not case.deterministic and case.head_dim == case.head_dim_v,
        }
        for name in systems:
            if can[name]:
                self.attempt(name, getattr(self, f"add_{name}"))

    def differences(self):
        """Differences of every peer from Tangram: the largest one of out, relative norms of dq, dk and dv."""
        ours = self.results.get("tangram")
        for name in self.results:
            if ours is None or name == "tangram":
                continue
            out, *gradients = [t.float() for t in self.results[name]]
            largest = (out - ours[0].float()).abs().max().item()
            norms = [((a.float() - b).norm() / b.norm()).item() for a, b in zip(ours[1:], gradients, strict=False)]
            yield f"{name} differs by {largest:.1e}, gradients {'/'.join(f'{n:.1e}' for n in norms)}"

    def rates(self):
        """(pass, {system: TFLOP/s})."""
        case = self.case
        forward_flops = 2 * case.mask.area * case.heads_q * (case.head_dim + case.head_dim_v)
        backward_flops = 2 * case.mask.area * case.heads_q * (3 * case.head_dim + 2 * case.head_dim_v)
        for name, graphs, flops in (
            ("forward", self.forward, forward_flops),
            ("backward", self.backward, backward_flops),
        ):
            if graphs:
                yield name, {system: flops / ms / 1e9 for system, ms in take_turns(graphs, ROUNDS).items()}


def default_cases():
    """The masks of the README's table, and head dim 64."""
    cases = [{"kind": "causal", "S": n * 1024} for n in (1, 2, 8, 16, 64)]
    cases += [{"kind": "full", "S": n * 1024} for n in (1, 16, 64)]
    cases += [{"kind": "window", "S": n * 1024, "w": 1024} for n in (4, 16, 64)]
    cases += [{"kind": kind, "S": n * 1024, "d": 64} for kind in ("causal", "full") for n in (4, 16)]
    return cases


def report(contest, before, systems):
    """Prints a row of each pass behind the cells `before`, and on standard error how far results differ."""
    for name, rates in contest.rates():
        best = max((rate for system, rate in rates.items() if system != "tangram"), default=None)
        ratio = f"{rates['tangram'] / best:.3f}" if best and "tangram" in rates else ""
        cells = ",".join(f"{rates[s]:.0f}" if s in rates else "" for s in systems)
        print(f"{before},{name},{cells},{ratio}", flush=True)
    for difference in contest.differences():
        contest.note(difference)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", help="a JSON list of cases, see above")
    parser.add_argument("--systems", nargs="+", choices=("tangram", *PEERS), default=("tangram", *PEERS))
    parser.add_argument("--seconds", type=float, default=600, help="no case begins after that")
    args = parser.parse_args()

    specs = json.loads(Path(args.cases).read_text()) if args.cases else default_cases()
    torch.manual_seed(0)
    version = (ROOT / "VERSION").read_text().strip()
    machine = torch.cuda.get_device_name().replace(" ", "_")
    systems = ("tangram", *PEERS)
    head = "version,machine,mask,seqlen,heads_q,heads_kv,head_dim,head_dim_v,deterministic,pass"
    print(f"{head},{','.join(f'{s}_tflops' for s in systems)},ratio")
    begin = time.monotonic()
    # The first backward pass that a process captures may fail, whichever system comes first: such a case comes again.
    cases = [(spec, True) for spec in specs]
    for spec, may_repeat in cases:
        if time.monotonic() - begin > args.seconds:
            raise SystemExit(f"out of time before {spec}")
        try:
            case = read_case(spec)
            contest = Contest(case)
            contest.gather(args.systems)
            if may_repeat and "tangram" in args.systems and "tangram" not in contest.backward:
                cases.append((spec, False))
                continue
            shape = f"{case.heads_q},{case.heads_kv},{case.head_dim},{case.head_dim_v},{int(case.deterministic)}"
            report(contest, f"{version},{machine},{case.name},{case.rows},{shape}", systems)
        except Exception:  # the next case may do
            traceback.print_exc()


if __name__ == "__main__":
    main()
