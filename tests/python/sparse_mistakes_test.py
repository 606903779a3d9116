# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""mistakes_test.py of sparse attention: keys and blocks by their indices, and buffers of masks."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mistakes import check_text  # noqa: E402
from tangram import magi, token_attn_func  # noqa: E402

ROWS = 48
Q, K, V = torch.ones(ROWS, 4, 8), torch.ones(ROWS, 2, 8), torch.ones(ROWS, 2, 8)
KEYS = torch.arange(4).expand(ROWS, 2, 4)


def tokens(indices=KEYS, q=Q, k=K, v=V, **options):
    return token_attn_func(q, k, v, indices, **options)


def indexed(indices=KEYS, q=Q, k=K, v=V, *ranges, **options):
    return magi.flex_flash_attn_func(q, k, v, *ranges, index_attn_indices=indices, **options)


def with_key(key):
    indices = KEYS.clone()
    indices[5, 1, 2] = key
    return indices


FLEX, TOKENS = "flex_flash_attn_func", "token_attn_func"
# By what was meant: the call; the function, the argument, the value and the remedy that the text must have.
MISTAKES = {
    # Keys by their indices.
    "ranges beside keys": (
        lambda: indexed(KEYS, Q, K, V, torch.ones(2, 2, dtype=torch.int32), None),
        FLEX,
        "index_attn_indices",
        "(got q_ranges beside",
        "stand for the mask alone",
    ),
    "a range of zeros beside keys": (
        lambda: indexed(KEYS, Q, K, V, torch.zeros(1, 1, dtype=torch.int32)),
        FLEX,
        "index_attn_indices",
        "(got q_ranges beside",
        "stand for the mask alone",
    ),
    "types beside keys": (
        lambda: indexed(attn_type_map=torch.tensor([1, 0])),
        FLEX,
        "index_attn_indices",
        "(got attn_type_map beside",
        "stand for the mask alone",
    ),
    "blocks of keys as keys": (
        lambda: indexed(k_block_size=16),
        FLEX,
        "index_attn_indices",
        "(got k_block_size=16 beside",
        "by single rows",
    ),
    "ranges that are loaded as keys": (
        lambda: indexed(sparse_load=True),
        FLEX,
        "index_attn_indices",
        "(got sparse_load=True beside",
        "stand for the mask alone",
    ),
    "a list of keys": (lambda: indexed(KEYS.tolist()), FLEX, "index_attn_indices", "(got list)", "must be a tensor"),
    "an array of keys": (
        lambda: indexed(KEYS.numpy()),
        FLEX,
        "index_attn_indices",
        "(got ndarray)",
        "torch.from_numpy takes it",
    ),
    "arrays under the other names": (
        lambda: indexed(KEYS, Q.numpy(), K.numpy(), V.numpy()),
        FLEX,
        "q, k and v",
        "(got ndarray, ndarray, ndarray)",
        "tangram.flex_flash_attn_func takes arrays",
    ),
    "a batch with keys": (
        lambda: indexed(KEYS, Q[None], K[None], V[None]),
        FLEX,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "keys that hold nothing": (
        lambda: indexed(KEYS.to("meta")),
        FLEX,
        "index_attn_indices",
        "index_attn_indices on meta)",
        "where q does, or on the host",
    ),
    "a key behind the last one": (
        lambda: indexed(with_key(ROWS)),
        FLEX,
        "index_attn_indices",
        "(got key 48 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "an array of keys for tensors": (
        lambda: tokens(KEYS.numpy()),
        TOKENS,
        "indices",
        "(got ndarray)",
        "torch.from_numpy takes it",
    ),
    "a list of keys for tensors": (lambda: tokens(KEYS.tolist()), TOKENS, "indices", "(got list)", "must be a tensor"),
    "keys for each query head": (
        lambda: tokens(torch.cat([KEYS, KEYS], 1)),
        TOKENS,
        "indices",
        "(got int64[48, 4, 4])",
        "[rows of q, K/V heads, topk] = [48, 2, topk]",
    ),
    "a batch of tokens": (
        lambda: tokens(KEYS, Q[None], K[None], V[None]),
        TOKENS,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "a batch of arrays": (
        lambda: tokens(KEYS.numpy(), *(x[None].numpy() for x in (Q, K, V))),
        TOKENS,
        "q, k and v",
        "q=(1, 48, 4, 8)",
        "one after the other",
    ),
    "arrays beside tensors": (
        lambda: tokens(KEYS, Q, K.numpy(), V.numpy()),
        TOKENS,
        "q, k and v",
        "(got Tensor, ndarray, ndarray)",
        "all be tensors, or arrays",
    ),
    "a key that 32 bits do not hold": (
        lambda: tokens(with_key(2**33)),
        TOKENS,
        "indices",
        "(got key 8589934592 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "a key before the first": (
        lambda: tokens(with_key(-2).numpy(), Q.numpy(), K.numpy(), V.numpy()),
        TOKENS,
        "indices",
        "(got key -2 for query 5, K/V head 1)",
        "rows of k, or -1 for none",
    ),
    "multiprocessors below zero": (lambda: tokens(sm_margin=-3), TOKENS, "sm_margin", "(got -3)", "not be negative"),
    "multiprocessors below zero with arrays": (
        lambda: tokens(KEYS.numpy(), Q.numpy(), K.numpy(), V.numpy(), sm_margin=-3),
        TOKENS,
        "sm_margin",
        "(got -3)",
        "not be negative",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_to_do(mistake):
    check_text(*MISTAKES[mistake])
