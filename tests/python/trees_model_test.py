# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A transformer on a tree equals the same transformer on separate sequences: logits, log probabilities, gradients."""

import os
from copy import deepcopy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.nn.functional as F  # noqa: E402

from ranks.start import run_script  # noqa: E402
from reference import mask_cells  # noqa: E402
from rotary import Model, branching_sequences, dense, gradients, separate  # noqa: E402
from tangram import flex_flash_attn_func, trees  # noqa: E402

LONG = os.environ.get("TANGRAM_TEST_LONG") == "1"
# Rounding of float64, and of float32 through two layers, relative to the largest value.
BOUNDS = {"dense": 1e-10, "tangram": 3e-6}


def model_and_sequences(seed=0):
    torch.manual_seed(seed)
    model = Model().double()
    generator = torch.Generator().manual_seed(seed)
    sequences = branching_sequences(generator)
    weights = [torch.randn(len(s), generator=generator, dtype=torch.float64) for s in sequences]
    return model, sequences, weights


def assert_near(ours, expected, bound):
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    assert ours.shape == expected.shape and (not ours.numel() or float((ours - expected).abs().max()) <= bound * scale)


@pytest.mark.parametrize("left", [None, 7])
@pytest.mark.parametrize("kind", BOUNDS)
def test_logits_and_gradients_equal_those_of_separate_sequences(kind, left):
    model, sequences, weights = model_and_sequences()
    logits, log_p, grads = separate(model, sequences, weights, left)
    tree = trees.from_sequences(sequences, min_shared=4)
    assert tree.num_rows < 0.7 * sum(map(len, sequences))
    mask = tree.mask(None if left is None else (left, 0))
    model = deepcopy(model)
    model.zero_grad()
    if kind == "dense":
        attend = dense(torch.from_numpy(mask_cells(mask)))
    else:
        model.float()

        def attend(q, k, v):
            return flex_flash_attn_func(q, k, v, mask)[0]

    ours = model(tree.tokens, tree.positions(), attend)
    rows, labels, weight = targets = tree.targets(weights)
    of_edges = -F.cross_entropy(ours[rows], labels, reduction="none")
    (-(weight * of_edges).sum()).backward()
    bound = BOUNDS[kind]
    for s in range(len(sequences)):
        assert_near(ours[tree.rows_of(s)].detach().double(), logits[s], bound)
    of_tokens = targets.gather(of_edges.detach()).double().split(tree.lengths.tolist())
    for mine, expected in zip(of_tokens, log_p, strict=True):
        assert_near(mine[1:], expected, bound)
        assert not mine[:1].any()
    for mine, expected in zip(gradients(model), grads, strict=True):
        assert_near(mine.double(), expected, bound)


def test_losses_of_gathered_log_probabilities_equal_those_of_separate_sequences():
    """A clipped ratio and a KL term, both not linear in log p, with an advantage for each sequence."""
    model, sequences, old = model_and_sequences(1)
    advantages = torch.linspace(-1, 1, len(sequences), dtype=torch.float64)

    def loss_of(log_p, s):
        ratio = (log_p - old[s][1:] / 9 + 3).exp()
        clipped = torch.minimum(ratio * advantages[s], ratio.clamp(0.8, 1.2) * advantages[s])
        return (-clipped + 0.1 * (log_p.exp() - log_p)).sum() / max(len(log_p), 1)

    expected = 0.0
    for s, tokens in enumerate(sequences):
        if len(tokens) > 1:
            one = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            logits = model(tokens, torch.arange(len(tokens)), dense(one))
            expected = expected + loss_of(-F.cross_entropy(logits[:-1], tokens[1:], reduction="none"), s)
    expected.backward()
    grads = gradients(model)
    model.zero_grad()
    tree = trees.from_sequences(sequences, min_shared=4)
    targets = tree.targets([1.0] * len(sequences))
    logits = model(tree.tokens, tree.positions(), dense(torch.from_numpy(mask_cells(tree.mask()))))
    log_p = targets.gather(-F.cross_entropy(logits[targets.rows], targets.labels, reduction="none"))
    parts = log_p.split(tree.lengths.tolist())
    loss = sum(loss_of(part[1:], s) for s, part in enumerate(parts) if len(part) > 1)
    loss.backward()
    assert_near(loss.detach(), expected.detach(), 1e-10)
    for mine, wanted in zip(gradients(model), grads, strict=True):
        assert_near(mine, wanted, 1e-10)


def test_packs_of_a_split_tree_add_up_to_the_same_gradients():
    model, sequences, weights = model_and_sequences(2)
    _, _, grads = separate(model, sequences, weights)
    tree = trees.from_sequences(sequences, min_shared=4)
    packs = trees.split(tree, 90)
    assert len(packs) > 1
    model.zero_grad()
    for pack in packs:
        rows, labels, weight = pack.targets([weights[s] for s in pack.sequences.tolist()])
        logits = model(pack.tokens, pack.positions(), dense(torch.from_numpy(mask_cells(pack.mask()))))
        (weight * F.cross_entropy(logits[rows], labels, reduction="none")).sum().backward()
    for mine, wanted in zip(gradients(model), grads, strict=True):
        assert_near(mine, wanted, 1e-10)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.skipif(not LONG, reason="make test-long"))])
def test_over_ranks(ranks):
    run_script(Path(__file__).parent / "ranks" / "tree_checks.py", ranks=ranks)


def test_results_are_tensors_where_tensors_were_given():
    sequences = [torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([1, 2, 4], dtype=torch.int32)]
    tree = trees.from_sequences(sequences, min_shared=1)
    assert tree.tokens.dtype == torch.int32 and tree.tokens.tolist() == [1, 2, 3, 4]
    results = [tree.positions(), tree.rows_of(0), tree.rows_of(), tree.sources, tree.lengths, tree.cu_seqlens]
    assert all(x.dtype == torch.int64 for x in results)
    rows, labels, weights = tree.targets(torch.ones(6, dtype=torch.bfloat16))
    assert (rows.dtype, labels.dtype, weights.dtype) == (torch.int64, torch.int32, torch.float32)
    assert tree.targets(torch.ones(6, dtype=torch.float64)).weights.dtype == torch.float64
    flat = trees.from_sequences(torch.cat(sequences), 1, cu_seqlens=torch.tensor([0, 3, 6]))
    assert torch.equal(flat.tokens, tree.tokens)
    assert not hasattr(tree.to(None).tokens, "data_ptr")
    assert tree.to("meta").positions().device.type == "meta"
    of_lists = trees.from_sequences([[1, 2], [1, 3]], min_shared=1)
    assert not hasattr(of_lists.tokens, "data_ptr") and torch.equal(of_lists.to("cpu").tokens, torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("ranks", [0, 2])
def test_the_benchmark_runs_on_cpus(ranks, tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "python" / "tree_steps.py"
    table = tmp_path / "steps.csv"
    printed = run_script(script, "--tiny", "--rounds", "1", "--csv", table, ranks=ranks)
    header, *lines = table.read_text().splitlines()
    systems = ["tree", "packed", "sdpa"]
    assert header in printed and header.startswith("version,machine,batch,system,")
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    assert [row["system"] for row in rows] == systems * 5
    for tree, packed in zip(rows[:: len(systems)], rows[1 :: len(systems)], strict=True):
        assert int(tree["rows"]) < int(packed["rows"]) == int(tree["sequence_tokens"])
        assert float(tree["predicted"]) > (0 if ranks else 1) and int(tree["area"]) < int(packed["area"])
