# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""MAGI_ATTENTION_* variables that change results or placement, read once, when tangram.magi is imported.

All other variables have no counterpart: they choose builds that do not exist here, or one of several kernels where
Tangram has one. One line of the log names them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from ..errors import InvalidArgument, NotAvailable

PREFIX = "MAGI_ATTENTION_"
_LEVELS = ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")
_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_log = logging.getLogger("tangram.magi")

ReduceOp = Literal["none", "sum", "avg"]


@dataclass(frozen=True)
class Environment:
    """What the variables say."""

    kernel_backend: str = "ffa"
    """Value of KERNEL_BACKEND: ffa, sdpa or sdpa_ol."""
    backend: str | None = None
    """Backend of tangram: None the best, "reference" the dense one in float64."""
    precision: str | None = None
    """The dtype in which attention is computed; None: that of q."""
    deterministic: bool = False
    sanity_check: bool = False
    profile: bool = False
    qo_comm: bool = False
    flatten_head_groups: bool = False
    hierarchical_comm: bool = False
    native_grpcoll: bool = False
    bwd_hide_tail_reduce: bool = False
    sm_margin: int = 0
    """The larger of the two passes' margins."""
    dsink_reduce: ReduceOp = "none"
    max_keys: int | None = None
    """Keys that a group keeps; None: Tangram's bound."""
    min_chunks_per_rank: int | None = None
    log_level: str | None = None


class _Reader:
    """Remembers which variables were asked for: the rest has no counterpart."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._asked: set[str] = set()

    def text(self, name: str) -> str | None:
        self._asked.add(PREFIX + name)
        return self._environ.get(PREFIX + name) or None

    def flag(self, name: str) -> bool:
        """There 1 is on and everything else off; here what is neither 0 nor 1 is refused."""
        text = self.text(name)
        if text not in (None, "0", "1"):
            raise InvalidArgument(f"{PREFIX}{name}: must be 0 or 1 (got {text!r})")
        return text == "1"

    def number(self, name: str, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < least:
            raise InvalidArgument(f"{PREFIX}{name}: must be a whole number from {least} on (got {text!r})")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in choices:
            raise InvalidArgument(f"{PREFIX}{name}: must be one of {', '.join(choices)} (got {text!r})")
        return None if text is None else text.lower()

    def others(self) -> list[str]:
        return sorted(name for name in self._environ if name.startswith(PREFIX) and name not in self._asked)


def _kernel_backend(read: _Reader) -> str:
    kernel = read.choice("KERNEL_BACKEND", ("ffa", "sdpa", "sdpa_ol", "fa4"))
    is_sdpa, is_fa4 = read.flag("SDPA_BACKEND"), read.flag("FA4_BACKEND")
    if (kernel is not None) + is_sdpa + is_fa4 > 1:
        raise InvalidArgument(
            f"{PREFIX}KERNEL_BACKEND: goes without {PREFIX}SDPA_BACKEND and {PREFIX}FA4_BACKEND, and these go without "
            f"each other: unset all but one (got {kernel}, {int(is_sdpa)} and {int(is_fa4)})"
        )
    if kernel == "fa4" or is_fa4:
        raise NotAvailable(
            f"{PREFIX}FA4_BACKEND, {PREFIX}KERNEL_BACKEND: the backend fa4 is not there, Tangram takes the best of its "
            "own for the device: unset the variable (got fa4)"
        )
    return kernel or ("sdpa" if is_sdpa else "ffa")


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Raises InvalidArgument for values that a variable cannot mean, NotAvailable for what is not there."""
    read = _Reader(environ)
    kernel = _kernel_backend(read)
    precision = read.choice("PRECISION", tuple(_PRECISIONS))
    if precision == "fp64" and kernel == "ffa":
        raise NotAvailable(
            f"{PREFIX}PRECISION: only the dense reference computes tensors of 64 bits: set {PREFIX}SDPA_BACKEND=1 too "
            "(got 'fp64')"
        )
    margins = [read.number(f"FFA_{way}_SM_MARGIN", 0) or 0 for way in ("FORWARD", "BACKWARD")]
    level = read.choice("LOG_LEVEL", tuple(name.lower() for name in _LEVELS))
    # Always in float32 here, in both passes: 1 asks for what is, and 0 for less precise bytes.
    for name in ("FORWARD_HIGH_PRECISION_REDUCE", "BACKWARD_HIGH_PRECISION_REDUCE"):
        read.flag(name)
    made = Environment(
        kernel_backend=kernel,
        backend=None if kernel == "ffa" else "reference",
        precision=None if precision is None else _PRECISIONS[precision],
        deterministic=read.flag("DETERMINISTIC_MODE"),
        sanity_check=read.flag("SANITY_CHECK"),
        profile=read.flag("PROFILE_MODE"),
        qo_comm=read.flag("QO_COMM"),
        flatten_head_groups=read.flag("FLATTEN_HEAD_GROUPS"),
        hierarchical_comm=read.flag("HIERARCHICAL_COMM"),
        native_grpcoll=read.flag("NATIVE_GRPCOLL"),
        bwd_hide_tail_reduce=read.flag("BWD_HIDE_TAIL_REDUCE"),
        sm_margin=max(margins),
        dsink_reduce=cast(ReduceOp, read.choice("DSINK_ALL_REDUCE_OP", ("none", "sum", "avg")) or "none"),
        max_keys=read.number("DIST_ATTN_RUNTIME_DICT_SIZE", 1),
        min_chunks_per_rank=read.number("MIN_CHUNKS_PER_RANK", 1),
        log_level=None if level is None else level.upper(),
    )
    others = read.others()
    if others:
        _log.warning("tangram.magi: have no counterpart and are ignored: %s", ", ".join(others))
    return made


def of_process() -> Environment:
    """The variables of this process; sets what is set once for a process."""
    env = read_environment(os.environ)
    if env.log_level is not None:
        logging.getLogger("tangram").setLevel(env.log_level)
    return env
