# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""A bare virtual environment, as on a machine that has Python and nothing else, and what a wheel must do there."""

import os
import subprocess
from pathlib import Path

# Without NumPy and torch: rows are memory views. Each query's values are the numbers of the rows it sees.
PROGRAM = """
from array import array
import importlib.util, math
import tangram

mask = tangram.Mask.varlen([0, 300, 1000], causal=True)
plan = tangram.plan(tangram.Mask.varlen([0, 700, 1500, 4096]), 4)
assert plan.balance < 1.1 and tangram.Plan.from_json(plan.to_json()) == plan
assert "<svg" in mask._repr_html_()

def rows(heads, values):
    flat = array("f", (value for value in values for _ in range(heads * 64)))
    return memoryview(flat).cast("B").cast("f", (1000, heads, 64))

ones, zeros = [1.0] * 1000, [0.0] * 1000
q, k, v, out = rows(4, ones), rows(2, ones), rows(2, map(float, range(1000))), rows(4, zeros)
lse = memoryview(array("f", [0.0] * 4000)).cast("B").cast("f", (1000, 4))
heads = tangram.HeadConfig(4, 2, 64, 64, "float32")
tangram.FlexAttention(mask, heads, tangram.Backend("cpu")).forward(q, k, v, out, lse)
for row, mean, seen in (0, 0, 1), (299, 149.5, 300), (300, 300, 1), (999, 649.5, 700):
    assert abs(out[row, 3, 63] - mean) < 1e-3, (row, out[row, 3, 63])
    assert abs(lse[row, 0] - 8 - math.log(seen)) < 1e-4, (row, lse[row, 0])  # scores are 64 / sqrt(64)

try:
    tangram.flex_flash_attn_func([[[1.0]]], None, None, mask)
except tangram.InvalidArgument as error:
    assert "must be a tensor or a NumPy array" in str(error)
try:
    tangram.mask_key
except ModuleNotFoundError as error:
    assert "tangram.mask_key needs torch, which is not installed" in str(error)
assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("torch") is None
print(tangram.__version__, ",".join(info.name for info in tangram.list_backends()), tangram.__file__)
"""


def run(*command, **env):
    """Standard output of a command that must succeed, which sees nothing of the build tree."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CMAKE_ARGS")}
    command = [str(part) for part in command]
    result = subprocess.run(command, env={**environment, **env}, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    return result.stdout


def bare_environment(interpreter, folder):
    """The Python of a new virtual environment."""
    run(interpreter, "-m", "venv", "--without-pip", folder)
    return Path(folder) / "bin" / "python"


def install(pip_of, python, wheel):
    """Installs a wheel for `python` by the pip of another one, with no index and no compiler in reach."""
    arguments = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
    run(pip_of, "-m", "pip", "--python", python, *arguments, PATH=python.parent)
