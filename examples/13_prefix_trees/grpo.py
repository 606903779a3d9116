# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""GRPO with shared prompts computed once: a policy that trains on a tree beside one that trains on packed sequences.

A completion is rewarded for each token that has the parity of the token before it. Both policies learn from the
completions that the first one samples, 50 steps of two updates: clipped ratios, group advantages, a KL term to the
first weights. The loss is not linear in log p, so log probabilities of edges are gathered for each sequence.

`python grpo.py` compares losses and rewards and prints tokens/s of both, counted in tokens of separate sequences.
`--device cuda` needs a Hopper GPU, whose attention takes bfloat16.
"""

import argparse
import time
from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangram
from tangram import trees

STEPS, UPDATES, PROMPTS, SAMPLES, PROMPT, COMPLETION = 50, 2, 2, 8, 48, 8
VOCABULARY, HEADS, DIM, LAYERS = 8, 2, 64, 1
CLIP, KL = 0.2, 0.02
# Over 100 updates: float32; attention in bfloat16, whose roundings grow with each update (1.8e-2 on an H200).
BOUNDS = {"cpu": 1e-4, "cuda": 5e-2}
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    rates = 100.0 ** (-torch.arange(0, DIM, 2, device=x.device) / DIM)
    angle = positions[:, None, None] * rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = HEADS * DIM
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(LAYERS + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states `[rows, width]`; the head is applied to rows with targets alone."""
        x = self.embedding(tokens)
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=False):
            q, k, v = qkv(norm(x)).view(-1, 3, HEADS, DIM).unbind(1)
            x = x + out(attend(rotated(q, positions), rotated(k, positions), v).reshape(x.shape))
        return self.norms[-1](x)


def attend_by(mask: tangram.Mask) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not q.is_cuda:
            return tangram.flex_flash_attn_func(q, k, v, mask)[0]
        halves = (x.bfloat16() for x in (q, k, v))
        return tangram.flex_flash_attn_func(*halves, mask)[0].to(q.dtype)

    return attend


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor, generator: torch.Generator) -> Tensor:
    """`[sequences, PROMPT + COMPLETION]`: each prompt with SAMPLES completions, without a cache of K/V."""
    tokens = prompts.repeat_interleave(SAMPLES, 0)
    count = len(tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.view(count, -1, HEADS, DIM).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    for _ in range(COMPLETION):
        positions = torch.arange(tokens.shape[1], device=tokens.device).repeat(count)
        hidden = policy(tokens.flatten(), positions, attend).view(count, -1, HEADS * DIM)[:, -1]
        chosen = torch.multinomial(policy.head(hidden).softmax(-1).cpu(), 1, generator=generator)
        tokens = torch.cat([tokens, chosen.to(tokens.device)], 1)
    return tokens


def log_p_of_tree(sequences: Tensor) -> Callable[[Policy], Tensor]:
    """Log probabilities of completions, `[sequences, COMPLETION]`, by one row for each token of the tree."""
    tree = trees.from_sequences(list(sequences), min_shared=16)
    loss_mask = torch.zeros(sequences.shape, device=sequences.device)
    loss_mask[:, PROMPT:] = 1
    targets = tree.targets(loss_mask.flatten())  # prompts have no edges, so no logits
    tokens, positions, attend = tree.tokens, tree.positions(), attend_by(tree.mask())

    def log_p(policy: Policy) -> Tensor:
        logits = policy.head(policy(tokens, positions, attend)[targets.rows])
        of_edges = -F.cross_entropy(logits, targets.labels, reduction="none")
        return targets.gather(of_edges).view(sequences.shape)[:, PROMPT:]

    return log_p


def log_p_of_pack(sequences: Tensor) -> Callable[[Policy], Tensor]:
    """Log probabilities by packed sequences, each with its prompt."""
    count, length = sequences.shape
    positions = torch.arange(length, device=sequences.device).repeat(count)
    attend = attend_by(tangram.Mask.varlen(list(range(0, count * length + 1, length))))

    def log_p(policy: Policy) -> Tensor:
        hidden = policy(sequences.flatten(), positions, attend).view(count, length, -1)[:, PROMPT - 1 : -1]
        labels = sequences[:, PROMPT:]
        return -F.cross_entropy(policy.head(hidden).transpose(1, 2), labels, reduction="none")

    return log_p


def grpo_loss(log_p: Tensor, old: Tensor, reference: Tensor, advantages: Tensor) -> Tensor:
    ratio = (log_p - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    behind = reference - log_p
    return (-gain + KL * (behind.exp() - behind - 1)).mean()


class Trainer:
    """A policy with its optimizer and the way it computes log probabilities."""

    def __init__(self, first: Policy, log_p_of: Callable[[Tensor], Callable[[Policy], Tensor]]) -> None:
        self.first, self.policy, self.log_p_of = first, deepcopy(first), log_p_of
        # A small eps makes whole steps of gradients near zero, whose signs are rounding.
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=3e-3, eps=1e-3)
        self.seconds = 0.0

    def step(self, sequences: Tensor, advantages: Tensor) -> list[float]:
        """The losses of all updates on these completions."""
        begin = time.perf_counter()
        log_p = self.log_p_of(sequences)
        with torch.no_grad():
            old, reference = log_p(self.policy), log_p(self.first)
        losses = []
        for _ in range(UPDATES):
            loss = grpo_loss(log_p(self.policy), old, reference, advantages)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        self.seconds += time.perf_counter() - begin
        return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=list(BOUNDS), default="cpu")
    device = parser.parse_args().device
    bound = BOUNDS[device]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    first = Policy().to(device)
    on_tree, on_pack = Trainer(first, log_p_of_tree), Trainer(first, log_p_of_pack)
    rewards, widest, num_tokens = [], 0.0, 0
    for _ in range(STEPS):
        prompts = torch.randint(0, VOCABULARY, (PROMPTS, PROMPT), generator=generator).to(device)
        sequences = sample(on_tree.policy, prompts, generator)
        hits = sequences[:, PROMPT - 1 :].diff(dim=1) % 2 == 0
        reward = hits.float().mean(1).view(PROMPTS, SAMPLES)
        advantages = (reward - reward.mean(1, True)) / (reward.std(1, keepdim=True) + 1e-3)
        pair = [trainer.step(sequences, advantages.view(-1, 1)) for trainer in (on_tree, on_pack)]
        widest = max(widest, *(abs(a - b) for a, b in zip(*pair, strict=True)))
        rewards.append(reward.mean().item())
        num_tokens += (UPDATES + 2) * sequences.numel()
    begin, end = (sum(part) / 10 for part in (rewards[:10], rewards[-10:]))
    print(f"mean reward of the first 10 steps {begin:.3f}, of the last 10 {end:.3f}")
    print(f"losses of both policies differ by at most {widest:.1e} over {STEPS} steps")
    for name, trainer in (("tree", on_tree), ("packed sequences", on_pack)):
        print(f"{name}: {num_tokens / trainer.seconds:,.0f} tokens/s")
    assert widest <= bound and end > begin + 0.1, (widest, begin, end)

    # The policies agree as well: rewards that each one expects, the probability of tokens of the right parity.
    prompts = torch.randint(0, VOCABULARY, (8, PROMPT), generator=generator).to(device)
    attend = attend_by(tangram.Mask.varlen(list(range(0, 8 * PROMPT + 1, PROMPT))))
    positions = torch.arange(PROMPT, device=device).repeat(8)
    expected = []
    for trainer in (on_tree, on_pack):
        with torch.no_grad():
            hidden = trainer.policy(prompts.flatten(), positions, attend).view(8, PROMPT, -1)[:, -1]
            probabilities = trainer.policy.head(hidden).softmax(-1).view(8, -1, 2)
        expected.append(probabilities.sum(1).gather(1, prompts[:, -1:] % 2).mean().item())
    assert abs(expected[0] - expected[1]) <= bound, expected
    print(f"rewards agree: {expected[0]:.4f} and {expected[1]:.4f} expected of the next token")


if __name__ == "__main__":
    main()
