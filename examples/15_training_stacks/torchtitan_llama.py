# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan's Trainer on packed documents, with attention over ranks by Tangram: two lines. A job may have them in the
module of experimental.custom_import.

Run it by `torchrun --nproc-per-node=2 torchtitan_llama.py` on GPUs with torchtitan 0.2.2 installed.
"""

import os
from dataclasses import replace
from types import SimpleNamespace

import torch
from torchtitan.config import JobConfig
from torchtitan.models.llama3 import TransformerModelArgs
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
from torchtitan.train import Trainer

from tangram.integrations.torchtitan import install

LENGTH, STEPS, END = 512, 4, 0


class Documents:
    """Batches that every rank of a context-parallel group reads; END ends a document."""

    def __iter__(self):
        tokens = 1 + (7 * torch.arange(LENGTH + 1)) % 61
        tokens[::100] = END
        for _ in range(STEPS):
            yield {"input": tokens[None, :-1].clone()}, tokens[None, 1:].clone()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def main():
    install()  # Tangram's part
    spec = replace(
        get_train_spec("llama3"),
        model_args={
            "tiny": TransformerModelArgs(
                dim=128,
                n_layers=2,
                n_heads=4,
                n_kv_heads=2,
                vocab_size=64,
                attn_type="flex",
                attn_mask_type="block_causal",
            )
        },
        build_dataloader_fn=lambda **kwargs: Documents(),
        build_tokenizer_fn=lambda job_config: SimpleNamespace(eos_id=END),
    )
    register_train_spec("tiny_llama", spec)
    job = JobConfig()
    job.model.name, job.model.flavor = "tiny_llama", "tiny"
    job.training.seq_len, job.training.local_batch_size, job.training.steps = LENGTH, 1, STEPS
    job.parallelism.context_parallel_degree = int(os.environ["WORLD_SIZE"])
    job.activation_checkpoint.mode = "selective"
    job.activation_checkpoint.selective_ac_option = "op"
    job.optimizer.lr = 5e-3
    job.lr_scheduler.warmup_steps = 1
    trainer = Trainer(job)
    losses = []
    trainer.metrics_processor.log = lambda step, loss, *args, **kwargs: losses.append(loss)
    trainer.metrics_processor.should_log = lambda step: True
    trainer.train()
    print("losses:", *(f"{loss:.4f}" for loss in losses))
    assert losses[-1] < losses[0], losses
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
