# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a script with the packages of a stack: STACK SCRIPT, "-" for none."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import stacks

stack, script = sys.argv[1:3]
sys.argv = sys.argv[2:]
if stack != "-":
    stacks.use(stack)
if stack == "torchtitan":
    import titan_on_cpu  # noqa: F401
if stack == "deepspeed":
    import deepspeed.comm.torch

    deepspeed.comm.torch.build_shm_op = lambda: None  # compiles an operator that nothing here calls, for a minute
runpy.run_path(script, run_name="__main__")
