# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed Ulysses around Tangram's attention: documents and windows hold, which are lost around SDPA.

Run it by `torchrun --nproc-per-node=2 ulysses.py` with deepspeed installed.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import deepspeed.comm
import torch
import torch.distributed as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from transformers import MistralConfig, MistralForCausalLM

from tangram.integrations.deepspeed import register

LENGTHS = [30, 66, 32]
CONFIG = MistralConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=16,
    bos_token_id=1,
    eos_token_id=2,
)


def main():
    deepspeed.comm.init_distributed("gloo" if not torch.cuda.is_available() else "nccl", verbose=False)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = MistralForCausalLM(CONFIG)
    tokens = torch.randint(0, 64, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with torch.no_grad():
        expected = torch.cat([model(ids, use_cache=False).logits for ids in tokens.split(LENGTHS, 1)], 1)

    register()  # these three lines are Tangram's part
    model.set_attn_implementation("tangram")
    UlyssesSPAttentionHF.register_with_transformers(model, "tangram", ranks, micro_batch_size=1)
    own = [x.chunk(ranks, 1)[rank] for x in (tokens, positions)]
    logits = model(own[0], position_ids=own[1], use_cache=False).logits
    logits.square().mean().backward()
    away = (logits - expected.chunk(ranks, 1)[rank]).abs().max().item()
    if rank == 0:
        print(f"logits over {ranks} ranks differ from those of single documents by {away:.1e}")
    assert away < 1e-4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
