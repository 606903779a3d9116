# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A small Llama of Transformers, trained with FSDP2 and context parallelism: a mesh of (data, context) ranks.

Two ranks share each packed sequence; parameters, gradients and optimiser state are sharded over all. Run it by
`torchrun --nproc-per-node=4 train.py`, on Hopper GPUs (two are enough) with `--device cuda`, in bfloat16; it compares
its losses with those of one process that trains with SDPA.
"""

import argparse
import os
from copy import deepcopy

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import tangram
from tangram.integrations.transformers import register

STEPS, VOCABULARY, CP_SIZE, CHUNK = 6, 128, 2, 16
IGNORED = -100
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
)


def batch_of(step: int, dp_rank: int, device: str):
    """Packed documents that predict themselves: (tokens, labels, positions within documents, borders)."""
    generator = torch.Generator().manual_seed(1000 * step + dp_rank)
    lengths = torch.randint(20, 120, (4,), generator=generator).tolist()
    cu_seqlens = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    first = torch.randint(0, VOCABULARY, (len(lengths),), generator=generator).tolist()
    documents = [(start + 3 * torch.arange(n)) % VOCABULARY for start, n in zip(first, lengths, strict=True)]
    labels = [torch.cat([d[1:], torch.tensor([IGNORED])]) for d in documents]
    positions = [torch.arange(n) for n in lengths]
    tokens, labels, positions = (torch.cat(x).to(device) for x in (documents, labels, positions))
    return tokens, labels, positions, cu_seqlens


def train(model, device, dp_ranks, loss_of, reduce) -> list[float]:
    # A small eps makes whole steps of gradients near zero, whose signs are rounding: losses part by 1 % in six steps.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    losses = []
    for step in range(STEPS):
        batches = [batch_of(step, rank, device) for rank in range(dp_ranks)]
        count = sum(int((labels != IGNORED).sum()) for _, labels, _, _ in batches)
        losses.append(reduce(loss_of(model, batches, count)))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks % CP_SIZE != 0:
        parser.error(f"the number of ranks must be a multiple of {CP_SIZE}, which share a sequence (got {ranks})")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    # Attention on GPUs is for 16 bits, whose rounding the bound allows.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 1e-2)
    register()
    world = dist.get_world_size()
    mesh = init_device_mesh(device, (world // CP_SIZE, CP_SIZE), mesh_dim_names=("dp", "cp"))
    dp_rank, cp_mesh = mesh.get_local_rank("dp"), mesh["cp"]

    def sharded_loss(model, batches, count):
        tokens, labels, positions, cu = batches[dp_rank]
        pad = tangram.compute_pad_size(len(tokens), CP_SIZE, CHUNK)
        heads, heads_kv = CONFIG.num_attention_heads, CONFIG.num_key_value_heads
        key = tangram.magi_attn_varlen_key(
            cu, cu, heads, heads_kv, CONFIG.head_dim, pad, cp_mesh, causal=True, chunk_size=CHUNK
        )
        tokens, positions = (tangram.dispatch(x, key)[None] for x in (tokens, positions))
        labels = tangram.dispatch(labels, key, pad_value=IGNORED)
        logits = model(input_ids=tokens, position_ids=positions, tangram_key=key, use_cache=False).logits[0]
        loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / count
        (loss * world).backward()  # FSDP averages gradients over the ranks, which hold parts of one sum
        return loss.detach()

    def over_ranks(loss):
        dist.all_reduce(loss)
        return loss.item()

    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).to(device)
    model.set_attn_implementation("tangram")
    everything = mesh._flatten("all")
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=everything, mp_policy=precision)
    fully_shard(model, mesh=everything, mp_policy=precision)
    losses = train(model, device, world // CP_SIZE, sharded_loss, over_ranks)

    def whole_loss(model, batches, count):
        total = 0.0
        rounded = deepcopy(model).to(dtype)  # what the layers of FSDP compute with
        for tokens, labels, positions, _ in batches:
            logits = rounded(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]
            loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / count
            loss.backward()
            total += loss.item()
        for parameter, computed in zip(model.parameters(), rounded.parameters(), strict=True):
            parameter.grad = computed.grad.to(parameter.dtype)
        return total

    torch.manual_seed(0)
    alone = LlamaForCausalLM(CONFIG).to(device)
    alone.set_attn_implementation("sdpa")
    expected = train(alone, device, world // CP_SIZE, whole_loss, lambda loss: loss)
    for step, (ours, theirs) in enumerate(zip(losses, expected, strict=True)):
        if dist.get_rank() == 0:
            print(f"step {step}: loss {ours:.6f}, in one process {theirs:.6f}")
        assert abs(ours - theirs) <= bound * theirs, (step, ours, theirs)
    assert losses[-1] < 0.96 * losses[0], losses
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
