# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Long-context training end to end: FSDP2, checkpointed layers that keep attention, offload, packed documents.

torchrun --nproc-per-node=2 train.py --steps 5                                       # a toy, on CPUs
torchrun --nproc-per-node=8 train.py --device cuda --size 8B --tokens 1048576 --offload all --moments bf16
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import checkpoints
import data
import keep
import memory
import model as models
import optimiser
import report
import torch
import torch.distributed as dist
from attention import SYSTEMS, make_system
from peers import Peers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--size", choices=models.SHAPES, default="10M")
    p.add_argument("--layers", type=int, help="of the model, to cut its depth")
    p.add_argument("--tokens", type=int, default=1024, help="of a step, over all ranks")
    p.add_argument("--steps", type=int, default=10, help="of the run, with those before it was resumed")
    p.add_argument("--mask", choices=[data.PACKS, data.CAUSAL], default=data.PACKS)
    p.add_argument("--window", type=int, help="keys a row sees in all layers but each --full-every-th")
    p.add_argument("--full-every", type=int, default=6)
    p.add_argument("--attention", default="tangram", help=f"{', '.join(SYSTEMS)}, or tangram:STRATEGY")
    p.add_argument("--deterministic", action="store_true", help="attention's backward pass adds in one order")
    p.add_argument("--keep", choices=keep.KEEPS, default="attention", help="of a layer, beside its input")
    p.add_argument("--offload", choices=keep.OFFLOADS, default="none", help="kept tensors that go to host memory")
    p.add_argument("--moments", choices=optimiser.MOMENTS, default="fp32")
    p.add_argument("--chunk-rows", type=int, default=8192, help="of the MLP at a time")
    p.add_argument("--loss-rows", type=int, default=1024, help="whose logits exist at a time")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--clip", type=float, default=1.0, help="largest norm of gradients")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="folder of steps.csv, steps.svg and checkpoints")
    p.add_argument("--save-every", type=int, default=0, metavar="STEPS")
    p.add_argument("--checkpoints", type=int, default=2, help="that stay")
    p.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out, if there is one")
    p.add_argument("--peak-tflops", type=float, help="of a device, for MFU, where its name does not tell")
    return p


class Run:
    """One rank's part of a run. Use within a process group; `close` at its end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = a = arguments
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(a.device, torch.cuda.current_device() if a.device == "cuda" else None)
        self.dtype = DTYPES[a.device]
        self.shape = memory.shape_of(a.size, a.layers)
        self.windows = [
            None if a.window is None or (i + 1) % a.full_every == 0 else a.window for i in range(self.shape.layers)
        ]
        self.system = make_system(a.attention, self.shape, self.device, a.deterministic)
        self.keeper = keep.Keeper(a.keep, a.offload, self.device)
        self.model = self._sharded()
        self.optimiser = optimiser.AdamW(self.model, a.moments, a.lr, a.eps)
        self.next_step = 0
        self.log = report.Log(a.out) if a.out and self.rank == 0 else None

    def _sharded(self) -> models.Model:
        """Layers one by one: weights are gathered in the dtype of activations; gradients are summed in float32."""
        with torch.device("meta"):
            model = models.Model(self.shape)
        mesh = init_device_mesh(self.device.type, (self.ranks,))
        policy = MixedPrecisionPolicy(param_dtype=self.dtype, reduce_dtype=torch.float32)
        for i, layer in enumerate(model.layers):
            # The last one's backward pass is next.
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=i + 1 < self.shape.layers)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        model.to_empty(device=self.device)
        models.initialise(model, self.arguments.seed, self.rank, self.ranks, self.device)
        return model

    def prepare(self, number: int, timeline: report.Timeline) -> tuple[data.Batch, models.Step]:
        a = self.arguments
        batch = data.batch_of(number, a.tokens, a.mask, a.seed)
        prepared = self.system.prepare(batch, set(self.windows))
        tokens, labels, positions = (x.to(self.device) for x in batch.rows_of(prepared.rows))
        step = models.Step(
            tokens=tokens,
            labels=labels,
            turns=models.turns_of(positions, self.shape.head_dim, self.dtype),
            attend=prepared.attend,
            keeper=self.keeper,
            chunk_rows=a.chunk_rows,
            loss_rows=a.loss_rows,
            windows=self.windows,
            timeline=timeline,
        )
        return batch, step

    def backward(self, batch: data.Batch, step: models.Step) -> torch.Tensor:
        """Gradients of the mean loss over all labels, in the shards; returns this rank's part of it."""
        self.keeper.begin_step(step.timeline)
        part = self.model(step) / batch.num_labels
        (part * self.ranks).backward()  # FSDP averages over the ranks, which hold parts of one sum
        return part.detach()

    def step(self) -> report.StepReport:
        """The next step. Raises FloatingPointError, alike on all ranks, where the loss or its gradient is not finite:
        weights, moments and `next_step` are then those before it."""
        number, a = self.next_step, self.arguments
        timeline = report.Timeline(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        timeline.switch("planning")
        batch, step = self.prepare(number, timeline)
        timeline.switch("fsdp")
        part = self.backward(batch, step)
        timeline.switch("planning")
        if number + 1 < a.steps:
            following = data.batch_of(number + 1, a.tokens, a.mask, a.seed)
            self.system.prepare_ahead(following, set(self.windows))
        timeline.switch("optimiser")
        norm = self.optimiser.gradient_norm()
        loss, norm_value = self._finite(number, part, norm)
        self.optimiser.step(torch.clamp(a.clip / (norm + 1e-12), max=1.0))
        self.optimiser.zero_grad()
        self.next_step += 1
        return self._report(number, batch, step, loss, norm_value, timeline.seconds())

    def _finite(self, number: int, part: torch.Tensor, norm: torch.Tensor) -> tuple[float, float]:
        parts = part.new_empty(self.ranks)
        dist.all_gather_into_tensor(parts, part.reshape(1))
        values, norm_value = parts.tolist(), norm.item()
        wrong = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
        loss = math.fsum(values) if not wrong else math.nan
        if wrong or not math.isfinite(norm_value):
            self.optimiser.zero_grad()
            where = (
                f"loss={values[wrong[0]]} on rank {', '.join(map(str, wrong))}" if wrong else f"gradient={norm_value}"
            )
            raise FloatingPointError(
                f"train: loss and gradient must be finite (got {where}, step={number}); weights and moments are those "
                "before this step: resume from the last checkpoint with a smaller --lr, or look at this step's pack"
            )
        return loss, norm_value

    def _report(
        self, number: int, batch: data.Batch, step: models.Step, loss: float, norm: float, parts: dict[str, float]
    ) -> report.StepReport:
        a, on_gpu = self.arguments, self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated() if on_gpu else 0
        slowest = torch.tensor([parts["step"], float(peak)], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds, peak = slowest.tolist()
        areas = [batch.area(window) for window in self.windows]
        usual, as_computed = (report.flops_of(self.shape, a.tokens, areas, count) for count in (12, 14))
        most = (a.peak_tflops or report.peak_flops(self.device) / 1e12) * 1e12
        return report.StepReport(
            step=number,
            loss=loss,
            gradient_norm=norm,
            tokens=a.tokens,
            documents=len(batch.borders) - 1,
            area=areas[-1],
            ranks=self.ranks,
            seconds=seconds,
            tokens_per_s_per_rank=a.tokens / seconds / self.ranks,
            tflops_per_rank=usual / seconds / self.ranks / 1e12,
            mfu=usual / seconds / self.ranks / most if most else 0.0,
            mfu_backward_2_5=as_computed / seconds / self.ranks / most if most else 0.0,
            peak_gib=peak / memory.GIB,
            estimated_gib=self.estimate(len(step.tokens))["peak"] / memory.GIB,
            host_gib=self.keeper.offload.host_bytes / memory.GIB if self.keeper.offload else 0.0,
            parts=parts,
        )

    def estimate(self, rows: int) -> dict[str, float]:
        a = self.arguments
        policy = {"moments": a.moments, "keep": a.keep, "offload": a.offload}
        chunks = {"chunk_rows": a.chunk_rows, "loss_rows": a.loss_rows, "remote_rows": self.system.remote_rows()}
        return memory.estimate(self.shape, memory.Setting(rows, self.ranks, self.dtype.itemsize, **policy, **chunks))

    def settings(self) -> dict[str, Any]:
        """Arguments that a checkpoint goes with; others, such as --attention and the number of ranks, may change."""
        names = ("size", "layers", "tokens", "mask", "window", "full_every", "moments", "lr", "eps", "clip", "seed")
        return {name: getattr(self.arguments, name) for name in names}

    def _state(self) -> dict[str, Any]:
        self.count = torch.tensor(self.optimiser.count)
        return {"model": dict(self.model.named_parameters()), "moments": self.optimiser.state(), "count": self.count}

    def save(self) -> Path:
        a = self.arguments
        return checkpoints.save(a.out, self.next_step, self._state(), self.settings(), a.checkpoints)

    def load(self) -> bool:
        """Whether there was a checkpoint."""
        state = self._state()
        with torch.no_grad():
            found = checkpoints.load(self.arguments.out, state, self.settings())
        if found is None:
            return False
        self.next_step, self.optimiser.count = found, int(state["count"])
        return True


def train(run: Run) -> None:
    a = run.arguments
    if a.resume and run.load() and run.rank == 0:
        print(f"resumed before step {run.next_step} from {a.out}", flush=True)
    while run.next_step < a.steps:
        found = run.step()
        if run.rank == 0:
            print(found.line(), flush=True)
            if run.log:
                run.log.add(found)
        if a.save_every and run.next_step % a.save_every == 0:
            path = run.save()
            if run.rank == 0:
                print(f"wrote {path}", flush=True)
    if run.log and run.log.path.exists():
        print(f"drew {run.log.draw()}", flush=True)


def start(device: str) -> None:
    """The process group: of one process, or of torchrun's."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def main(argv: list[str] | None = None, make_run: Any = Run) -> int:
    p = parser()
    arguments = p.parse_args(argv)
    if (arguments.save_every or arguments.resume) and not arguments.out:
        p.error("--save-every and --resume need --out FOLDER")
    start(arguments.device)
    run: Run | None = None
    store = dist.distributed_c10d._get_default_store()
    doing = lambda: f"in step {run.next_step}" if run else "at its start"  # noqa: E731
    peers = Peers(store, dist.get_rank(), dist.get_world_size(), doing)
    try:
        run = make_run(arguments)
        if dist.get_rank() == 0:
            estimate = run.estimate(-(-arguments.tokens // run.ranks))
            shown = {name: round(size / memory.GIB, 2) for name, size in estimate.items()}
            print(
                f"{memory.parameters_of(run.shape):,} parameters; GiB a rank, estimated: {json.dumps(shown)}",
                flush=True,
            )
        train(run)
    except (FloatingPointError, checkpoints.CheckpointError, data.Refused) as error:  # alike on all ranks
        peers.close()
        if dist.get_rank() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
    except Exception as error:
        # If a peer is gone, its name is the better error; its connection says so within moments.
        traceback.print_exc()
        peers.wait_for_news()
        peers.fail(f"{type(error).__name__}: {error}")
        status = 1
    else:
        peers.close()
        status = 0
    if status:
        sys.stdout.flush()
        os._exit(status)  # what waits for peers in threads of collectives would not end
    dist.barrier()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
