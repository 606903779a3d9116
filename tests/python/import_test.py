# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""`import tangram` alone is quick: programs that only plan, and every rank of a large job, pay for it."""

import importlib.util
import resource
import subprocess
import sys

import pytest

# 3.10 to 3.13 load 62 to 65; each further one is about a millisecond.
MOST_MODULES = 80
HEAVY = {"numpy", "torch", "transformers", "asyncio", "multiprocessing", "urllib", "email", "unittest"}


def imported():
    """Names of the modules that the import adds, in a process where warnings are errors."""
    program = "import sys; before = set(sys.modules); import tangram; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout.split()


def test_it_imports_no_framework_and_warns_of_nothing():
    names = imported()
    assert "tangram._core" in names
    assert HEAVY & {name.partition(".")[0] for name in names} == set()
    assert len(names) <= MOST_MODULES, names


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_functions_over_ranks_import_little_beside_torch():
    """They imported torch's compiler, sympy and all, which takes longer than torch."""
    program = (
        "import sys, torch, torch.distributed; before = set(sys.modules); "
        "import tangram.distributed, tangram.flash_attn, tangram.magi; print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    names = result.stdout.split()
    assert {"torch._dynamo", "torch._inductor", "sympy"} & set(names) == set()
    assert len(names) <= MOST_MODULES, names


def test_it_takes_less_than_0_3_seconds():
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    # Processor time of the whole process, the least of several: what else the machine does makes caches cold.
    times = []
    for _ in range(5):
        before = spent()
        subprocess.run([sys.executable, "-W", "error", "-c", "import tangram"], check=True)
        times.append(spent() - before)
    assert min(times) <= 0.3, times
