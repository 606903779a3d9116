# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks whose ranks hold runs of the sequence: models train some steps beside one process with Transformers' own
attention. Arguments: ring|deepspeed, and cases FAMILY:LAYOUT or names of other checks. stacks_test.py starts the ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import stacks  # noqa: E402
import tangram  # noqa: E402
from model_batches import LENGTH, LENGTHS, batch_of, expected_loss, gradients, model_of  # noqa: E402

STEPS = 3


def summed(x):
    dist.all_reduce(x := x.detach().clone())
    return x


def own(x):
    """This rank's run of `[batch, rows]`."""
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def local_loss(model, batch):
    """This rank's part of the batch's loss."""
    labels = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    positions = batch.get("position_ids", torch.arange(LENGTH).expand_as(labels))
    logits = model(input_ids=own(batch["input_ids"]), position_ids=own(positions), use_cache=False).logits
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), own(labels).flatten(), reduction="sum")
    return total / (labels != -100).sum()


def train(model, family, layout, before_step):
    """Losses and gradients of each step are those of one process."""
    alone = model_of(family)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, alone)]
    for step in range(STEPS):
        batch = batch_of(layout, seed=step)
        expected = expected_loss(alone, family, layout, batch)
        expected.backward()
        before_step(batch)
        loss = local_loss(model, batch)
        loss.backward()
        torch.testing.assert_close(summed(loss), expected.detach(), rtol=1e-5, atol=1e-5)
        found, wanted = gradients(model), gradients(alone)
        assert len(wanted) > 10
        for name, gradient in wanted.items():
            ours = summed(found.get(name, torch.zeros_like(gradient)))
            # float32: sums in another order, through two layers and some steps.
            torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
            dict(model.named_parameters())[name].grad = ours
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def refused(message, call):
    try:
        call()
    except tangram.InvalidArgument as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


def run_ring(cases):
    import tangram.integrations.ring_flash_attn as ring

    ring.install()
    from ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params
    from ring_flash_attn.adapters import hf_adapter

    substitute_hf_flash_attn(dist.group.WORLD, heads_k_stride=1)
    whole = torch.tensor([0, LENGTH])
    cu = torch.tensor([0, *LENGTHS]).cumsum(0)

    def before_step(batch):
        update_ring_flash_attn_params(cu if "position_ids" in batch else whole, dist.group.WORLD)

    model = model_of("llama")
    model.set_attn_implementation("tangram_ring")
    batch = batch_of("packed")
    refused("update_ring_flash_attn_params must be called before each batch", lambda: local_loss(model, batch))
    for case in cases:
        family, layout = case.split(":")
        model = model_of(family)
        model.set_attn_implementation("tangram_ring")
        train(model, family, layout, before_step)
    model = model_of("llama")
    # What a machine with flash-attn sets; the substitute is found under this name too.
    model.config._attn_implementation = "flash_attention_2"
    for layer in model.model.layers:
        layer.self_attn.config._attn_implementation = "flash_attention_2"
    before_step(batch)
    local_loss(model, batch).backward()
    model.set_attn_implementation("tangram_ring")
    refused("the batch must be one pack of documents (got batch=3)", lambda: local_loss(model, batch_of("plain")))
    hidden = torch.ones(1, LENGTH // 2)
    hidden[0, 3:5] = 0
    refused(
        "attention_mask must be dispatched and hide no rows",
        lambda: model(own(batch["input_ids"]), attention_mask=hidden, use_cache=False),
    )
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    refused("layers must be causal", lambda: local_loss(model, batch))
    hf_adapter.use_ring_attn(False)
    refused("use_ring_attn: it must be True", lambda: local_loss(model, batch))
    hf_adapter.use_ring_attn(True)
    functions = hf_adapter.create_ring_flash_attention_forward(dist.group.WORLD, 1)
    q, k = torch.randn(1, LENGTH // 2, 4, 16), torch.randn(1, LENGTH // 2, 2, 16)
    for function in functions:
        assert function(q, k, k, None, LENGTH // 2, True, sliding_window=5).shape == q.shape


def run_deepspeed(cases):
    stacks.use("deepspeed")
    import deepspeed.comm.torch
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tangram.integrations.deepspeed import register
    from tangram.integrations.transformers import attention

    deepspeed.comm.torch.build_shm_op = lambda: None  # compiles an operator that nothing here calls, for a minute
    deepspeed.comm.init_distributed("gloo", verbose=False)
    register()

    def start_anew():
        """DeepSpeed wraps what is registered, once in a process: not the wrapper of the last case."""
        parallel_state_sp._release_sequence_parallel_groups()
        ALL_ATTENTION_FUNCTIONS["tangram"] = attention

    for case in cases:
        if case in ("local", "sinks"):
            continue
        family, layout = case.split(":")
        start_anew()
        model = model_of(family)
        model.set_attn_implementation("tangram")
        batch = batch_of(layout)["input_ids"].shape[0]
        UlyssesSPAttentionHF.register_with_transformers(model, "tangram", dist.get_world_size(), batch)
        train(model, family, layout, lambda batch: None)
    if "sinks" in cases:
        start_anew()
        model = model_of("gpt_oss")
        model.set_attn_implementation("tangram")
        UlyssesSPAttentionHF.register_with_transformers(model, "tangram", dist.get_world_size(), 1)
        refused("s_aux must have a sink for each of the layer's 2 heads", lambda: local_loss(model, batch_of("packed")))
    if "local" in cases:
        check_local_attention()


def check_local_attention():
    """DistributedAttention of DeepSpeed around LocalAttention, beside whole tensors."""
    from deepspeed.sequence.layer import DistributedAttention

    from tangram.integrations.deepspeed import LocalAttention

    batch, rows, heads, heads_kv, dim = 2, 24, 4, 2, 16
    torch.manual_seed(3)
    whole = [torch.randn(batch, rows, h, dim) for h in (heads, heads_kv, heads_kv, heads)]
    cu = [0, 10, 24, 30, 48]
    borders = torch.zeros(batch * rows, dtype=torch.long)
    borders[cu[1:-1]] = 1
    document = borders.cumsum(0).view(batch, rows)
    away = torch.arange(rows)[None] - torch.arange(rows)[:, None]
    for window, given in ((None, {}), (6, {}), (None, {"cu_seqlens": cu}), (6, {"cu_seqlens": cu})):
        seen = (away <= 0) & (away > -(window or rows))
        seen = seen.expand(batch, -1, -1)
        if given:
            seen = seen & (document[:, :, None] == document[:, None])
        wanted = [x.clone().requires_grad_() for x in whole[:3]]
        q, k, v = (x.transpose(1, 2) for x in wanted)
        k, v = (x.repeat_interleave(heads // heads_kv, 1) for x in (k, v))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen[:, None]).transpose(1, 2)
        expected.backward(whole[3])
        for batch_dim_idx in (0, 1):
            # Rows first, as Megatron-DeepSpeed has them, or the batch first.
            mine = [own(x).clone().requires_grad_() for x in whole[:3]]
            states = [x if batch_dim_idx == 0 else x.transpose(0, 1).contiguous() for x in mine]
            attention = DistributedAttention(
                LocalAttention(window_size=window, batch_dim_idx=batch_dim_idx),
                dist.group.WORLD,
                scatter_idx=2,
                gather_idx=1 - batch_dim_idx,
            )
            out = attention(*states, batch_dim_idx, None, **given)
            out = out if batch_dim_idx == 0 else out.transpose(0, 1)
            torch.testing.assert_close(out, own(expected.detach()), rtol=1e-4, atol=1e-5)
            out.backward(own(whole[3]))
            for x, y in zip(mine, wanted, strict=True):
                torch.testing.assert_close(x.grad, own(y.grad), rtol=1e-4, atol=1e-5)
    x = torch.randn(1, 4, 2, 16)
    local = LocalAttention()
    refused("pass mask=tangram.Mask and cu_seqlens by name", lambda: local(x, x, x, x))
    refused("in place of other arguments (got ['alibi'])", lambda: local(x, x, x, alibi=x))
    refused("mask must be a tangram.Mask (got Tensor)", lambda: local(x, x, x, mask=x))
    refused("mask must have a row for each", lambda: local(x, x, x, mask=tangram.Mask.causal(5)))
    refused("equally many rows", lambda: local(x, x[:, :2], x[:, :2]))
    refused("window_size must be positive and causal", lambda: LocalAttention(causal=False, window_size=4))


def main():
    dist.init_process_group("gloo")
    globals()[f"run_{sys.argv[1]}"](sys.argv[2:])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
