# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A GPTModel of Megatron-Core over ranks, on packed documents without padding, with windows and without Transformer
Engine.

Run it by `torchrun --nproc-per-node=2 megatron_gpt.py` with megatron-core installed; `--device cuda` on GPUs.
"""

import argparse
import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from tangram.integrations.megatron import ContextParallel, layer_spec

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
DEVICE = parser.parse_args().device
if DEVICE == "cpu":
    torch.cuda.current_device = lambda: "cpu"  # where Megatron puts what it makes
LENGTHS, STEPS = [300, 661, 320], 4


def main():
    dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    ranks = dist.get_world_size()
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=256,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=64,
        normalization="RMSNorm",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        window_size=(127, 0),
        window_attn_skip_freq=2,
        context_parallel_size=ranks,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        params_dtype=torch.float32 if DEVICE == "cpu" else torch.bfloat16,
        bf16=DEVICE == "cuda",
    )
    torch.manual_seed(0)
    spec = layer_spec(normalization="RMSNorm")  # Tangram's part: the spec,
    model = GPTModel(config, spec, 64, 2048, position_embedding_type="rope").to(DEVICE, config.params_dtype)
    cp = ContextParallel(model)  # rows,
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0)
    for step in range(STEPS):
        tokens = ((7 * torch.arange(sum(LENGTHS))) % 61)[None].to(DEVICE)
        given = cp.dispatch(tokens, tokens.roll(-1), cu_seqlens=cu_seqlens)  # and the batch of this rank
        loss = (model(**given) * given["loss_mask"]).sum() * ranks / tokens.numel()
        loss.backward()
        for parameter in model.parameters():  # as Megatron's DistributedDataParallel does
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach() / ranks)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item():.4f}")
        losses.append(mean.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
