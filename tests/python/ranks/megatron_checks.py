# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""GPTModels of Megatron-Core train some steps: one process with Megatron's own attention writes losses and gradients,
ranks with Tangram compare theirs. Arguments: a folder, cases. stacks_test.py starts both."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import stacks  # noqa: E402

torch.cuda.current_device = lambda: "cpu"  # where Megatron puts what it makes
stacks.use("megatron-core")
warnings.filterwarnings("ignore")
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.fusions import fused_softmax  # noqa: E402
from megatron.core.models.common.embeddings import yarn_rotary_pos_embedding  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer import multi_token_prediction  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

import tangram  # noqa: E402
from tangram.integrations.megatron import ContextParallel, layer_spec  # noqa: E402

STEPS, VOCABULARY = 3, 64
DOCUMENTS = {"packed": [0, 30, 66, 97], "batch": [0, 41, 82], "one": [0, 97]}
CASES = {
    "plain": ("batch", {}),
    "packed": ("packed", {}),
    "learned": ("packed", {}),
    "yarn": ("packed", {}),
    "window": ("packed", {"window_size": (7, 0), "window_attn_skip_freq": 2}),
    "sinks": ("packed", {"softmax_type": "learnable"}),
    "off_by_one": ("packed", {"softmax_type": "off-by-one"}),
    "prediction": ("packed", {"mtp_num_layers": 2}),
    "moe": ("one", {"num_moe_experts": 2, "moe_router_topk": 2, "moe_router_load_balancing_type": "none"}),
}


def config_of(case, **changes):
    extra = {"attention_dropout": 0.0, **CASES[case][1]}
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=16,
        ffn_hidden_size=96,
        hidden_dropout=0.0,
        normalization="RMSNorm",
        add_bias_linear=False,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        init_method=torch.nn.init.normal_ if case == "sinks" else None,
        init_method_std=0.1,
        **{**extra, **changes},
    )
    if case == "sinks":
        config.init_method = config.output_layer_init_method = lambda x: torch.nn.init.normal_(x, std=0.1)
    if case == "yarn":
        values = {"rotary_scaling_factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0}
        values |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "correction_range_round_to_int": True}
        for name, value in values.items():
            setattr(config, f"yarn_{name}", value)
    return config


def model_of(case, config, spec):
    torch.manual_seed(0)
    prediction = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if config.mtp_num_layers else None
    kind = {"learned": "learned_absolute", "yarn": "yarn"}.get(case, "rope")
    model = GPTModel(
        config, spec, VOCABULARY, 128, position_embedding_type=kind, mtp_block_spec=prediction, parallel_output=True
    )
    tp, rank = config.tensor_model_parallel_size, parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in model.named_parameters():  # alike on any number of ranks
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        if "layernorm" not in name:
            shape, dim = list(parameter.shape), split_dim(name, parameter)
            shape[dim or 0] *= 1 if dim is None else tp
            whole = 0.1 * torch.randn(shape, generator=generator)
            parameter.data.copy_(whole if dim is None else whole.chunk(tp, dim)[rank])
    return model.train()


def split_dim(name, parameter):
    """The dimension that tensor parallelism splits, or None."""
    if name.endswith("softmax_offset"):
        return 0
    return parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None


def batch_of(case, step):
    generator = torch.Generator().manual_seed(step)
    borders = DOCUMENTS[CASES[case][0]]
    rows = 2 if CASES[case][0] == "batch" else 1
    tokens = torch.randint(0, VOCABULARY, (rows, borders[-1] // rows), generator=generator)
    labels = torch.randint(0, VOCABULARY, tokens.shape, generator=generator)
    loss_mask = (torch.rand(tokens.shape, generator=generator) < 0.8).float()
    return tokens, labels, loss_mask, borders


def whole_gradients(model):
    """Gradients as Megatron reduces them; p.grad gets this rank's part. Means over the context-parallel group, and sums
    over the tensor-parallel group if its ranks have seen other rows."""
    tp_group, cp_group = parallel_state.get_tensor_model_parallel_group(), parallel_state.get_context_parallel_group()
    found = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        if getattr(p, "sequence_parallel", False):
            dist.all_reduce(p.grad, group=tp_group)
        dist.all_reduce(p.grad, group=cp_group)
        p.grad /= cp_group.size()
        found[name], dim = p.grad.clone(), split_dim(name, p)
        if dim is not None and tp_group.size() > 1:
            parts = [torch.empty_like(p.grad) for _ in range(tp_group.size())]
            dist.all_gather(parts, p.grad.contiguous(), group=tp_group)
            found[name] = torch.cat(parts, dim)
    return found


def steps(case, model, arguments_of):
    """Losses and gradients of each step, as the mean over ranks makes them those of the batch."""
    cp_group = parallel_state.get_context_parallel_group()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    found = []
    for step in range(STEPS):
        batch = batch_of(case, step)
        given = arguments_of(*batch)
        losses = model(**given)
        loss = (losses * given["loss_mask"]).sum() * cp_group.size() / batch[2].sum()
        loss.backward()
        dist.all_reduce(mean := loss.detach().clone(), group=cp_group)
        found.append({"loss": mean / cp_group.size(), **whole_gradients(model)})
        optimizer.step()
        optimizer.zero_grad()
    return found


theirs = DotProductAttention.forward
# It refuses what tells roll_tensor of multi-token prediction the documents.
DotProductAttention.forward = lambda self, *args, packed_seq_params=None, **kwargs: theirs(self, *args, **kwargs)


def alone(case):
    """Megatron's own attention, which gets the documents as a mask; windows are put into it here, as Megatron's
    replace all else."""
    config = config_of(case)
    spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts, normalization="RMSNorm")
    model = model_of(case, config, spec)

    def arguments_of(tokens, labels, loss_mask, borders):
        total = borders[-1]
        document = torch.bucketize(torch.arange(total), torch.tensor(borders[1:]), right=True).view_as(tokens)
        away = torch.arange(tokens.shape[1])
        hidden = (away[None] > away[:, None]) | (document[:, :, None] != document[:, None])
        positions = torch.cat([torch.arange(b - a) for a, b in zip(borders, borders[1:])]).view_as(tokens)
        fused_softmax.get_sliding_window_causal_mask = lambda sq, sk, window: hidden[:, None] | (
            away[:, None] - away[None] > window[0]
        )
        cu = torch.tensor(borders)
        params = PackedSeqParams("sbhd", cu, cu, max_seqlen_q=total, max_seqlen_kv=total)
        given = {"input_ids": tokens, "position_ids": positions, "attention_mask": hidden[:, None]}
        if config.mtp_num_layers:
            given["packed_seq_params"] = params
        return {**given, "labels": labels, "loss_mask": loss_mask}

    return steps(case, model, arguments_of)


def refused(message, call):
    try:
        call()
    except tangram.InvalidArgument as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


def check_refusals():
    ranks = dist.get_world_size()
    config = config_of("packed", context_parallel_size=ranks)
    model = model_of("packed", config, layer_spec(normalization="RMSNorm"))
    cp = ContextParallel(model)
    ContextParallel(model)  # again changes nothing
    tokens, labels, _, borders = batch_of("packed", 0)
    given = cp.dispatch(tokens, labels, cu_seqlens=borders)
    bare = {**given, "packed_seq_params": None}
    refused("batches must come from ContextParallel.dispatch", lambda: model(**bare))
    hidden = torch.zeros(1, 1, 97, 97, dtype=torch.bool)
    refused("attention_mask must be None", lambda: model(**{**given, "attention_mask": hidden}))
    refused("tokens must be [batch, seqlen]", lambda: cp.dispatch(tokens[0]))
    refused("labels must be [1, 97]", lambda: cp.dispatch(tokens, labels[:, 1:]))
    refused("cu_seqlens must rise from 0 to the 97 rows", lambda: cp.dispatch(tokens, cu_seqlens=[0, 98]))
    refused("mask must be a tangram.Mask of the 97 rows", lambda: cp.dispatch(tokens, mask=tangram.Mask.causal(5)))
    refused("attention_dropout must be 0", lambda: model_of("packed", config_of("packed", attention_dropout=0.1), spec))
    own = model_of("packed", config_of("packed"), get_gpt_layer_local_spec(normalization="RMSNorm"))
    refused("context_parallel_size must be the size of the group", lambda: ContextParallel(own))
    own.config.context_parallel_size = ranks
    refused("every layer must be of layer_spec", lambda: ContextParallel(own))
    own.position_embedding_type = "mrope"
    refused("position_embedding_type must be one of rope", lambda: ContextParallel(own))
    refused("model must be or hold a GPTModel (got Linear)", lambda: ContextParallel(torch.nn.Linear(2, 2)))
    refused("spec must have a layer with core_attention", lambda: layer_spec(torch.nn.Linear))
    prefix = tangram.Mask.prefix_lm(97, 20)
    assert model(**cp.dispatch(tokens, labels, mask=prefix)).shape == given["labels"].shape


spec = layer_spec(normalization="RMSNorm")


def check_one_rank(case):
    """Tangram's kernels where there is no context parallelism, also of packed documents."""
    config = config_of(case)
    model = model_of(case, config, layer_spec(normalization="RMSNorm"))
    tokens, labels, loss_mask, borders = batch_of(case, 0)
    with_dispatch = model(**ContextParallel(model).dispatch(tokens, labels, cu_seqlens=borders))
    cu = torch.tensor(borders, dtype=torch.int32)
    params = PackedSeqParams("thd", cu, cu, max_seqlen_q=97, max_seqlen_kv=97)
    given = {"attention_mask": None, "labels": labels, "packed_seq_params": params}
    packed = model(input_ids=tokens, position_ids=tokens, **given)
    torch.testing.assert_close(packed, with_dispatch[:, : packed.shape[1]], rtol=1e-4, atol=1e-5)
    plain = model(input_ids=tokens[:, :30], position_ids=tokens[:, :30], attention_mask=None, labels=labels[:, :30])
    torch.testing.assert_close(plain, packed[:, :30], rtol=1e-4, atol=1e-5)


def compare(case, found, expected):
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.keys() == wanted.keys() and len(wanted) > 10
        for name, value in wanted.items():
            # float32: sums in another order, through two layers and some steps.
            torch.testing.assert_close(
                ours[name], value, rtol=1e-3, atol=2e-5, msg=lambda t, n=name: f"{case} {n}: {t}"
            )


def over_ranks(case, **changes):
    """A model with Tangram of these sizes; and what its steps get of a batch."""
    config = config_of(case, **changes)
    model = model_of(case, config, layer_spec(num_experts=config.num_moe_experts, normalization="RMSNorm"))
    cp = ContextParallel(model)

    def arguments_of(tokens, labels, loss_mask, borders):
        return cp.dispatch(tokens, labels, loss_mask, cu_seqlens=borders)

    return model, arguments_of


def without_gpu():
    """What Megatron asks of a GPU beside torch.cuda.current_device."""
    tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)  # of a dropout of 0
    multi_token_prediction.MTPLossLoggingHelper.save_loss_to_tracker = lambda *args, **kwargs: None  # on a GPU alone
    yarn_rotary_pos_embedding.get_pos_emb_on_this_cp_rank = lambda emb, *args: emb  # on a GPU alone, and for a table
    moe_utils.te_general_gemm = None  # a name that is missing without Transformer Engine


def main():
    folder, *cases = sys.argv[1:]
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    without_gpu()
    for case in cases:
        path = Path(folder, f"{case}.pt")
        if ranks == 1:
            torch.save(alone(case), path)
            if case in ("packed", "window"):
                check_one_rank(case)
            continue
        compare(case, steps(case, *over_ranks(case, context_parallel_size=ranks)), torch.load(path))
    if ranks > 1:
        check_refusals()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    main()
