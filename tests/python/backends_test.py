# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Backends by name and by the memory of their tensors."""

import pytest

import tangram
from tangram._backends import backend_named, default_backend, gpu_backends
from tangram.errors import InvalidArgument, NotAvailable


def test_backends_say_where_their_tensors_lie():
    on_gpu = {info.name: info.on_gpu for info in tangram.list_backends()}
    assert on_gpu == {"sm90": True, "sm80": True, "cpu": False, "reference": False}
    assert gpu_backends() == [info.name for info in tangram.list_backends() if info.available and info.on_gpu]


def test_the_default_is_the_best_for_the_memory():
    assert default_backend(False) == "cpu"
    if gpu_backends():
        assert default_backend(True) == gpu_backends()[0]
    else:
        with pytest.raises(NotAvailable, match="no backend of this build computes in CUDA memory"):
            default_backend(True)
        tangram.tokens.check_token_errors()  # asks no GPU where there is none
    with pytest.raises(InvalidArgument, match="backend must be None, the best .* one of sm90, sm80, cpu"):
        backend_named("tpu", on_gpu=False)
