#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Training steps of Transformers' Trainer with FSDP2 and context parallelism over GPUs: Tangram beside the stack's own.

PYTHONPATH=build/dev/python python benchmarks/python/trainer_steps.py [--gpus 2] [--tokens 32768] [--layers 8]
    [--steps 8] [--limit 400] [--systems tangram torch_cp one_gpu] [--masks causal packs] [--csv FILE] [--tiny]
A Llama of the width of Llama-3.2-1B (hidden 2048, 32/8 heads of 64, MLP 8192, a vocabulary of 32,064), random weights,
bfloat16 by Trainer(bf16=True), layers checkpointed by FSDP; a step is one batch of one sequence of --tokens tokens with
its AdamW step. Masks: "causal", and "packs" of documents of log-normal lengths with a mean of 2,048 (position_ids).
Systems, each a launch of its own:
- "tangram": ParallelismConfig(cp_size=GPUS) of tangram.integrations.accelerate.
- "torch_cp": accelerate's own ParallelismConfig, SDPA over a ring. Of causal masks alone: it drops documents.
- "one_gpu": no parallelism, attn_implementation="tangram" on one GPU; "one_gpu_sdpa" the same with SDPA.
CSV on standard output, in the columns of `tangram bench`: strategy is the system. Figures: "step" the median in ms
after two steps, between synchronised ends of steps on rank 0; "peak" GiB of the allocator on rank 0; "tokens" a second
over all GPUs; "loss 0", "loss 1", ... of the first three steps. Losses of a mask must agree with the first system's
within 1 % (bfloat16 rounds attention at other places), or it is said and the exit status is 1. Systems that fail are
named.
`--tiny`: a small model over CPU ranks in float32 with Tangram and "one_gpu_sdpa" on one of them, to see that it runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
ALONE = ("one_gpu", "one_gpu_sdpa")
COLUMNS = (
    "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,backend,"
    "transport,strategy,figure,unit,value"
)
MEAN_DOCUMENT = 2048
WARM_STEPS = 2


def note(text):
    print(text, file=sys.stderr, flush=True)


def sizes(tiny, layers):
    if tiny:
        width = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
        return {**width, "head_dim": 16, "vocab_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    width = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    return {
        **width,
        "head_dim": 64,
        "vocab_size": 32064,
        "num_hidden_layers": layers,
        "max_position_embeddings": 1 << 20,
    }


def samples(arguments, vocabulary):
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    mean = 40 if arguments.tiny else MEAN_DOCUMENT
    for _ in range(arguments.steps):
        ids = torch.from_numpy(generator.integers(0, vocabulary, arguments.tokens))
        lengths = [arguments.tokens]
        if arguments.mask == "packs":
            drawn = np.maximum(generator.lognormal(np.log(mean) - 0.5, 1.0, arguments.tokens // mean), 1)
            borders = (np.cumsum(drawn) / drawn.sum() * arguments.tokens).astype(int)
            lengths = np.diff(np.unique([0, *borders[:-1].tolist(), arguments.tokens])).tolist()
        positions = torch.cat([torch.arange(n) for n in lengths])
        yield {"input_ids": ids, "labels": ids.masked_fill(positions == 0, -100), "position_ids": positions}


def train(arguments):
    """One system, one mask: writes what it found to arguments.out on rank 0."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    ranks, tiny = int(os.environ.get("WORLD_SIZE", "1")), arguments.tiny
    if not tiny:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    config = LlamaConfig(**sizes(tiny, arguments.layers))
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    options = {"use_cpu": True} if tiny else {"bf16": True}
    if arguments.system == "tangram":
        from tangram.integrations.accelerate import ParallelismConfig

        options["parallelism_config"] = ParallelismConfig(cp_size=ranks)
    elif arguments.system == "torch_cp":
        from accelerate import ParallelismConfig

        options["parallelism_config"] = ParallelismConfig(cp_size=ranks)
        model.set_attn_implementation("sdpa")
    elif arguments.system == "one_gpu":
        from tangram.integrations.transformers import register

        register()
        model.set_attn_implementation("tangram")
    if tiny and ranks > 1:
        options["ddp_backend"] = "gloo"
    elif ranks > 1:
        layers = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "activation_checkpointing": True}
        options |= {"fsdp": True, "fsdp_config": {"version": 2, **layers}}
    else:
        options["gradient_checkpointing"] = True

    class Clock(TrainerCallback):
        ends = []

        def on_step_end(self, args, state, control, **kwargs):
            if not tiny:
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            output_dir=folder,
            report_to=[],
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            max_steps=arguments.steps,
            logging_steps=1,
            per_device_train_batch_size=1,
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            **options,
        )
        trainer = Trainer(
            model, training, train_dataset=list(samples(arguments, config.vocab_size)), callbacks=[Clock()]
        )
        trainer.train()
    if trainer.accelerator.is_main_process:
        times = [(b - a) * 1e3 for a, b in zip(Clock.ends, Clock.ends[1:], strict=False)][WARM_STEPS - 1 :]
        peak = 0 if tiny else torch.cuda.max_memory_allocated() / 2**30
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        name = "cpu" if tiny else torch.cuda.get_device_name()
        Path(arguments.out).write_text(json.dumps({"times": times, "peak": peak, "losses": losses, "machine": name}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def launch(arguments, system, mask, folder):
    ranks = 1 if system in ALONE else arguments.gpus
    out = Path(folder) / f"{system}_{mask}.json"
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [__file__, "--out", str(out), "--system", system, "--mask", mask, "--tokens", str(arguments.tokens)]
    command += ["--layers", str(arguments.layers), "--steps", str(arguments.steps), *["--tiny"] * arguments.tiny]
    one = {} if ranks > 1 else {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    try:
        ran = subprocess.run(
            command, env={**os.environ, **one}, capture_output=True, text=True, timeout=arguments.limit
        )
    except subprocess.TimeoutExpired:
        note(f"{system}, {mask}: took more than {arguments.limit:g} s")
        return None
    if ran.returncode != 0 or not out.exists():
        note(f"{system}, {mask}: failed\n{(ran.stdout + ran.stderr)[-3000:]}")
        return None
    return json.loads(out.read_text())


def lines_of(arguments, system, mask, found, version):
    size = sizes(arguments.tiny, arguments.layers)
    ranks = 1 if system in ALONE else arguments.gpus
    dtype = "float32" if arguments.tiny else "bfloat16"
    cells = [version, f'"{found["machine"]}"', mask, arguments.tokens, arguments.tokens, ranks, ""]
    cells += [
        size["num_attention_heads"],
        size["num_key_value_heads"],
        size["head_dim"],
        size["head_dim"],
        dtype,
        "",
        "",
    ]
    step = statistics.median(found["times"])
    figures = [("step", "ms", f"{step:.2f}"), ("tokens", "1/s", f"{arguments.tokens / step * 1e3:.0f}")]
    figures += [("peak", "GiB", f"{found['peak']:.2f}")] * (not arguments.tiny)
    figures += [(f"loss {i}", "", f"{loss:.5f}") for i, loss in enumerate(found["losses"][:3])]
    return [",".join(str(cell) for cell in [*cells, system, *figure]) for figure in figures]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=200.0, help="seconds a launch may take")
    parser.add_argument("--systems", nargs="+")
    parser.add_argument("--masks", nargs="+", choices=["causal", "packs"], default=["causal", "packs"])
    parser.add_argument("--csv")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--system", help=argparse.SUPPRESS)
    parser.add_argument("--mask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or (256 if arguments.tiny else 32768)
    if arguments.out:
        train(arguments)
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        of_tangram = version("tangram-attention")
    except PackageNotFoundError:
        of_tangram = (Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()
    systems = arguments.systems or (
        ["tangram", "one_gpu_sdpa"] if arguments.tiny else ["tangram", "torch_cp", "one_gpu"]
    )
    agree = True
    print(COLUMNS, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for mask in arguments.masks:
            first = None
            for system in systems:
                if system == "torch_cp" and mask != "causal":
                    continue
                found = launch(arguments, system, mask, folder)
                if found is None:
                    agree = False
                    continue
                lines = lines_of(arguments, system, mask, found, of_tangram)
                print("\n".join(lines), flush=True)
                if arguments.csv:
                    new = not os.path.exists(arguments.csv)
                    with open(arguments.csv, "a") as file:
                        file.writelines(line + "\n" for line in [COLUMNS] * new + lines)
                first = first or found
                for ours, theirs in zip(first["losses"][:3], found["losses"][:3], strict=True):
                    if abs(ours - theirs) > 1e-2 * abs(theirs):
                        note(f"{system}, {mask}: losses {found['losses'][:3]} beside {first['losses'][:3]}")
                        agree = False
    sys.exit(not agree)


if __name__ == "__main__":
    main()
