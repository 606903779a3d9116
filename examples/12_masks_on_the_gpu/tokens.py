# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Documents that no host has seen: each step finds them in its tokens, and attends to them under one CUDA graph.

`python tokens.py --device cuda` captures on a Hopper GPU: where tokens end documents, lists of the mask, attention and
gradients. Replays take other tokens, and the host neither waits nor builds anything. On CPUs the step just runs.
Results are compared with those of masks that the host has made.
"""

import argparse

import torch
from torch import Tensor

import tangram
from tangram import HeadConfig, Mask, MaskBuffer

ROWS, HEADS, HEADS_KV, DIM, STEPS = 2048, 4, 2, 64, 6
MOST_DOCUMENTS, END_OF_DOCUMENT, VOCABULARY = 64, 0, 97


def find_documents(tokens: Tensor) -> Tensor:
    """cu_seqlens of MOST_DOCUMENTS documents, the last of them empty: sizes do not depend on the tokens."""
    document = (tokens == END_OF_DOCUMENT).cumsum(0).roll(1)
    document[:1].zero_()  # a number given from the host could not be captured
    position = torch.arange(ROWS, device=tokens.device)
    # Documents beyond MOST_DOCUMENTS stay in the last one.
    first = torch.full((MOST_DOCUMENTS + 1,), ROWS, device=tokens.device)
    return first.scatter_reduce(0, document.clamp(max=MOST_DOCUMENTS - 1), position, "amin")


def attend(leaves: list[Tensor], mask: Mask | MaskBuffer) -> list[Tensor]:
    """out and the gradients of its sum of squares."""
    out, _ = tangram.flex_flash_attn_func(*leaves, mask)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    shapes = [(ROWS, heads, DIM) for heads in (HEADS, HEADS_KV, HEADS_KV)]
    leaves = [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]
    batches = torch.randint(1, VOCABULARY, (STEPS, ROWS), device=device)
    for number, batch in enumerate(batches):  # more documents from step to step
        batch[torch.randint(0, ROWS, (4 * number,), device=device)] = END_OF_DOCUMENT

    heads = HeadConfig(HEADS, HEADS_KV, DIM, DIM, str(dtype).removeprefix("torch."))
    buffer = MaskBuffer(ROWS, ROWS, heads, max_documents=MOST_DOCUMENTS, deterministic=False, device=device)
    tokens = batches[0].clone()  # the graph reads them here

    def step() -> list[Tensor]:
        buffer.set_cu_seqlens(find_documents(tokens), causal=True)
        return attend(leaves, buffer)

    graph = None
    if device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # once, outside: the first mask that the GPU builds allocates
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()

    for batch in batches:
        tokens.copy_(batch)
        if graph is not None:
            graph.replay()
        else:
            results = step()
        expected = attend(leaves, Mask.varlen(find_documents(batch).tolist(), causal=True))
        for one, other in zip(results, expected, strict=True):
            # Sums have no order on a GPU, and are rounded to 16 bits.
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 if device == "cuda" else 1e-5)
    buffer.check_errors()
    print(f"{STEPS} batches of documents that were found in their tokens: results agree")


if __name__ == "__main__":
    main()
