# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A script written for ring_flash_attn, computed by Tangram: the lines that change are marked.

Run it by `torchrun --nproc-per-node=2 ring_names.py`. Every rank holds its run of a pack of documents; the loss is
compared with one process that computes each document alone.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed as dist
from transformers import MistralConfig, MistralForCausalLM

import tangram.integrations.ring_flash_attn as tangram_ring

tangram_ring.install()  # new; the rest imports as before
from ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params  # noqa: E402

LENGTHS = [30, 66, 32]
CONFIG = MistralConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,
    sliding_window=16,
    bos_token_id=1,
    eos_token_id=2,
)


def loss_of(logits, labels, count):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count


def main():
    dist.init_process_group("gloo")
    group, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    substitute_hf_flash_attn(group, heads_k_stride=1)
    torch.manual_seed(0)
    model = MistralForCausalLM(CONFIG)
    tokens = torch.randint(0, 64, (1, sum(LENGTHS)))
    labels = torch.nn.functional.pad(tokens, (0, 1), value=-100)[:, 1:].clone()
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    labels[:, torch.tensor(LENGTHS).cumsum(0) - 1] = -100
    count = (labels != -100).sum()

    model.set_attn_implementation("tangram_ring")  # new; "flash_attention_2" where flash-attn is installed
    update_ring_flash_attn_params(torch.tensor([0, *LENGTHS]).cumsum(0), group)
    own = [x.chunk(ranks, 1)[rank] for x in (tokens, positions, labels)]
    loss = loss_of(model(own[0], position_ids=own[1], use_cache=False).logits, own[2], count)
    loss.backward()
    dist.all_reduce(total := loss.detach().clone())

    model.set_attn_implementation("eager")
    parts = zip(*(x.split(LENGTHS, 1) for x in (tokens, labels)), strict=True)
    expected = sum(loss_of(model(ids, use_cache=False).logits, wanted, count) for ids, wanted in parts)
    if rank == 0:
        print(f"loss over {ranks} ranks {total.item():.6f}, document by document {expected.item():.6f}")
    assert abs(total - expected) < 1e-4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
