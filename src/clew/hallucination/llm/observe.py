"""Observe a causal language model during a pass: each layer's states and attention, delivered layer
by layer, so that not all layers have to be in memory at once. The values are those that
`output_hidden_states` and `output_attentions` would return."""

import inspect
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from clew.base.errors import InputError
from clew.hallucination.llm.device_map import is_spread, model_device
from clew.hallucination.traces.compact import flat, to_float16

# Not a usual size of anything else: attention weights are known by it.
_TRIAL_TOKENS = 7


class Listener(Protocol):
    """Receives the outputs of a pass; layers are numbered from 0."""

    def on_hidden(self, layer: int, states: Float[Tensor, "batch tokens dim"]) -> None: ...

    def on_attention(
        self, layer: int, weights: Float[Tensor, "batch heads tokens columns"]
    ) -> None: ...


class ModelObserver:
    """Finds a model's layers, and in those that have it their attention, whatever its family. Each
    entry of `kinds` names a layer's kind; `without_attention` are the layers that return no
    attention weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        found = _look_up(model)
        # OPT calls its decoder directly, bypassing `base_model`: hook the module that owns the
        # layers.
        self._stack, self._layers, self._attention = found.stack, found.layers, found.attention
        self.layers, self.dim, self.heads = len(found.layers), found.dim, found.heads
        self.kinds, self.without_attention = found.kinds, found.without_attention
        self.streams = found.streams
        # Layers of a spread model may be on other devices than the record.
        self._home = model_device(model) if is_spread(model) else None
        self._listening = _Listening()

    @property
    def attention_layers(self) -> int:
        """How many layers return attention weights."""
        return self.layers - len(self.without_attention)

    @contextmanager
    def listen(self, listener: Listener, *, attention: bool = True) -> Iterator[None]:
        """While open, `listener` receives every pass of the model; without `attention`, only the
        states."""
        with _hooks() as handles:
            if attention:
                handles += self._hook_attention(listener)
            self._hook_states()
            before, self._listening.listener = self._listening.listener, listener
            try:
                yield
            finally:
                self._listening.listener = before

    def _hook_states(self) -> None:
        """Once for all passes, as long as this object lives: it takes longer than what the hooks
        do."""
        if self._listening.is_hooked:
            return
        self._listening.is_hooked = True
        # The last entry of `hidden_states` is the output of the stack, after its final norm.
        modules = [*self._layers[:-1], self._stack]
        handles = [
            module.register_forward_hook(
                _hidden_hook(self._listening, index, self.dim, self.streams, self._home)
            )
            for index, module in enumerate(modules)
        ]
        weakref.finalize(self, _remove, handles)

    def _hook_attention(self, listener: Listener) -> Iterator[Any]:
        """Layers may share a module: whose turn it is tells which of them it attends for."""
        turn = [0]
        for index in self._attention:
            yield self._layers[index].register_forward_pre_hook(
                lambda *_, index=index: turn.__setitem__(0, index)
            )
        for module in {id(module): module for module in self._attention.values()}.values():
            yield module.register_forward_hook(_attention_hook(listener, turn, self))

    def weights_of(self, output: Any) -> Float[Tensor, "batch heads tokens columns"] | None:
        """The attention weights in what a module returned, for all heads of the widest layer."""
        for part in output if isinstance(output, tuple | list) else (output,):
            if isinstance(part, Tensor) and part.dim() == 4:
                weights = nn.functional.pad(part, (0, 0, 0, 0, 0, self.heads - part.shape[1]))
                return weights if self._home is None else weights.to(self._home)
        return None


@dataclass(kw_only=True)
class _Listening:
    """Who receives the states of a pass, if anybody. The hooks know this, not the observer."""

    listener: Listener | None = None
    is_hooked: bool = False


@contextmanager
def _hooks() -> Iterator[list[Any]]:
    """A list of hooks, removed at the end."""
    handles: list[Any] = []
    try:
        yield handles
    finally:
        _remove(handles)


def _remove(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a trial pass shows of a model; `attention` by layer. `streams` is the dimension of a
    layer's output that has several states of a token, if any."""

    stack: nn.Module
    layers: Sequence[nn.Module]
    attention: dict[int, nn.Module]
    dim: int
    heads: int
    kinds: tuple[str, ...]
    streams: int | None
    takes_positions: bool

    @property
    def without_attention(self) -> tuple[int, ...]:
        return tuple(index for index in range(len(self.layers)) if index not in self.attention)


_found: WeakKeyDictionary[PreTrainedModel, _Found] = WeakKeyDictionary()


def _look_up(model: PreTrainedModel) -> _Found:
    found = _found.get(model) or _find(model)
    _found[model] = found
    return found


def _find(model: PreTrainedModel) -> _Found:
    """Pass a few tokens, and see which layers they pass (those for images pass no text), and which
    module of each returns attention weights first: the innermost."""
    config = model.config.get_text_config(decoder=True)
    runs = _try(model)
    order = [module for module, _ in runs]
    stack, every = _find_layers(model.base_model, config.num_hidden_layers, order)
    names = list(getattr(config, "layer_types", None) or ())
    names = names if len(names) == len(every) else [""] * len(every)
    layers = [layer for layer in every if layer in order]
    ends = [order.index(layer) for layer in layers]
    attention, kinds, heads = dict[int, nn.Module](), list[str](), 0
    for number, (start, end) in enumerate(pairwise([-1, *ends])):
        inside, name = {*layers[number].modules()}, names[list(every).index(layers[number])]
        for module, output in runs[start + 1 : end]:
            weights = _find_weights(output)
            # A compressed column is that of several tokens.
            if weights is not None and module in inside and "compressed" not in name:
                attention.setdefault(number, module)
                heads = max(heads, weights.shape[1])
        kinds.append(name or ("full_attention" if number in attention else config.model_type))
    return _Found(
        stack=stack,
        layers=layers,
        attention=attention,
        dim=config.hidden_size,
        heads=heads,
        kinds=tuple(kinds),
        streams=_find_streams(_states(runs[ends[0]][1])),
        takes_positions=_takes_positions(model),
    )


@torch.inference_mode()
def _try(model: PreTrainedModel) -> list[tuple[nn.Module, Any]]:
    """The modules that a few tokens pass, in the order in which they end, with their outputs."""
    runs: list[tuple[nn.Module, Any]] = []
    tokens = torch.arange(1, _TRIAL_TOKENS + 1, device=model_device(model))[None]
    with _hooks() as handles:
        for module in model.base_model.modules():
            hook = module.register_forward_hook(lambda one, _, output: runs.append((one, output)))
            handles.append(hook)
        model(input_ids=tokens, use_cache=False)
    return runs


def _takes_positions(model: PreTrainedModel) -> bool:
    """Whether it takes positions that count from 0: RoBERTa counts behind its padding token."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    own = "create_position_ids_from_input_ids"
    return not any(hasattr(module, own) for module in model.modules())


def _find_weights(output: Any) -> Tensor | None:
    """Those of every pair of tokens, where no token looks ahead."""
    for part in output if isinstance(output, tuple | list) else ():
        if isinstance(part, Tensor) and part.dim() == 4 and part.is_floating_point():
            size = len(part), *part.shape[2:]
            if size == (1, _TRIAL_TOKENS, _TRIAL_TOKENS) and not bool(part.triu(1).any()):
                return part
    return None


def _find_streams(states: Tensor) -> int | None:
    if states.dim() == 4:
        return 2 if states.shape[:2] == (1, _TRIAL_TOKENS) else 0
    if states.shape[:2] != (1, _TRIAL_TOKENS):
        raise InputError(
            f"a layer returns the shape {list(states.shape)} for {_TRIAL_TOKENS} tokens, which "
            "clew cannot read. Use another model."
        )
    return None


def _states(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _find_layers(
    base: nn.Module, count: int, order: Sequence[nn.Module]
) -> tuple[nn.Module, nn.ModuleList]:
    """The module that runs the layers, and the list of them: of the length that the configuration
    says, or the longest. Raises InputError if there is none that tokens pass once."""
    times = Counter(order)
    lists = [
        (owner, child)
        for owner in base.modules()
        for child in owner.children()
        if isinstance(child, nn.ModuleList) and any(times[layer] for layer in child)
    ]
    lists.sort(key=lambda found: (len(found[1]) == count, len(found[1])), reverse=True)
    for owner, layers in lists[:1]:
        if max(times[layer] for layer in layers) == 1:
            return owner, layers
    raise InputError(
        f"no list of {count} layers was found in {type(base).__name__} that tokens pass once: clew "
        "supports decoder-only models with all layers in one list (Llama, Qwen, Gemma, GPT-2, ...)."
    )


def _hidden_hook(
    now: _Listening, layer: int, dim: int, streams: int | None, home: torch.device | None
) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if (listener := now.listener) is None:
            return
        states = _states(output)
        if streams is not None and states.dim() == 4:
            states = states.mean(streams)
        if states.shape[-1] != dim:  # streams side by side
            states = states.unflatten(-1, (-1, dim)).mean(-2)
        listener.on_hidden(layer, states if home is None else states.to(home))

    return hook


def _attention_hook(listener: Listener, turn: list[int], observer: ModelObserver) -> Any:
    def hook(module: nn.Module, _args: Any, output: Any) -> None:
        weights = observer.weights_of(output)
        if weights is None:
            raise InputError(
                f"layer {turn[0]} ({type(module).__name__}) returns no attention weights: load the "
                'model with attn_implementation="eager" (load_model does that).'
            )
        listener.on_attention(turn[0], weights)

    return hook


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
    `position_ids` or `logits_to_keep`, or count positions in another way."""
    takes_positions = _look_up(model).takes_positions
    takes_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

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
    """All states and attention maps of a few traces, concatenated; no maps without attention."""
    rows = range(len(record.lengths))
    columns = {"hidden_states": np.concatenate([flat(record.hidden_states(row)) for row in rows])}
    if record.attention[0]:
        maps = [flat(record.attentions(row)) for row in rows]
        columns["attentions"] = np.concatenate(maps)
    return columns
