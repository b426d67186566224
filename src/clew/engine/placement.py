"""A model as planned: on its device, in its memory format, with gradient checkpointing (activations
are recomputed in the backward pass instead of stored: less memory, more time)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


def place_model(
    model: nn.Module, device: torch.device, *, channels_last: bool, gradient_checkpointing: bool
) -> nn.Module:
    model = model.to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if gradient_checkpointing:
        checkpoint_activations(model)
    return model


def checkpoint_activations(model: nn.Module) -> None:
    """Makes the model store only the activations between its parts.

    A model (or its `network`) with `enable_gradient_checkpointing()` uses that instead. Otherwise
    the parts are the direct children of the network, and each member of a module list.
    """
    network = getattr(model, "network", model)
    for module in (model, network):
        enable = getattr(module, "enable_gradient_checkpointing", None)
        if callable(enable):
            enable()
            return
    for part in _parts(network):
        if getattr(part.forward, "func", None) is not _run_part:  # not wrapped yet
            part.forward = partial(_run_part, part, part.forward)


def _parts(network: nn.Module) -> Iterator[nn.Module]:
    """The modules to checkpoint. Lists and dicts of modules are never called, so their members are
    taken instead."""
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _parts(child)
        else:
            yield child


def _run_part(part: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (part.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    norms = [m for m in part.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    # torch.compile already keeps buffer updates out of the recomputation.
    if not norms or torch.compiler.is_compiling():
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = partial(_contexts, norms)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(norms: list[_NormBase]) -> tuple[AbstractContextManager, AbstractContextManager]:
    """The contexts for the forward pass of a part and for its recomputation."""
    return nullcontext(), _without_statistics(norms)


@contextmanager
def _without_statistics(norms: list[_NormBase]) -> Iterator[None]:
    """Keep the recomputation from updating batch norm's running statistics a second time."""
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
