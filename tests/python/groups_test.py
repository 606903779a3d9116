# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that share their ranks, that are destroyed and made anew, and whose host of the store is stopped."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from ranks.start import run_script  # noqa: E402

CHECKS = Path(__file__).parent / "ranks" / "group_checks.py"


def test_rows_of_groups_over_the_same_ranks_do_not_mix():
    run_script(CHECKS, "groups", ranks=2, timeout=120, TANGRAM_TIMEOUT_S="60")


def test_a_process_that_lives_on_meets_a_fresh_peer(tmp_path):
    run_script(CHECKS, "fresh", tmp_path, ranks=3, timeout=120, TANGRAM_TIMEOUT_S="30")


def test_a_stopped_host_of_the_store_is_a_timeout_that_names_it(tmp_path):
    printed = run_script(CHECKS, "stopped", tmp_path, ranks=3, timeout=60, TANGRAM_TIMEOUT_S="3")
    assert "rank 1 saw it" in printed and "rank 2 saw it" in printed
