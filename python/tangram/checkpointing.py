# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing that keeps the results of attention: a layer is recomputed, its attention is not.

    checkpoint(layer, x, use_reentrant=False, context_fn=tangram.checkpoint_policy())
    checkpoint(tangram.keep_attention(layer), x, use_reentrant=True)

`out` and `lse` of a call are kept. So the backward pass of attention computes as without checkpointing, and neither
attention nor its transfers run twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from . import _torch_calc, _torch_tokens  # noqa: F401  # define the operators
from ._watched import Results, within
from .errors import InvalidArgument

__all__ = ["OPERATORS", "checkpoint_policy", "keep_attention"]

OPERATORS = (
    torch.ops.tangram.calc_attn.default,
    torch.ops.tangram.flex_attn.default,
    torch.ops.tangram.token_attn.default,
)
"""Forward passes of attention, for the lists of operators that other libraries save."""

Policy = Callable[..., Any]
ContextFn = Callable[[], tuple[Any, Any]]


def _keep(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if operator in OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


def _keep_beside(policy: Policy, ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    if operator in OPERATORS:
        return CheckpointPolicy.MUST_SAVE
    return policy(ctx, operator, *args, **kwargs)


class _Layers:
    """Whether this thread runs one of some modules."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._of_thread = threading.local()
        for module in modules:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, module: Any, args: Any) -> None:
        self._of_thread.depth = getattr(self._of_thread, "depth", 0) + 1

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        self._of_thread.depth -= 1

    def are_running(self) -> bool:
        return getattr(self._of_thread, "depth", 0) > 0

    def contexts(self, otherwise: Policy) -> tuple[Any, Any]:
        if torch._guards.TracingContext.try_get() is not None:
            raise InvalidArgument(
                "checkpoint_policy: layers must be None under torch.compile, whose graphs know no modules: pass the "
                "policy to the checkpoints of these layers alone (got layers)"
            )
        policy = _OfLayers(self, otherwise).policy
        contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
        return contexts


class _OfLayers:
    """The policy of one checkpoint, which may be inside a layer or contain it. The recomputation, which may not call
    modules as such, repeats the decisions of the forward pass."""

    def __init__(self, layers: _Layers, otherwise: Policy) -> None:
        self._layers, self._otherwise = layers, otherwise
        self._is_within = layers.are_running()
        self._keeps: list[bool] = []
        self._next = 0

    def policy(self, ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        if operator not in OPERATORS:
            return self._otherwise(ctx, operator, *args, **kwargs)
        if ctx.is_recompute:
            keeps = self._keeps[self._next]
            self._next += 1
        else:
            keeps = self._is_within or self._layers.are_running()
            self._keeps.append(keeps)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.MUST_RECOMPUTE


def checkpoint_policy(
    policy: Policy | list[Any] | None = None, *, layers: torch.nn.Module | Iterable[torch.nn.Module] | None = None
) -> ContextFn:
    """The `context_fn` of `torch.utils.checkpoint.checkpoint` that keeps the results of attention.

        checkpoint(layer, x, use_reentrant=False, context_fn=tangram.checkpoint_policy())
        model.gradient_checkpointing_enable(
            {"use_reentrant": False, "context_fn": tangram.checkpoint_policy(layers=model.model.layers[:12])}
        )

    Kept are `out` and `lse` of calc_attn, flex_flash_attn_func, token_attn_func and of what calls them. One value
    serves all layers and steps, eager and under torch.compile.

    Args:
        policy: what else is kept, as create_selective_checkpoint_contexts takes it: a function of (ctx, operator,
            arguments), or a list of operators. None: nothing.
        layers: a module, or modules: only attention that is called within one of them is kept. None: all. Modules get
            forward hooks. Refused under torch.compile.

    Raises:
        InvalidArgument: a policy that is neither, layers that are no modules.
    """
    if policy is not None and not callable(policy) and not isinstance(policy, list):
        raise InvalidArgument(
            f"checkpoint_policy: policy must be a function, a list of operators or None (got {type(policy).__name__})"
        )
    if isinstance(policy, list):
        for operator in policy:
            if not isinstance(operator, torch._ops.OpOverload):
                raise InvalidArgument(
                    "checkpoint_policy: a list must hold operators such as torch.ops.aten.mm.default "
                    f"(got {operator!r:.60})"
                )
        if layers is None:
            return partial(create_selective_checkpoint_contexts, [*OPERATORS, *policy])
        policy = partial(_of_list, tuple(policy))
    if layers is not None:
        modules = _called([layers] if isinstance(layers, torch.nn.Module) else list(layers))
        if not all(isinstance(module, torch.nn.Module) for module in modules):
            kinds = sorted({type(module).__name__ for module in modules})
            raise InvalidArgument(f"checkpoint_policy: layers must be modules (got {', '.join(kinds)})")
        return partial(_Layers(modules).contexts, policy or _keep)
    if policy is None:
        return partial(create_selective_checkpoint_contexts, _keep)
    return partial(create_selective_checkpoint_contexts, partial(_keep_beside, policy))


def _called(modules: list[Any]) -> list[Any]:
    """Without containers such as ModuleList, which are never called: their children instead."""
    found = []
    for module in modules:
        is_container = isinstance(module, torch.nn.Module) and type(module).forward is torch.nn.Module.forward
        found += _called(list(module.children())) if is_container else [module]
    return found


def _of_list(operators: tuple[Any, ...], ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if operator in operators else CheckpointPolicy.PREFER_RECOMPUTE


class _Kept:
    """Results of one attention pass; of their own graph, so that nothing holds the pass that made them."""

    __slots__ = ("name", "shape", "tensors", "versions")

    def __init__(self, name: str, q: Tensor, results: Results) -> None:
        self.name, self.shape = name, q.shape
        self.tensors = tuple(x.detach() for x in results)
        self.versions = tuple(_version(x) for x in self.tensors)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _Recording:
    """A frame that keeps what is computed."""

    def __init__(self) -> None:
        self.kept: list[_Kept | None] = []

    def recall(self, name: str, q: Tensor) -> Results | None:
        return None

    def keep(self, name: str, q: Tensor, results: Results) -> None:
        self.kept.append(_Kept(name, q, results))


class _Replay:
    """A frame that gives back what was kept, each once, so that memory is freed as the backward pass goes on."""

    def __init__(self, kept: list[_Kept | None]) -> None:
        self._kept, self._next = kept, 0

    def recall(self, name: str, q: Tensor) -> Results | None:
        at, self._next = self._next, self._next + 1
        known = self._kept[at] if at < len(self._kept) else None
        if known is None or (known.name, known.shape) != (name, q.shape):
            was = f"{known.name} of q {list(known.shape)}" if known else f"{len(self._kept)} calls"
            raise InvalidArgument(
                "tangram: with keep_attention the recomputation must call attention as the forward pass did "
                f"(got {name} of q {list(q.shape)} as call {at + 1}, was {was})"
            )
        if any(_version(x) != version for x, version in zip(known.tensors, known.versions)):
            raise InvalidArgument(
                "tangram: with keep_attention the output must not be changed in place, which the backward pass reads "
                "(got one that was changed)"
            )
        self._kept[at] = None
        return known.tensors

    def keep(self, name: str, q: Tensor, results: Results) -> None:
        pass


class _KeepAttention:
    """See keep_attention."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function
        self._kept: list[_Kept | None] | None = None
        self._has_replayed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            raise InvalidArgument(
                "keep_attention: a checkpoint inside torch.compile must take context_fn=tangram.checkpoint_policy() "
                "instead (got a call that is compiled)"
            )
        is_backward = torch._C._current_graph_task_id() != -1
        if self._kept is not None:
            if not is_backward:
                raise InvalidArgument(
                    "keep_attention: what it returns keeps one forward pass until its backward pass: make it anew for "
                    "each checkpoint (got a second forward pass)"
                )
            kept, self._kept, self._has_replayed = self._kept, None, True
            return self._run(_Replay(kept), args, kwargs)
        if (is_backward and self._has_replayed) or not _needs_backward(args, kwargs):
            return self.__wrapped__(*args, **kwargs)  # a second backward pass, or none to come
        recording = _Recording()
        result = self._run(recording, args, kwargs)
        self._kept = recording.kept
        return result

    def _run(self, frame: _Recording | _Replay, args: Any, kwargs: Any) -> Any:
        with within(frame):
            return self.__wrapped__(*args, **kwargs)


def _needs_backward(args: Any, kwargs: Any) -> bool:
    """Reentrant checkpoints run the forward pass without gradients, of arguments that want some."""
    if torch.is_grad_enabled():
        return True
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)


def keep_attention(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for one checkpoint of any kind, which recomputes it without its attention.

        checkpoint(tangram.keep_attention(layer), x, use_reentrant=True)
        tensor_parallel.checkpoint(tangram.keep_attention(run_layers), False, hidden_states)  # Megatron
        deepspeed.checkpointing.checkpoint(tangram.keep_attention(layer), x)

    The first call keeps `out` and `lse` of each call of attention. The recomputation, which autograd calls in the
    backward pass, takes them in the same order. It is made anew for each checkpoint. A forward pass without a backward
    pass to come keeps nothing; a second backward pass of a retained graph computes attention again.

    Raises:
        InvalidArgument: a second forward pass before the backward pass, a recomputation with other calls of attention,
            or an output that was changed in place. Inside torch.compile: use checkpoint_policy there.
    """
    if not callable(function):
        raise InvalidArgument(f"keep_attention: function must be callable (got {type(function).__name__})")
    return _KeepAttention(function)
