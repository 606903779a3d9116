# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan imported where there is no GPU: what its Trainer asks of CUDA, and what its imports want that nothing here
calls. Importing this module prepares it."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import torch
import torch._inductor.config  # before triton is there: it looks for it
import torch.utils.flop_counter

import stacks

stacks.use("torchtitan")


def empty(name, **names):
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(names)


empty("datasets", Dataset=None, load_dataset=None)  # text data sets
empty("datasets.distributed", split_dataset_by_node=None)
empty("torch.utils.tensorboard", SummaryWriter=None)
empty("triton", jit=lambda function: function)  # kernels of mixtures of experts
empty("triton.language", constexpr=int)
sys.modules["triton"].language = sys.modules["triton.language"]
torch._utils._get_available_device_type = lambda: "cpu"
for name, value in {
    "get_device_name": lambda device=None: "cpu",
    "get_device_properties": lambda device=None: SimpleNamespace(total_memory=1 << 30),
    "reset_peak_memory_stats": lambda: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda device=None: {},
}.items():
    setattr(torch.cpu, name, value)
# Its attention classes hold what torch.compile returns, once they are imported.
compile_of_torch, torch.compile = torch.compile, lambda function=None, **options: function
import torchtitan.train  # noqa: E402

torchtitan.train.dist_utils.set_pg_timeouts = lambda **given: None  # a barrier of numbered devices
torch.compile = compile_of_torch
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402
from torchtitan.models import attention  # noqa: E402

attention._compiled_create_block_mask = partial(attention.create_block_mask, device="cpu")
set_factor = FSDPModule.set_gradient_divide_factor


def summed(module, factor):
    """Gloo has no reduction with a factor."""
    set_factor(module, factor)
    module.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = summed


def dense_attention(q, k, v, *, block_mask, scale, enable_gqa, return_lse):
    """FlexAttention, which has no backward pass on a CPU: by a mask of all cells."""
    mask = create_mask(block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa)


attention.FlexAttentionWrapper._compiled_flex_attn = dense_attention
