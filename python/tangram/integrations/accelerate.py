# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Accelerate, Trainer and TRL: `ParallelismConfig(cp_size=...)` whose context parallelism is Tangram's.

args = TrainingArguments(..., parallelism_config=ParallelismConfig(cp_size=8))  # or Accelerator(parallelism_config=...)
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped,import-not-found,unused-ignore]
from accelerate import parallelism_config as _theirs
from accelerate.utils import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    DistributedType,
)

from ..errors import InvalidArgument
from ._context_parallel import context_parallel
from ._versions import warn_of_untested

__all__ = ["ParallelismConfig"]
_NAME = "ParallelismConfig"
for _package in ("accelerate", "trl"):
    warn_of_untested(_package)


@dataclass
class ParallelismConfig(_theirs.ParallelismConfig):  # type: ignore[misc]
    """Accelerate's, with cp_backend="tangram": masks, windows and packed documents keep their meaning over ranks.

    The arguments are those of accelerate.ParallelismConfig. Ranks of the cp dimension get the same batch, and the model
    that is prepared computes its rows as of tangram.integrations.transformers.context_parallel. Models are sharded by
    FSDP2 on GPUs; on CPUs ranks train under DDP.

    Raises InvalidArgument for another cp_backend, tp_size or sp_size beside cp_size.
    """

    cp_backend: str | None = None

    def __post_init__(self) -> None:
        if self.cp_backend not in (None, "tangram"):
            raise InvalidArgument(
                f"{_NAME}: cp_backend must be 'tangram' or None; other backends have accelerate's own class "
                f"(got cp_backend={self.cp_backend!r})"
            )
        self.cp_backend = "torch"  # the only one that accelerate knows
        super().__post_init__()
        if self.cp_size > 1:
            for name, size in (("tp_size", self.tp_size), ("sp_size", self.sp_size)):
                if size > 1:
                    raise InvalidArgument(f"{_NAME}: {name} must be 1 beside cp_size (got {name}={size})")
        self.cp_backend = "tangram"
        _install()

    def _validate_accelerator(self, accelerator: Any) -> None:
        if accelerator.distributed_type != DistributedType.MULTI_CPU:
            super()._validate_accelerator(accelerator)
        elif self.total_size != accelerator.num_processes:
            raise InvalidArgument(
                f"{_NAME}: sizes must have the number of processes as product "
                f"(got {self.total_size} for {accelerator.num_processes} processes)"
            )


def _is_ours(accelerator: Any) -> bool:
    config = accelerator.parallelism_config
    return isinstance(config, ParallelismConfig) and bool(config.cp_enabled)


def _prepare(accelerator: Any, model: Any) -> None:
    context_parallel(model, accelerator.torch_device_mesh["cp"], needs_labels=True)
    # Trainer enters it around each step. Batches stay whole until the model's forward.
    accelerator.maybe_context_parallel = lambda *args, **kwargs: contextlib.nullcontext()


@functools.cache
def _install() -> None:
    """Teaches Accelerator, and Trainer where it is imported, to leave the work to Tangram for configs of this class."""
    prepare_cp, prepare_model = Accelerator._prepare_cp, Accelerator.prepare_model

    @functools.wraps(prepare_cp)
    def _prepare_cp(self: Any, *args: Any) -> Any:
        import torch

        if not _is_ours(self):
            return prepare_cp(self, *args)
        for model in (arg for arg in args if isinstance(arg, torch.nn.Module)):
            _prepare(self, model)
        return args

    @functools.wraps(prepare_model)
    def _prepare_model(self: Any, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        if not _is_ours(self) or not evaluation_mode:
            return prepare_model(self, model, device_placement, evaluation_mode)
        # Trainer.evaluate before Trainer.train, which would then take the model as prepared and average no gradients.
        _prepare(self, model)
        model = prepare_model(self, model, device_placement, evaluation_mode)
        model._is_accelerate_prepared = False
        self._models.remove(model)
        return model

    Accelerator._prepare_cp, Accelerator.prepare_model = _prepare_cp, _prepare_model
    _install_in_trainer()


def _install_in_trainer() -> None:
    """Logits are of a rank's rows, labels of all: Trainer would gather them as samples of one batch."""
    try:
        from transformers import Trainer
    except ImportError:
        return
    evaluation_loop = Trainer.evaluation_loop

    @functools.wraps(evaluation_loop)
    def _evaluation_loop(
        self: Any, dataloader: Any, description: str, prediction_loss_only: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        chosen = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        if _is_ours(self.accelerator) and not chosen:
            raise InvalidArgument(
                "Trainer: prediction_loss_only must be True with cp_size, since logits are of one rank's rows; leave "
                f"out compute_metrics, and call predict in one process (got {description!r})"
            )
        if not _is_ours(self.accelerator):
            return evaluation_loop(self, dataloader, description, prediction_loss_only, *args, **kwargs)
        before, self.gather_function = self.gather_function, functools.partial(_gather_losses, self.accelerator)
        try:
            return evaluation_loop(self, dataloader, description, prediction_loss_only, *args, **kwargs)
        finally:
            self.gather_function = before

    Trainer.evaluation_loop = _evaluation_loop


def _gather_losses(accelerator: Any, losses: Any) -> Any:
    """accelerator.gather_for_metrics of losses that all ranks of the cp dimension, the innermost, share. Each is taken
    once, so that dropping the samples that fill up a last batch leaves the others."""
    gathered = accelerator.gather(losses)
    once = gathered.view(-1, accelerator.parallelism_config.cp_size, losses.numel())[:, 0].flatten()
    state = accelerator.gradient_state
    return once[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else once
