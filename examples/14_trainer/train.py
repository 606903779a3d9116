# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Transformers' Trainer on packed documents over ranks: one argument makes its context parallelism Tangram's.

A small Mistral, whose layers see a window. Run it by `torchrun --nproc-per-node=2 train.py`: on CPUs Trainer takes DDP;
on Hopper GPUs, with `--device cuda`, FSDP2 in bfloat16. It compares its losses with one process that trains with SDPA.
"""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
from transformers import DataCollatorWithFlattening, MistralConfig, MistralForCausalLM, Trainer, TrainingArguments

from tangram.integrations.accelerate import ParallelismConfig

STEPS, LEARNING_RATE, DOCUMENTS_PER_BATCH = 4, 0.2, 4
CONFIG = MistralConfig(
    vocab_size=64,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,  # fewer than ranks
    head_dim=64,
    sliding_window=24,
    bos_token_id=1,
    eos_token_id=2,
)


class Collator(DataCollatorWithFlattening):
    """Documents one after the other, with position_ids that start again. Remembers what it gave."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def __call__(self, features, **kwargs):
        self.batches.append(super().__call__(features, **kwargs))
        return dict(self.batches[-1])


def documents():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 120, (DOCUMENTS_PER_BATCH * STEPS,), generator=generator).tolist()
    return [{"input_ids": ((7 * i + 3 * torch.arange(n)) % 61 + 3).tolist()} for i, n in enumerate(lengths)]


def model_of(attention):
    torch.manual_seed(0)
    model = MistralForCausalLM(CONFIG)
    model.set_attn_implementation(attention)
    return model


def losses_of_one_process(batches, device, dtype):
    model = model_of("sdpa").to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in batches:
        with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
            loss = model(**{name: x.to(device) for name, x in batch.items()}, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    on_gpus = {"bf16": True, "fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["MistralDecoderLayer"]}}
    collator = Collator()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            parallelism_config=ParallelismConfig(cp_size=int(os.environ["WORLD_SIZE"])),  # this is all
            max_steps=STEPS,
            per_device_train_batch_size=DOCUMENTS_PER_BATCH,
            optim="sgd",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **(on_gpus if device == "cuda" else {"use_cpu": True, "ddp_backend": "gloo"}),
        )
        trainer = Trainer(model_of("eager"), arguments, data_collator=collator, train_dataset=documents())
        trainer.train()
    # Rounding to bfloat16 is at other places in FSDP than under autocast.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 2e-2)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    expected = list(losses_of_one_process(collator.batches[:STEPS], device, dtype))
    for step, (ours, theirs) in enumerate(zip(losses, expected, strict=True)):
        if trainer.is_world_process_zero():
            print(f"step {step}: loss {ours:.6f}, in one process {theirs:.6f}")
        assert abs(ours - theirs) <= bound * theirs, (step, ours, theirs)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
