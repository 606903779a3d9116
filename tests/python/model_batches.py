# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Small random models of the families that context_parallel takes, batches in every layout, and what one process
without Tangram makes of them."""

import torch
import transformers

LENGTH = 72
LENGTHS = (9, 1, 40, 22)
KINDS = ["sliding_attention", "full_attention"]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 7, "layer_types": KINDS}
# Longer batches than the rotary embedding was made for: its frequencies depend on the last position.
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "llama_one_kv_head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, **WINDOW}),
    "qwen3": ("Qwen3Config", {"use_sliding_window": True, **WINDOW}),
    "gemma2": ("Gemma2Config", {**WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", {**WINDOW, "query_pre_attn_scalar": 16}),
    "gpt_oss": ("GptOssConfig", {**WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "llama4": (
        "Llama4TextConfig",
        {
            "intermediate_size_mlp": 96,
            "num_local_experts": 2,
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 0],
            "floor_scale": 8,  # scales queries by their row, which differs from the row of a shard
            "attn_scale": 0.5,
        },
    ),
    "phi3": (
        "Phi3Config",
        {
            "sliding_window": 7,
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 32,
            "rope_parameters": {**LONG_ROPE, "original_max_position_embeddings": 32},
        },
    ),
}
LAYOUTS = ("plain", "packed", "packed_with_mask", "flattened", "padded_right", "padded_left")


def model_of(family, **changes):
    config_name, extra = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**SIZES, **extra, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    return model.train()  # dropout is 0 in all of them


def batch_of(layout, seed=1):
    """What a data collator gives. Some labels are ignored, as those of prompts are."""
    generator = torch.Generator().manual_seed(seed)
    rows = 1 if layout.startswith(("packed", "flattened")) else 3
    ids = torch.randint(1, 64, (rows, LENGTH), generator=generator)
    labels = ids.clone()
    labels[:, 12:15] = -100
    batch = {"input_ids": ids, "labels": labels}
    if rows == 1:
        batch["position_ids"] = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        labels[batch["position_ids"] == 0] = -100  # as DataCollatorWithFlattening has them
    if layout == "packed_with_mask":
        batch["attention_mask"] = torch.ones_like(ids)
    if layout == "flattened":
        cu = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)
        batch |= {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 40, "max_length_k": 40}
    if layout.startswith("padded"):
        mask = torch.ones_like(ids)
        for row, padding in ((0, 13), (2, 30)):
            mask[row, slice(0, padding) if layout == "padded_left" else slice(LENGTH - padding, None)] = 0
        batch["attention_mask"] = mask
        batch["labels"] = labels.masked_fill(mask == 0, -100)
        if layout == "padded_left":
            batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
            batch["labels"][mask.cumsum(1) == 1] = -100  # or padding would predict the first token
    return batch


def expected_loss(model, family, layout, batch):
    """Loss of one process, with the attention of Transformers itself."""
    model.set_attn_implementation("eager")
    packed = layout.startswith(("packed", "flattened"))
    if packed and family == "gpt_oss":
        return _documents_alone(model, batch)
    # Without a mask that hides nothing, beside which Transformers lets documents see each other.
    names = ["input_ids", "labels", "position_ids", *([] if packed else ["attention_mask"])]
    return model(**{name: batch[name] for name in names if name in batch}, use_cache=False).loss


def _documents_alone(model, batch):
    """Loss of a family whose packed documents see each other with Transformers' own attention."""
    total, count = 0.0, 0
    parts = [batch[name].split(LENGTHS, dim=1) for name in ("input_ids", "labels")]
    for ids, labels in zip(*parts, strict=True):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum")
        count += int((labels[0, 1:] != -100).sum())
    return total / count


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
