# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan's Trainer trains some steps: one process with its own attention writes losses and gradients, ranks of its
context parallelism with Tangram compare theirs. Four ranks have tensor parallelism too. Arguments: a folder, cases.
stacks_test.py starts both."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import titan_on_cpu  # noqa: E402, F401  # before TorchTitan
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# isort: split
import torchtitan.models.llama3  # noqa: E402
from torch.nn.attention.flex_attention import and_masks  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.distributed import context_parallel  # noqa: E402
from torchtitan.models.attention import (  # noqa: E402
    create_attention_mask,
    get_causal_mask_mod,
    get_document_mask_mod,
    get_fixed_block_mask_mod,
    get_sliding_window_mask_mod,
)
from torchtitan.models.llama3 import Transformer, TransformerModelArgs  # noqa: E402
from torchtitan.protocols import train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

import tangram  # noqa: E402
from tangram.integrations.torchtitan import install  # noqa: E402

STEPS, LENGTH, BATCH, VOCABULARY, END = 3, 96, 2, 64, 5
CASES = {
    "causal": ("llama3", {}, {}),
    "documents": ("llama3", {"attn_type": "flex", "attn_mask_type": "block_causal"}, {}),
    "selective": ("llama3", {}, {"mode": "selective", "selective_ac_option": "op"}),
    "full": ("llama3", {"attn_type": "flex", "attn_mask_type": "block_causal"}, {"mode": "full"}),
    "qwen3": ("qwen3", {}, {}),
    "window": ("llama3", {"attn_type": "flex", "attn_mask_type": "window"}, {}),
    "prefix": ("llama3", {"attn_type": "flex", "attn_mask_type": "prefix"}, {}),
}
RECOMPUTED = {"selective": 0, "full": 1}
LAYERS = 2


def model_args(model, changes):
    if model == "qwen3":
        from torchtitan.models.qwen3 import Qwen3ModelArgs

        values = {"dim": 64, "n_layers": LAYERS, "n_heads": 4, "n_kv_heads": 2, "head_dim": 24, "hidden_dim": 96}
        return Qwen3ModelArgs(vocab_size=VOCABULARY, **values, **changes)
    return TransformerModelArgs(
        dim=64, n_layers=LAYERS, n_heads=4, n_kv_heads=2, vocab_size=VOCABULARY, multiple_of=32, **changes
    )


class OwnMasks(Transformer):
    """Masks that a user adds to TorchTitan's: of its functions, or of others."""

    def get_attention_masks(self, input_batch, tokenizer, extra_inputs=None):
        kind = self.model_args.attn_mask_type
        if kind == "block_causal":
            return super().get_attention_masks(input_batch, tokenizer, extra_inputs)
        if kind == "prefix":
            return create_attention_mask(lambda b, h, q, k: (q >= k) | (k < 17), 1, None, LENGTH, LENGTH)
        mods = get_document_mask_mod(input_batch, END), get_sliding_window_mask_mod(9)
        return create_attention_mask(and_masks(*mods), BATCH, None, LENGTH, LENGTH)


class Data:
    """Batches that every rank of a context-parallel group reads, some of whose labels do not count."""

    def __iter__(self):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
            tokens[tokens % 16 == 1] = END
            labels = tokens[:, 1:].clone()
            labels[:, 7:20] = -100
            yield {"input": tokens[:, :-1].clone()}, labels

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Metrics:
    """In place of TorchTitan's, which asks the GPU for its memory."""

    def __init__(self, *args):
        self.device_memory_monitor = SimpleNamespace(device_name="cpu", get_peak_stats=self.stats)
        self.color = SimpleNamespace(blue="", red="", reset="")
        self.data_loading_times, self.ntokens_since_last_log = [], 0
        self.losses = []

    @staticmethod
    def stats():
        return SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)

    def should_log(self, step):
        return True

    def log(self, step, average, maximum, gradient_norm, extra_metrics=None):
        self.losses.append(average)

    def close(self):
        pass


def job(case, ranks):
    config = JobConfig()
    config.model.name, config.model.flavor = f"tiny_{case}", "tiny"
    config.training.seq_len, config.training.local_batch_size, config.training.steps = LENGTH, BATCH, STEPS
    config.training.mixed_precision_param = "float32"
    config.parallelism.context_parallel_degree = min(ranks, 2)
    config.parallelism.tensor_parallel_degree = ranks // min(ranks, 2)
    config.lr_scheduler.warmup_steps = 1
    config.optimizer.implementation = "for-loop"
    config.activation_checkpoint.mode = "none"
    for name, value in CASES[case][2].items():
        setattr(config.activation_checkpoint, name, value)
    return config


def whole(x):
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def fill(model):
    """Parameters alike on any number of ranks."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            continue
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        value = 0.1 * torch.randn(parameter.shape, generator=generator)
        if hasattr(parameter, "device_mesh"):
            value = torch.distributed.tensor.distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.data.copy_(value)


def train(case, ranks):
    """Loss and gradients of each step, and how often attention ran forward in it."""
    model, changes, _ = CASES[case]
    name = f"tiny_{case}"
    train_spec._extra_train_specs[name] = replace(
        train_spec.get_train_spec(model),
        model_args={"tiny": model_args(model, changes)},
        build_dataloader_fn=lambda **kwargs: Data(),
        build_tokenizer_fn=lambda job_config: SimpleNamespace(eos_id=END),
        build_metrics_processor_fn=Metrics,
    )
    if model == "llama3":
        train_spec._extra_train_specs[name].model_cls = OwnMasks
    trainer = Trainer(job(case, ranks))
    [model] = trainer.model_parts
    fill(model)
    found = []
    data = trainer.batch_generator(trainer.dataloader)
    for step in range(STEPS):
        trainer.step = step + 1
        with tangram.meter() as meter:
            trainer.train_step(data)
        values = {"loss": torch.tensor(trainer.metrics_processor.losses[-1])}
        values |= {n.replace("_checkpoint_wrapped_module.", ""): whole(p.grad) for n, p in model.named_parameters()}
        found.append((values, meter.report().num_forward))
    trainer.close()
    return found


def refused(message, call):
    try:
        call()
    except tangram.InvalidArgument as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


def dense(mask):
    away = torch.arange(mask.seqlen_k)[None] - torch.arange(mask.seqlen_q)[:, None]
    cells = torch.zeros_like(away, dtype=torch.bool)
    for one in mask.slices:
        at = slice(one.q_range.begin, one.q_range.end), slice(one.k_range.begin, one.k_range.end)
        cells[at] |= (away[at] >= one.min_diag) & (away[at] <= one.max_diag)
    return cells


def check_masks():
    """Masks read from TorchTitan's functions are those of asking each cell."""
    from tangram.integrations._torchtitan_masks import mask_of

    tokens = next(iter(Data()))[0]["input"]
    parts = {
        "causal": get_causal_mask_mod(),
        "documents": get_document_mask_mod(tokens, END),
        "window": get_sliding_window_mask_mod(9),
        "blocks": get_fixed_block_mask_mod(20),
        "own": lambda b, h, q, k: (q - k).abs() < 7,
    }
    chosen = [["causal"], ["documents"], ["window"], ["causal", "documents"], ["causal", "documents", "window"]]
    chosen += [
        ["causal", "blocks"],
        ["blocks"],
        ["own"],
        ["causal", "own"],
        ["causal", "documents", "blocks", "window"],
    ]
    for names in chosen:
        mods = [parts[name] for name in names]
        batch = BATCH if "documents" in names else 1
        block_mask = create_attention_mask(and_masks(*mods), batch, None, LENGTH, LENGTH)
        b = torch.arange(BATCH)[:, None, None].expand(-1, LENGTH, LENGTH)
        q = torch.arange(LENGTH)[None, :, None].expand_as(b)
        k = torch.arange(LENGTH)[None, None].expand_as(b)
        cells = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool)
        for mod in mods:
            cells &= mod(b, 0, q, k)
        assert torch.equal(dense(mask_of(block_mask, BATCH, LENGTH)), torch.block_diag(*cells).bool()), names
    by_head = create_attention_mask(lambda b, h, q, k: q >= k + h, 1, 2, LENGTH, LENGTH)
    refused("it must be alike for all heads", lambda: mask_of(by_head, BATCH, LENGTH))
    refused("it must be of 5 tokens", lambda: mask_of(by_head, BATCH, 5))


def check_refusals(mesh):
    layer = torch.nn.Identity()
    apply = context_parallel.apply_cp_to_attention_module
    refused("attn_type must be sdpa or flex", lambda: apply([layer], mesh, "varlen"))
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    others = (tokens, tokens, {}, mesh, "cpu")
    refused("must come before the Trainer is made", lambda: context_parallel.prepare_context_parallel_input(*others))
    apply([layer], mesh, "sdpa")
    x = torch.zeros(1, 2, 48, 16)
    given = (tokens, tokens, {"attention_masks": object()}, mesh, "cpu")
    refused("attention_masks must be a BlockMask", lambda: context_parallel.prepare_context_parallel_input(*given))
    of_others = create_attention_mask(get_causal_mask_mod(), 1, None, 32, 32)
    refused("batches must come from prepare_context_parallel_input", lambda: layer(x, x, x, block_mask=of_others))
    refused("score_mod is not supported", lambda: layer(x, x, x, score_mod=min))
    refused("return_lse is not supported", lambda: layer(x, x, x, return_lse=True))
    refused("is_causal must be True", lambda: layer(x, x, x, is_causal=False))
    hidden = vars(context_parallel).pop("apply_cp_to_attention_module")
    try:
        install()
    except tangram.NotAvailable as error:
        assert "this needs torchtitan 0.2" in str(error)
    else:
        raise AssertionError("another release is not refused")
    context_parallel.apply_cp_to_attention_module = hidden
    refused("pipeline stages need one microbatch", lambda: layer(*[x.expand(2, -1, -1, -1)] * 3))


def main():
    folder, *cases = sys.argv[1:]
    logging.disable(logging.INFO)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    if ranks > 1:
        install()
        install()
        assert torchtitan.train.prepare_context_parallel_input.__module__ == "tangram.integrations.torchtitan"
    else:
        check_masks()
    for case in cases:
        found, path = train(case, ranks), Path(folder, f"titan_{case}.pt")
        if ranks == 1:
            torch.save(found, path)
            continue
        for (ours, passes), (wanted, _) in zip(found, torch.load(path), strict=True):
            assert ours.keys() == wanted.keys() and len(wanted) > 10
            assert passes == LAYERS * (1 + RECOMPUTED.get(case, 0)), (case, passes)
            for name, value in wanted.items():
                # float32: sums in another order, through two layers and some steps of Adam.
                torch.testing.assert_close(
                    ours[name], value, rtol=1e-3, atol=2e-5, msg=lambda t, n=name, c=case: f"{c} {n}: {t}"
                )
    if ranks > 1:
        check_refusals(dist.device_mesh.DeviceMesh.from_group(dist.new_group(), "cpu", mesh_dim_names=("cp",)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
