# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Errors say which function refuses, and what for."""

import pickle

import pytest

import tangram
from tangram._named import Named


@pytest.mark.parametrize(
    ("text", "function", "requirement"),
    [
        ("make_plan: cp_size must be positive (got a: b)", "make_plan", "cp_size must be positive (got a: b)"),
        ("Plan.from_json: plan must be JSON", "Plan.from_json", "plan must be JSON"),
        ("rank 3 gave up: no answer", "", "rank 3 gave up: no answer"),
        ("/tmp/a: is no file", "", "/tmp/a: is no file"),
        ("", "", ""),
    ],
)
def test_parts_of_errors(text, function, requirement):
    error = pickle.loads(pickle.dumps(tangram.InvalidArgument(text)))
    assert (error.function, error.requirement, str(error)) == (function, requirement, text)


def test_errors_of_the_extension_have_parts():
    with pytest.raises(tangram.InvalidArgument) as caught:
        tangram.Mask.varlen([0, 3, 2])
    assert caught.value.function == "Mask.varlen"
    assert str(caught.value) == f"Mask.varlen: {caught.value.requirement}"


def test_the_function_that_was_called_refuses():
    with pytest.raises(tangram.InvalidArgument) as caught, Named("mask_key"):
        raise tangram.InvalidArgument("make_plan: cp_size must be positive (got 0)")
    assert (caught.value.function, str(caught.value)) == ("mask_key", "mask_key: cp_size must be positive (got 0)")
    with pytest.raises(TypeError, match="^int"), Named("mask_key"):  # Python's own words stay
        raise TypeError("int: is not iterable")
    with pytest.raises(TypeError, match="^mask_key: q must be a tensor"), Named("mask_key"):
        raise TypeError("dispatch: q must be a tensor (got int)")
