# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that a call computes in: its sizes, and who gives it back."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tangram import _workspace  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_taken(monkeypatch):
    monkeypatch.setattr(_workspace, "_most_bytes", {})


def test_masks_of_about_one_size_ask_for_the_same():
    """Torch keeps a block for each size that is asked for: packs of every step would keep hundreds."""
    sizes = {_workspace._rounded(n, 0) for n in range(1_000_000, 500_000, -997)}
    assert len(sizes) == 1
    assert max(sizes) <= 1.25 * 1_000_000


def test_a_larger_one_is_followed_by_those_that_fit_into_it():
    assert _workspace._rounded(1000, 0) == 1024
    large = _workspace._rounded(100_000, 0)
    assert 100_000 <= large <= 125_000
    assert _workspace._rounded(60_000, 0) == large
    assert _workspace._rounded(1000, 0) == 1024  # far smaller: its own
    assert _workspace._rounded(60_000, 1) < large  # another GPU


def test_what_needs_nothing_takes_nothing():
    space, place = _workspace.take(0, torch.empty(1), 0)
    assert space is None and place == (0, 0)
    _workspace.release(space)


def test_memory_has_the_size_that_was_asked_for_and_is_given_back_by_its_address(monkeypatch):
    given = []
    monkeypatch.setattr(_workspace, "_raw_delete", given.append)
    space, (address, num_bytes) = _workspace.take(5000, torch.empty(1), 0)
    assert num_bytes >= 5000 and address == space.data_ptr()
    _workspace.release(space)
    assert given == []  # a tensor ends by itself
    _workspace.release(4096)
    assert given == [4096]
