# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""GPTModels of Megatron-Core over tensor, sequence and context parallelism together, and with its recomputation, beside
one process with Megatron's own attention. Arguments: tensor|recompute, a folder, cases. stacks_test.py starts it."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron_checks import alone, compare, over_ranks, refused, steps, without_gpu  # before Megatron

# isort: split
from megatron.core import parallel_state
from megatron.core.tensor_parallel import random
from megatron.core.transformer.torch_norm import WrappedTorchNorm

import tangram
from tangram.integrations.megatron import keep_attention

TP = CP = 2
LAYERS, STEPS = 2, 3
RECOMPUTE = {
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "uniform": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
    "block": {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
}
RECOMPUTED_LAYERS = {"selective": 2, "uniform": 2, "block": 1}


def norm(cls, config, *args, **kwargs):
    """Megatron's norm of torch, which refuses sequence parallelism: its weight is marked, as Transformer Engine's is,
    for the sum of its gradients over ranks."""
    plain = copy.copy(config)
    plain.sequence_parallel = False
    made = new_norm(cls, plain, *args, **kwargs)
    made.weight.sequence_parallel = config.sequence_parallel
    return made


new_norm = WrappedTorchNorm.__new__


def run_tensor(folder, cases):
    """Four ranks: two of tensor and sequence parallelism, two of context parallelism."""
    if dist.get_world_size() == 1:
        parallel_state.initialize_model_parallel()
        for case in cases:
            torch.save(alone(case), Path(folder, f"{case}.pt"))
        return
    WrappedTorchNorm.__new__ = norm
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP, context_parallel_size=CP)
    sizes = {"tensor_model_parallel_size": TP, "context_parallel_size": CP, "sequence_parallel": True}
    for case in cases:
        model, arguments_of = over_ranks(case, **sizes)
        compare(case, steps(case, model, arguments_of), torch.load(Path(folder, f"{case}.pt")))
    # Sequence parallelism splits a rank's rows.
    tokens = torch.zeros(1, 1, dtype=torch.long)
    _, arguments_of = over_ranks("plain", **sizes)
    refused(
        "must be a multiple of tensor_model_parallel_size", lambda: arguments_of(tokens, tokens, tokens.float(), [0, 1])
    )
    _, arguments_of = over_ranks("plain", **{**sizes, "sequence_parallel": False})
    arguments_of(tokens, tokens, tokens.float(), [0, 1])


def run_recompute(folder, cases):
    """Attention runs once forward with its results kept, else twice in recomputed layers."""
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    # Megatron's checkpoint saves the state of the GPU's random numbers.
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.zeros(8, dtype=torch.uint8)
    random._set_cuda_rng_state = lambda *args, **kwargs: None
    expected = steps("packed", *over_ranks("packed", context_parallel_size=ranks))
    for kept in (False, True):
        if kept:
            keep_attention()
            keep_attention()
        for case in cases:
            model, arguments_of = over_ranks("packed", context_parallel_size=ranks, **RECOMPUTE[case])
            with tangram.meter() as meter:
                found = steps("packed", model, arguments_of)
            report, recomputed = meter.report(), 0 if kept else RECOMPUTED_LAYERS[case]
            assert report.num_forward == STEPS * (LAYERS + recomputed), (case, kept, report)
            assert report.num_backward == STEPS * LAYERS, (case, kept, report)
            compare(case, found, expected)


def main():
    kind, folder, *cases = sys.argv[1:]
    dist.init_process_group("gloo")
    without_gpu()
    globals()[f"run_{kind}"](folder, cases)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
