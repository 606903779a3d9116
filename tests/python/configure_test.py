# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""tangram.configure: what holds for a process is set in one place, reaches the calls, and is read back."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import tangram
from tangram import Mask, _cache, _core, _settings, flex
from tangram._cache import BoundedCache


@pytest.fixture(autouse=True)
def as_before():
    before = tangram.configuration()
    yield
    given = {field.name: getattr(before, field.name) for field in dataclasses.fields(before)}
    tangram.configure(**given)
    _cache._bounds.clear()


def test_what_is_set_is_read_back():
    given = {
        "backend": "reference",
        "deterministic": True,
        "transport": "nccl",
        "exact_memory": True,
        "timeout_s": 2.5,
        "num_threads": 3,
        "sanity_check": True,
        "profile": True,
        "max_keys": 5,
        "cache_bytes": {"keys": 1 << 20, "plans": 2 << 20},
    }
    returned = tangram.configure(**given)
    assert returned == tangram.configuration() == tangram.Configuration(**given)
    assert tangram.configure(timeout_s=4) == dataclasses.replace(returned, timeout_s=4.0)
    assert _core.timeout_s() == 4 and _core.Env.get().num_threads == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        returned.backend = "cpu"


def operands():
    rng = np.random.default_rng(0)
    return rng.standard_normal((3, 20, 2, 8), dtype=np.float32)


def test_backend_and_determinism_reach_calls_that_name_none(monkeypatch):
    q, k, v = operands()
    mask = Mask.causal(20)
    wanted, _ = tangram.flex_flash_attn_func(q, k, v, mask, backend="reference")
    tangram.configure(backend="reference", deterministic=True)
    made = []
    options = flex.AttnOptions

    def record(*args):
        made.append(args)
        return options(*args)

    monkeypatch.setattr(flex, "AttnOptions", record)
    seen = []
    named = flex.backend_named
    monkeypatch.setattr(flex, "backend_named", lambda name, **rest: seen.append(name) or named(name, **rest))
    out, _ = tangram.flex_flash_attn_func(q, k, v, mask)
    other, _ = tangram.flex_flash_attn_func(q, k, v, mask, backend="cpu")
    assert np.array_equal(out, wanted) and seen == ["reference", "cpu"]
    assert [args[2] for args in made] == [True, True]
    assert np.allclose(other, wanted, atol=1e-5)


def test_bounds_hold_for_caches_there_are_and_those_to_come():
    cache = BoundedCache("keys", lambda value: 10, 1000, 100)
    for i in range(8):
        cache.put(i, i)
    tangram.configure(max_keys=3)
    assert len(cache) == 3 and BoundedCache("keys", lambda value: 10, 1000, 100).max_entries == 3
    tangram.configure(cache_bytes={"keys": 15})
    assert len(cache) == 1 and tangram.configuration().cache_bytes == {"keys": 15}


def test_variables_are_what_is_left_open():
    code = "import tangram; c = tangram.configuration(); print(c.timeout_s, c.num_threads, c.sanity_check, c.profile)"
    code += "; print(tangram.configure(timeout_s=9).timeout_s, tangram.configuration().num_threads)"
    env = {"TANGRAM_TIMEOUT_S": "7.5", "TANGRAM_NUM_THREADS": "2", "TANGRAM_SANITY_CHECK": "1", "TANGRAM_PROFILE": "1"}
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)
    assert result.stdout.split() == ["7.5", "2", "True", "True", "9.0", "2"], result.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "sm70"}, r"backend must be None or one of .*cpu.*\(got backend='sm70'\)"),
        ({"deterministic": 1}, r"deterministic must be of type bool \(got deterministic=1\)"),
        ({"timeout_s": "soon"}, r"timeout_s must be of type int or float \(got timeout_s='soon'\)"),
        ({"timeout_s": 0}, r"timeout_s must be seconds in .*\(got timeout_s=0\)"),
        ({"num_threads": True}, "num_threads must be of type int"),
        ({"num_threads": -1}, "num_threads must lie in"),
        ({"transport": "rdma"}, r"transport must be one of copy_engine, nccl \(got transport='rdma'\)"),
        ({"max_keys": 0}, "max_keys must be positive"),
        ({"cache_bytes": {"kyes": 5}}, r"cache_bytes takes .*keys.*\(got cache_bytes\['kyes'\]\)"),
        ({"cache_bytes": {"keys": -1}}, r"whole numbers from 0 on \(got cache_bytes\['keys'\]=-1\)"),
        ({"cache_bytes": 5}, "cache_bytes must map names of memory_use to bytes"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(given, message):
    before = tangram.configuration()
    with pytest.raises(tangram.InvalidArgument, match=message):
        tangram.configure(**{"max_keys": 77, "profile": True} | given)
    assert tangram.configuration() == before and _settings.chosen.max_keys != 77
