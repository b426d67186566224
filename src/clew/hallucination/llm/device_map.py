"""Models larger than one device: accelerate's hooks run layers on several GPUs, or fetch weights
from CPU memory or disk in every pass. What is fetched has no values (`meta`) between passes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import align_module_device, has_offloaded_params
from torch import Tensor, nn
from transformers import PreTrainedModel

_OFFLOADED = {"cpu": "in CPU memory", "disk": "on disk"}


def computing_device(device_map: str | Mapping[str, int | str]) -> str:
    """The device that a model with this map computes on: its first GPU, or the CPU."""
    if isinstance(device_map, str):
        return "auto"
    gpus = [place for place in device_map.values() if place not in _OFFLOADED]
    return str(torch.device(gpus[0])) if gpus else "cpu"


def is_spread(model: PreTrainedModel) -> bool:
    """Whether accelerate's hooks move weights or activations in every pass."""
    return hasattr(model, "_hf_hook")


def can_replay(model: PreTrainedModel) -> bool:
    """Whether passes can be captured as a CUDA graph: hooks cannot."""
    return model_device(model).type == "cuda" and not is_spread(model)


def model_device(model: PreTrainedModel) -> torch.device:
    """The device that takes a model's tokens and returns its logits; of a spread model, the one
    that computes its first layer."""
    return next(_hook_devices(model) if is_spread(model) else iter([model.device]))


def free_gpu_memory(model: PreTrainedModel) -> int:
    """Bytes that are free on each of the model's GPUs, besides room for the largest weight that is
    fetched."""
    fetched = (p.nbytes for p in model.parameters() if p.is_meta)
    devices = {model_device(model), *_hook_devices(model)}
    free = min(torch.cuda.mem_get_info(one)[0] for one in devices if one.type == "cuda")
    return max(0, free - max(fetched, default=0))


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """As `named_parameters`, with the values of weights that are fetched. Tied ones come once."""
    if not is_spread(model):
        yield from model.named_parameters()
        return
    tied = getattr(model, "all_tied_weights_keys", {})
    for above, module in model.named_modules():
        names = [name for name, _ in module.named_parameters(above, recurse=False)]
        if all(name in tied for name in names):
            continue
        with align_module_device(module):
            for name, weight in module.named_parameters(above, recurse=False):
                if name not in tied:
                    yield name, weight


def explain_spread(model: PreTrainedModel) -> str:
    """What a user should know about a spread model."""
    text = f"layers of the model: {_describe_places(model)}"
    if any(weight.is_meta for weight in model.parameters()):
        text += f"; {model_device(model)} computes all, and fetches those weights in every pass"
    if model_device(model).type == "cuda":
        text += ". CUDA graphs are not used, which is slower"
    return text


def _hook_devices(model: PreTrainedModel) -> Iterator[torch.device]:
    """The devices that compute, in the order of the modules."""
    for module in model.modules():
        given = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if given is not None:
            yield torch.device(given)


def _describe_places(model: PreTrainedModel) -> str:
    """Where the layers are: "20 on cuda:0, 12 in CPU memory"."""
    count = model.config.get_text_config().num_hidden_layers
    stacks = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    device_map = getattr(model, "hf_device_map", {})
    names = {module: name for name, module in model.named_modules()}
    places = Counter(_place_of(layer, names[layer], device_map) for layer in next(stacks, []))
    return ", ".join(f"{number:,} {place}" for place, number in places.items())


def _place_of(layer: nn.Module, name: str, device_map: Mapping[str, Any]) -> str:
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        place = device_map.get(".".join(parts[:length]))
        if place is not None:
            return _OFFLOADED.get(place) or f"on {torch.device(place)}"
    offloads = any(has_offloaded_params(module) for module in layer.modules())
    return _OFFLOADED["cpu"] if offloads else "on several devices"
