"""What the engine needs from a batch: its number of samples, their names, and how to move it.

A batch is a dict, a list or tuple, or a PyG batch, of tensors and of lists with one entry per
sample.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from clew.base.errors import InputError

_ONE_A_SAMPLE = ("label", "index")
_NAMES = ("question_id", "index")


def move(
    batch: Any, device: torch.device, *, non_blocking: bool = False, channels_last: bool = False
) -> Any:
    """The batch with its tensors on `device`; images `[batch, channels, height, width]` in
    channels_last if requested. Anything that is not a tensor stays unchanged."""

    def move_one(tensor: Tensor) -> Tensor:
        if channels_last and tensor.dim() == 4 and tensor.is_floating_point():
            return tensor.to(device, non_blocking=non_blocking, memory_format=torch.channels_last)
        return tensor.to(device, non_blocking=non_blocking)

    if device.type == "cpu" and not channels_last and not _is_elsewhere(batch):
        return batch
    return map_tensors(batch, move_one)


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor replaced; lists of names are left alone."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        if _are_names(batch):
            return batch
        values = [map_tensors(value, change) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if hasattr(batch, "to_dict"):  # PyG, whose own `to` goes through every name of every sample
        changed = copy.copy(batch)
        for name, value in batch.to_dict().items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
        return changed
    return batch


def named_tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name: "sequence", or its index in a list."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, list | tuple):
        for place, value in enumerate(() if _are_names(batch) else batch):
            yield from named_tensors(value, str(place))
    elif isinstance(batch, Mapping) or hasattr(batch, "to_dict"):
        content = batch if isinstance(batch, Mapping) else batch.to_dict()
        for key, value in content.items():
            yield from named_tensors(value, str(key))


def count_samples(batch: Any) -> int:
    """The number of samples in the batch; raises InputError when there is nothing to count."""
    for name in _ONE_A_SAMPLE:
        values = _get(batch, name)
        if values is not None:
            return len(values)
    for _, tensor in named_tensors(batch):
        return tensor.shape[0] if tensor.dim() else 1
    raise InputError(
        f"a batch of type {type(batch).__name__} contains no tensors: return a dict, a list or a "
        'PyG batch of tensors, preferably with a "label".'
    )


def sample_names(batch: Any) -> list[str]:
    """The samples' question ids, else their indices in the dataset, else empty."""
    for name in _NAMES:
        values = _get(batch, name)
        if values is not None:
            return [str(v) for v in (values.tolist() if isinstance(values, Tensor) else values)]
    return []


def _are_names(values: list[Any] | tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], str)


def _get(batch: Any, name: str) -> Any:
    if isinstance(batch, Tensor | list | tuple):
        return None
    return batch[name] if name in batch else None  # noqa: SIM401 - not every batch has get


def _is_elsewhere(batch: Any) -> bool:
    return any(tensor.device.type != "cpu" for _, tensor in named_tensors(batch))
