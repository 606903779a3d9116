# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""ring_flash_attn's names: values and gradients over two ranks, refusals, and the package that they are taken from."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import stacks  # noqa: E402
from ranks.start import run_script  # noqa: E402
from tangram import InvalidArgument  # noqa: E402
from tangram.integrations import ring_flash_attn  # noqa: E402

LONG = os.environ.get("TANGRAM_TEST_LONG", "0") != "0"
SCRIPT = Path(__file__).parent / "ranks" / "ring_checks.py"


def test_values_and_gradients_over_ranks_are_those_of_dense_attention():
    run_script(SCRIPT, "batches", "documents", "sequence", "packed_forms", "refusals", ranks=2)


def test_install_is_found_under_the_name_and_refuses_to_come_late(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ring_flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    other = ModuleType("ring_flash_attn")
    monkeypatch.setitem(sys.modules, "ring_flash_attn", other)
    with pytest.raises(InvalidArgument, match="must run before ring_flash_attn is imported"):
        ring_flash_attn.install()
    monkeypatch.delitem(sys.modules, "ring_flash_attn")
    ring_flash_attn.install()
    ring_flash_attn.install()
    import ring_flash_attn as found
    from ring_flash_attn.adapters.hf_adapter import DATA_PARAMS, create_ring_flash_attention_forward  # noqa: F401

    assert found is ring_flash_attn and set(found.__all__) - {"install"} == {
        name for name in dir(found) if "flash_attn" in name and name != "ring_flash_attn" and name[0] != "_"
    }
    for name in [name for name in sys.modules if name.split(".")[0] == "ring_flash_attn"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.skipif(not LONG, reason="needs the package: make test-long installs it")
def test_the_published_package_gives_the_same():
    if not stacks.has("ring_flash_attn"):
        pytest.skip("not installed: ring_flash_attn (tools/setup_stacks.sh)")
    run_script(SCRIPT.with_name("ring_published_checks.py"), ranks=2)
