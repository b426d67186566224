"""Observe a causal language model during a pass: each layer's states and attention, delivered layer
by layer, so that not all layers have to be in memory at once. The values are those that
`output_hidden_states` and `output_attentions` would return."""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from clew.base.errors import InputError
from clew.hallucination.llm.device_map import is_spread, model_device
from clew.hallucination.traces.compact import flat, to_float16

_ATTENTION_NAME = re.compile(r"(^|\.)(self_attn|attn|attention|self_attention)$")


class Listener(Protocol):
    """Receives the outputs of a pass; layers are numbered from 0."""

    def on_hidden(self, layer: int, states: Float[Tensor, "batch tokens dim"]) -> None: ...

    def on_attention(
        self, layer: int, weights: Float[Tensor, "batch heads tokens columns"]
    ) -> None: ...


class ModelObserver:
    """Finds a model's layers and attention modules, whatever its family."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        self.dim: int = config.hidden_size
        self.heads: int = config.num_attention_heads
        # OPT calls its decoder directly, bypassing `base_model`: hook the module that owns the
        # layers.
        self._stack, self._layers = _find_layers(model.base_model, self.layers)
        self._attention = [_find_attention(layer) for layer in self._layers]
        # Layers of a spread model may be on other devices than the record.
        self._home = model_device(model) if is_spread(model) else None

    @contextmanager
    def listen(self, listener: Listener, *, attention: bool = True) -> Iterator[None]:
        """While open, `listener` receives every pass of the model; without `attention`, only the
        states."""
        handles = []
        for index, layer in enumerate(self._layers[:-1]):
            handles.append(layer.register_forward_hook(_hidden_hook(listener, index, self._home)))
        # The last entry of `hidden_states` is the output of the stack, after its final norm.
        last = self.layers - 1
        handles.append(self._stack.register_forward_hook(_hidden_hook(listener, last, self._home)))
        for index, module in enumerate(self._attention if attention else ()):
            hook = _attention_hook(listener, index, self.heads, self._home)
            handles.append(module.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _hidden_hook(listener: Listener, layer: int, home: torch.device | None) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        listener.on_hidden(layer, states if home is None else states.to(home))

    return hook


def _attention_hook(listener: Listener, layer: int, heads: int, home: torch.device | None) -> Any:
    def hook(module: nn.Module, _args: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple | list) else (output,)
        for part in parts:
            if isinstance(part, Tensor) and part.dim() == 4 and part.shape[1] == heads:
                listener.on_attention(layer, part if home is None else part.to(home))
                return
        raise InputError(
            f"layer {layer} ({type(module).__name__}) returns no attention weights, so this model "
            f"cannot be captured. clew requires a decoder with softmax attention in every layer, "
            f'loaded with attn_implementation="eager" (load_model does that).'
        )

    return hook


def _find_layers(base: nn.Module, count: int) -> tuple[nn.Module, nn.ModuleList]:
    """The module that runs the layers, and the list of them."""
    for owner in base.modules():
        for child in owner.children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return owner, child
    raise InputError(
        f"no list of {count} layers was found in {type(base).__name__}: clew supports "
        "decoder-only models with all layers in one list (Llama, Qwen, Gemma, GPT-2, ...)."
    )


def _find_attention(layer: nn.Module) -> nn.Module:
    for name, module in layer.named_modules():
        if _ATTENTION_NAME.search(name):
            return module
    raise InputError(
        f"a layer of type {type(layer).__name__} has no attention module: models that mix "
        "attention with other kinds of layers (Mamba, linear attention) are not supported yet."
    )


@torch.inference_mode()
def listen_to_whole(
    model: PreTrainedModel,
    observer: ModelObserver,
    sequences: Sequence[Sequence[int]],
    listener: Listener,
) -> None:
    """One pass over whole sequences, padded on the right, without a cache.

    On the right, padding comes after every real token, so no real token can see it.
    """
    width, device = max(len(sequence) for sequence in sequences), model_device(model)
    ids = torch.tensor([[*s, *[0] * (width - len(s))] for s in sequences], device=device)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    slots = torch.arange(width, device=device)
    used = slots < lengths[:, None]
    extra = accepted_arguments(model)(slots.expand(len(sequences), -1), 1)
    with observer.listen(listener):
        model(input_ids=ids, attention_mask=used.long(), use_cache=False, **extra)


def accepted_arguments(model: PreTrainedModel) -> Any:
    """A function that keeps only the arguments that the model accepts: some families reject
    `position_ids` or `logits_to_keep`."""
    names = inspect.signature(model.forward).parameters
    takes_positions = "position_ids" in names
    takes_keep = "logits_to_keep" in names

    def extra(positions: Tensor, keep: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if takes_positions:
            arguments["position_ids"] = positions
        if takes_keep:
            arguments["logits_to_keep"] = keep
        return arguments

    return extra


class FullRecord:
    """A listener that moves each layer to the host as it arrives, without padding."""

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype) -> None:
        self.lengths = lengths
        self.dtype = dtype
        self.hidden: list[list[Tensor]] = [[] for _ in lengths]
        self.attention: list[list[Tensor]] = [[] for _ in lengths]

    def on_hidden(self, _layer: int, states: Float[Tensor, "batch tokens dim"]) -> None:
        host = self._to_host(states)
        for row, length in enumerate(self.lengths):
            self.hidden[row].append(host[row, :length])

    def on_attention(
        self, _layer: int, weights: Float[Tensor, "batch heads tokens columns"]
    ) -> None:
        host = self._to_host(weights)
        for row, length in enumerate(self.lengths):
            self.attention[row].append(host[row, :, :length, :length])

    def hidden_states(self, row: int) -> Float[Tensor, "layers tokens dim"]:
        return torch.stack(self.hidden[row])

    def attentions(self, row: int) -> Float[Tensor, "layers heads tokens tokens"]:
        return torch.stack(self.attention[row])

    def _to_host(self, values: Tensor) -> Tensor:
        values = to_float16(values) if self.dtype == torch.float16 else values.to(self.dtype)
        return values.cpu()


def record_fully(
    model: PreTrainedModel,
    observer: ModelObserver,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float16,
) -> FullRecord:
    """All states and attention maps of some sequences, on the host."""
    record = FullRecord([len(sequence) for sequence in sequences], dtype)
    listen_to_whole(model, observer, sequences, record)
    return record


def full_columns(record: FullRecord) -> dict[str, np.ndarray]:
    """All states and attention maps of a few traces, concatenated."""
    rows = range(len(record.lengths))
    return {
        "hidden_states": np.concatenate([flat(record.hidden_states(row)) for row in rows]),
        "attentions": np.concatenate([flat(record.attentions(row)) for row in rows]),
    }
