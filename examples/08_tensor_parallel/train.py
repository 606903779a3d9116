# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism beside context parallelism: a mesh of (context, tensor) ranks, heads sharded over the latter.

PyTorch's `parallelize_module` cuts the projections of a Llama of Transformers; Tangram's key is told the heads that a
rank holds. Run it by `torchrun --nproc-per-node=4 train.py`, on Hopper GPUs with `--device cuda`, in bfloat16; it
compares loss and gradients with those of one process.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see docs/tutorials/02_context_parallel.md
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import tangram
from tangram.integrations.transformers import register

VOCABULARY, TP_SIZE, IGNORED = 128, 2, -100
CU_SEQLENS = [0, 90, 200, 370]
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
)
COLUMNS, ROWS = ColwiseParallel, RowwiseParallel
PLAN = {
    "self_attn.q_proj": COLUMNS,
    "self_attn.k_proj": COLUMNS,
    "self_attn.v_proj": COLUMNS,
    "self_attn.o_proj": ROWS,
    "mlp.gate_proj": COLUMNS,
    "mlp.up_proj": COLUMNS,
    "mlp.down_proj": ROWS,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks % TP_SIZE != 0:
        parser.error(f"the number of ranks must be a multiple of {TP_SIZE}, which share the heads (got {ranks})")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    # Attention on GPUs is for 16 bits, whose rounding the bound allows.
    dtype, bound = (torch.float32, 1e-4) if device == "cpu" else (torch.bfloat16, 5e-2)
    register()
    mesh = init_device_mesh(device, (dist.get_world_size() // TP_SIZE, TP_SIZE), mesh_dim_names=("cp", "tp"))
    torch.manual_seed(0)
    model, alone = (LlamaForCausalLM(CONFIG).to(device, dtype) for _ in range(2))
    alone.load_state_dict(model.state_dict())
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], {name: style() for name, style in PLAN.items()})
    model.set_attn_implementation("tangram")

    tokens = torch.randint(0, VOCABULARY, (CU_SEQLENS[-1],)).to(device)
    starts = torch.tensor(CU_SEQLENS[:-1]).repeat_interleave(torch.tensor(CU_SEQLENS).diff())
    positions = (torch.arange(CU_SEQLENS[-1]) - starts).to(device)
    heads, heads_kv = CONFIG.num_attention_heads // TP_SIZE, CONFIG.num_key_value_heads // TP_SIZE
    mask = tangram.Mask.varlen(CU_SEQLENS)
    key = tangram.mask_key(mask, heads, heads_kv, CONFIG.head_dim, mesh["cp"])
    labels = tangram.dispatch_labels(tokens, key, shift=1, cu_seqlens=CU_SEQLENS, ignore_index=IGNORED)
    local_tokens, local_positions = (tangram.dispatch(x, key)[None] for x in (tokens, positions))
    logits = model(input_ids=local_tokens, position_ids=local_positions, tangram_key=key, use_cache=False).logits[0]
    count = CU_SEQLENS[-1] - (len(CU_SEQLENS) - 1)
    loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / count
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total, group=mesh["cp"].get_group())

    alone.set_attn_implementation("sdpa")
    whole = alone(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]
    next_tokens = tokens.roll(-1).masked_fill(positions.roll(-1) == 0, IGNORED)
    expected = F.cross_entropy(whole.float(), next_tokens, ignore_index=IGNORED, reduction="sum") / count
    expected.backward()
    assert abs(total - expected.detach()) <= bound * expected.detach(), (total, expected)
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        gradient = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        dist.all_reduce(gradient, group=mesh["cp"].get_group())
        assert (gradient - theirs.grad).norm() <= bound * theirs.grad.norm(), name
    if dist.get_rank() == 0:
        print(f"cp {key.cp_size} x tp {TP_SIZE}: loss {total:.6f}, in one process {expected:.6f}, gradients agree")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
