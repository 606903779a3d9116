# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Trains with Trainer, TRL's SFTTrainer or Accelerate, and writes what came out: in one process without Tangram, over
ranks with it. Arguments: OUT, TRAINER, FAMILY, LAYOUT, and any of OPTIONS. trainer_test.py compares."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import DataCollatorWithFlattening, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model_batches import model_of  # noqa: E402

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
OPTIONS = {
    "accumulate": {"gradient_accumulation_steps": 2},
    "checkpoint": {"gradient_checkpointing": True},
    "own_tokens": {"average_tokens_across_devices": False},
}


def documents(count, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 60, (count,), generator=generator).tolist()
    return [{"input_ids": torch.randint(1, 64, (n,), generator=generator).tolist()} for n in lengths]


def padded(left):
    def fill(row, longest, value):
        missing = longest - len(row)
        return torch.nn.functional.pad(row, (missing, 0) if left else (0, missing), value=value)

    def collate(samples):
        rows = [torch.tensor(sample["input_ids"]) for sample in samples]
        longest = max(map(len, rows))
        batch = {
            "input_ids": torch.stack([fill(row, longest, 0) for row in rows]),
            # No label for the first token, which padding on the left would predict.
            "labels": torch.stack([fill(row.index_fill(0, torch.tensor(0), -100), longest, -100) for row in rows]),
            "attention_mask": torch.stack([fill(torch.ones_like(row), longest, 0) for row in rows]),
        }
        if left:
            batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        return batch

    return collate


def collator_of(layout):
    if layout.startswith("padded"):
        return padded(layout == "padded_left")
    return DataCollatorWithFlattening(return_flash_attn_kwargs=layout == "flattened")


def sft_trainer(model, layout, given, more):
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    vocabulary = {f"t{i}": i for i in range(64)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, "t1")), pad_token="t0", eos_token="t2", unk_token="t1"
    )
    config = {
        "bf16": False,  # unlike Trainer, True by default
        "router_aux_loss_coef": 0.0,  # of gpt-oss, whose config asks for the loss of its router
        "padding_free": layout == "flattened",
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},  # tokens are there already
        **more.pop("config", {}),
    }
    arguments = SFTConfig(**given, **config)
    more |= {
        name: Dataset(InMemoryTable.from_pylist(more[name]), fingerprint=name)
        for name in ("train_dataset", "eval_dataset")
    }
    return SFTTrainer(model, arguments, processing_class=tokenizer, **more)


class Gradients(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Clipped to max_grad_norm, and averaged over ranks."""
        model = getattr(model, "module", model)
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def settings(folder, options):
    parallel = {}
    if WORLD > 1:
        from tangram.integrations.accelerate import ParallelismConfig

        parallel = {"parallelism_config": ParallelismConfig(cp_size=WORLD), "ddp_backend": "gloo"}
    merged = {key: value for option in options for key, value in OPTIONS[option].items()}
    return {
        "output_dir": folder,
        "use_cpu": True,
        "report_to": [],
        "optim": "sgd",
        "learning_rate": 0.3,
        "lr_scheduler_type": "constant",
        "max_steps": 3,
        "logging_steps": 1,
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        **parallel,
        **merged,
    }


def trainer_of(kind, family, layout, options, folder, **more):
    model = model_of(family)
    if WORLD == 1:
        model.set_attn_implementation("eager")
    given = {"train_dataset": documents(24, 3), "eval_dataset": documents(5, 4), **more}
    if kind == "trl":
        return sft_trainer(model, layout, settings(folder, options), given)
    return Trainer(model, TrainingArguments(**settings(folder, options)), data_collator=collator_of(layout), **given)


def check_refusals(kind):
    """Before anything is computed."""
    with tempfile.TemporaryDirectory() as folder:

        def refused(text, act, family="llama", **more):
            try:
                act(trainer_of(kind, family, "flattened", [], folder, **more))
            except ValueError as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"not refused: {text}")

        def with_smoothing(trainer):
            from transformers.trainer_pt_utils import LabelSmoother

            trainer.label_smoother = LabelSmoother(0.1)
            trainer.train()

        def train(trainer):
            trainer.train()

        logits = "Trainer: prediction_loss_only must be True with cp_size"
        refused(logits, lambda trainer: trainer.predict(trainer.eval_dataset))
        refused(logits, lambda trainer: trainer.evaluate(), compute_metrics=lambda outputs: {})
        labels = "context_parallel: labels must be given"
        refused(labels, train, compute_loss_func=lambda *args, **kwargs: None)
        refused(labels, with_smoothing)
        if kind == "trl":
            refused("packing", train, config={"packing": True, "padding_free": False})
            router = "output_router_logits must be False"
            refused(router, train, family="gpt_oss", config={"router_aux_loss_coef": 0.01})
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def accelerate_loop(family, layout, gradients):
    """A loop of one's own, whose loss is the mean over its batch."""
    from accelerate import Accelerator

    parallel = {}
    if WORLD > 1:
        from tangram.integrations.accelerate import ParallelismConfig

        parallel = {"parallelism_config": ParallelismConfig(cp_size=WORLD)}
    accelerator = Accelerator(cpu=True, **parallel)
    model = model_of(family)
    if WORLD == 1:
        model.set_attn_implementation("eager")
    loader = torch.utils.data.DataLoader(documents(24, 3), batch_size=3, collate_fn=collator_of(layout))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3), loader)
    losses = []
    for _, batch in zip(range(3), loader, strict=False):
        loss = model(**batch, use_cache=False).loss
        accelerator.backward(loss)
        gradients.on_pre_optimizer_step(None, None, None, model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return accelerator, model, [{"loss": loss} for loss in losses]


def main():
    if sys.argv[1] == "refusals":
        check_refusals(sys.argv[2])
        return
    out, kind, family, layout, *options = sys.argv[1:]
    gradients = Gradients()
    evaluated = []
    with tempfile.TemporaryDirectory() as folder:
        if kind == "accelerate":
            accelerator, model, history = accelerate_loop(family, layout, gradients)
        else:
            trainer = trainer_of(kind, family, layout, options, folder, callbacks=[gradients])
            evaluated.append(trainer.evaluate()["eval_loss"])
            trainer.train()
            evaluated.append(trainer.evaluate()["eval_loss"])
            accelerator, model, history = trainer.accelerator, trainer.model, trainer.state.log_history
    model = accelerator.unwrap_model(model)
    prompt = torch.tensor([[5, 6, 7, 8]])
    text = model.eval().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    if accelerator.is_main_process:
        torch.save(
            {
                "loss": [entry["loss"] for entry in history if "loss" in entry],
                "grad_norm": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
                "eval_loss": evaluated,
                "gradients": gradients.steps,
                "text": text,
            },
            out,
        )
    if WORLD > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
