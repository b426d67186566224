"""States of requests that vLLM runs, recorded in its own passes by hooks on the model's layers.
vLLM calls what is here; nothing here imports it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.hallucination.llm.decoder import score_tokens
from clew.hallucination.llm.generation import split_rows
from clew.hallucination.llm.packing import Segment
from clew.hallucination.llm.recording import Recording, RowCopy, RowRecord

logger = logging.getLogger(__name__)
# In the `extra_args` of a request: how many tokens of its prompt come before the given answer.
BORDER = "clew_prompt"
_TOKENS_STEP = 256
_FIRST_ROWS = 32
# Finished requests that are kept until they are asked for, beside those that run.
_KEPT = 512
_LEAST = -1e4
_AGAIN = "vLLM preempted the answer, and did not pass all of it again"
_UNKNOWN = "vLLM has no record of the answer: it was not asked for in time, or never ran"


@dataclass(kw_only=True)
class _Tracked:
    """A request: its row, the length of its prompt, and how many of its tokens have passed."""

    row: int
    prompt: int
    passed: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The tokens of a pass that are recorded: the `chosen` of all, None for all of them. One that
    `decodes` has one token of each answer, and nothing of prompts."""

    decodes: bool
    requests: list[_Tracked]
    chosen: Int[Tensor, " tokens"] | None
    rows: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    last: Int[Tensor, " segments"]
    has_kernels: bool = False
    segments: tuple[Segment, ...] = ()

    def choose(self, states: Float[Tensor, "all dim"]) -> Float[Tensor, "tokens dim"]:
        if self.chosen is not None:
            return states[self.chosen]
        count = self.rows.shape[0]
        return states if states.shape[0] == count else states[:count]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What was recorded of a request; `problem` says why there is no `copy`."""

    tokens: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    copy: RowCopy | None = None
    problem: str | None = None


class StateRecorder:
    """Records what a detector or a capture needs of every request of vLLM's model `runner`. It
    `reads` answers that are given with their prompts; otherwise it records generated ones. Tokens
    in `ends` are not part of an answer. With `layers`, only their states are recorded, and zeros of
    the others. Belongs to the thread of the runner."""

    def __init__(
        self,
        runner: Any,
        recording: Recording,
        *,
        reads: bool = False,
        entropies: bool = True,
        ends: Sequence[int] = (),
        layers: Sequence[int] | None = None,
    ) -> None:
        self._count = recording.shape.layers
        refuse_unusable(runner, self._count, recording.shape.dim)
        self._chosen = tuple(range(self._count)) if layers is None else tuple(layers)
        recording = recording.of_layers(self._chosen)
        self._runner, self._reads, self._entropies = runner, reads, entropies
        self._model: nn.Module = runner.get_model()
        self._dtype = next(p.dtype for p in self._model.parameters() if p.is_floating_point())
        self._device = runner.device
        self._record = RowRecord(recording, self._device, self._dtype)
        self._has_nodes = "nodes" in recording.columns
        self._keeps_all = self._has_nodes and reads
        self._ends = torch.tensor(sorted(ends), device=self._device)
        self._requests: dict[str, _Tracked] = {}
        self._free: list[int] = []
        # Of every token: its id, log-probability and entropy.
        self._numbers = torch.zeros(0, 0, 3, device=self._device)
        self._failure: str | None = None
        self._step: _Step | None = None
        # Of the pass, by token and layer, as a whole and as its layers. A record takes whole rows.
        self._states = torch.zeros(0, len(self._chosen), recording.shape.dim)
        self._layers: tuple[Tensor, ...] = ()
        self._room = torch.empty(0, 0)  # for log-probabilities
        self._layer = 0
        self._next: tuple[dict[int, int], Tensor, Tensor] | None = None
        self._handles = self._hook()

    def _hook(self) -> list[Any]:
        layers = find_layers(self._model, self._count)
        handles = [self._model.register_forward_pre_hook(self._safely(self._start))]
        hook = self._safely(self._on_layer)
        # The last entry of the states is the output of the stack, after its final norm.
        inside = [number for number in self._chosen if number < self._count - 1]
        handles += [layers[number].register_forward_hook(hook) for number in inside]
        handles.append(self._model.register_forward_hook(self._safely(self._finish)))
        if not self._reads:
            logits = find_logits(self._model)
            handles.append(logits.register_forward_hook(self._safely(self._on_logits)))
        return handles

    def _safely(self, hook: Callable[..., None]) -> Callable[..., None]:
        """What goes wrong here must not end vLLM: answers are not checked from then on."""

        def run(*given: Any) -> None:
            if self._failure is None:
                try:
                    hook(*given)
                except Exception as error:
                    self._failure = f"recording its states failed ({type(error).__name__})"
                    logger.exception("recording states in vLLM failed")

        return run

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self, name: str) -> Recorded:
        """What was recorded of a request, by vLLM's name for it or the one it was given; it is
        then forgotten."""
        found = [one for one in self._requests if one == name or one.rpartition("-")[0] == name]
        if not found or self._failure:
            return Recorded(problem=self._failure or _UNKNOWN)
        tracked = self._requests.pop(found[0])
        self._free.append(tracked.row)
        if tracked.problem:
            return Recorded(problem=tracked.problem)
        numbers = self._numbers[tracked.row, : tracked.passed].tolist()
        ids, ends = [int(one[0]) for one in numbers], {*self._ends.tolist()}
        after = range(tracked.prompt, tracked.passed)
        length = next((place for place in after if ids[place] in ends), tracked.passed)
        answer = numbers[tracked.prompt : length]
        copy = self._record.copy(tracked.row, length, length - tracked.prompt)
        return Recorded(
            tokens=tuple(ids[tracked.prompt : length]),
            prompt=tuple(ids[: tracked.prompt]),
            logprobs=tuple(one[1] for one in answer),
            entropies=tuple(one[2] for one in answer),
            copy=copy if self._has_all else copy.spread(self._chosen, self._count),
        )

    @property
    def _has_all(self) -> bool:
        return len(self._chosen) == self._count

    def _start(self, *_: Any) -> None:
        """Before a pass: which of its tokens belong to which request."""
        self._step, self._layer = None, 0
        batch, count = self._runner.input_batch, self._runner.input_batch.num_reqs
        if not count or (self._reads and not self._is_read(batch.req_ids[0])):
            return
        borders = self._runner.query_start_loc.np[: count + 1].astype(np.int64)
        starts = batch.num_computed_tokens_cpu[:count].astype(np.int64)
        counts = np.diff(borders)
        segments = zip(batch.req_ids[:count], starts.tolist(), counts.tolist(), strict=True)
        requests = [self._follow(number, *one) for number, one in enumerate(segments)]
        rows = np.repeat([one.row for one in requests], counts)
        positions = np.arange(borders[-1]) - np.repeat(borders[:-1] - starts, counts)
        self._note_tokens(rows, positions, requests, borders)
        self._step = self._plan(rows, positions, requests, borders)
        self._make_room(self._step.rows.shape[0])

    def _make_room(self, count: int) -> None:
        """For the states of so many tokens: usually of as many as in the pass before."""
        if self._states.shape[0] != count:
            self._states = torch.empty(
                count, *self._states.shape[1:], dtype=self._dtype, device=self._device
            )
            self._layers = self._states.unbind(1)

    def _plan(
        self,
        rows: np.ndarray,
        positions: np.ndarray,
        requests: list[_Tracked],
        borders: np.ndarray,
    ) -> _Step:
        places, last = None, borders[1:] - 1
        is_answer = positions >= np.repeat([one.prompt for one in requests], np.diff(borders))
        decodes = len(rows) == len(requests) and bool(is_answer.all())
        if not self._keeps_all and len(rows) > len(requests):
            # Of a prompt, only the last token.
            needed = is_answer
            needed[last] = True
            places = needed.nonzero()[0]
            rows, positions = rows[places], positions[places]
            last = np.searchsorted(places, last)
        return _Step(
            decodes=decodes and not self._has_nodes,
            requests=requests,
            chosen=None if places is None else self._tensor(places),
            rows=self._tensor(rows),
            positions=self._tensor(positions),
            last=self._tensor(last),
        )

    def _follow(self, number: int, name: str, start: int, count: int) -> _Tracked:
        """The request of a segment, whose tokens so far have all been seen."""
        tracked = self._requests.get(name)
        if tracked is None:
            tracked = self._requests[name] = self._admit(name, number)
        if start != tracked.passed or not start:
            # Its beginning was cached, or it is computed again.
            tracked.problem = None if start < tracked.prompt else _AGAIN
            self._record.start(tracked.row, tracked.prompt)
        tracked.passed = start + count
        self._reserve(len(self._numbers), tracked.passed + 1)
        return tracked

    def _admit(self, name: str, number: int) -> _Tracked:
        if len(self._requests) >= self._runner.max_num_reqs + _KEPT:
            running = self._runner.requests
            old = next(one for one in self._requests if one not in running)
            self._free.append(self._requests.pop(old).row)
        if not self._free:
            rows = len(self._numbers)
            self._reserve(max(_FIRST_ROWS, 2 * rows), 1)
            self._free = [*range(rows, len(self._numbers))]
        prompt = int(self._runner.input_batch.num_prompt_tokens[number])
        return _Tracked(row=self._free.pop(), prompt=self._extra(name).get(BORDER, prompt))

    def _extra(self, name: str) -> dict[str, Any]:
        sampling = self._runner.requests[name].sampling_params
        return getattr(sampling, "extra_args", None) or {}

    def _is_read(self, name: str) -> bool:
        """Answers are read by themselves, not while others are generated."""
        return BORDER in self._extra(name)

    def _reserve(self, rows: int, tokens: int) -> None:
        old_rows, old_tokens = self._numbers.shape[:2]
        if rows <= old_rows and tokens <= old_tokens:
            return
        tokens = max(-(-tokens // _TOKENS_STEP) * _TOKENS_STEP, old_tokens)
        numbers = self._numbers.new_zeros(rows, tokens, 3)
        numbers[:old_rows, :old_tokens] = self._numbers
        self._numbers = numbers
        self._record.prepare_resize(rows, tokens)()

    def _note_tokens(
        self,
        rows: np.ndarray,
        positions: np.ndarray,
        requests: list[_Tracked],
        borders: np.ndarray,
    ) -> None:
        """The ids of the tokens, and of generated ones what the logits before them say."""
        ids = self._runner.input_ids.gpu[: len(rows)]
        self._numbers[self._tensor(rows), self._tensor(positions), 0] = ids.float()
        if self._reads:
            return
        before, logprobs, entropies = self._next or ({}, self._numbers, self._numbers)
        known = []
        for one, border in zip(requests, borders[:-1].tolist(), strict=True):
            place = int(positions[border])
            if place >= one.prompt and one.row in before:
                known.append((one.row, place, before[one.row], border))
            elif place >= one.prompt:
                one.problem = _AGAIN
        if known:
            row, at, line, border = self._tensor(np.array(known)).T
            self._numbers[row, at, 1] = logprobs[line, ids[border].long()]
            if self._entropies:
                self._numbers[row, at, 2] = entropies[line]

    def _on_layer(self, _module: nn.Module, _input: Any, output: Any) -> None:
        step = self._step
        if step is None:
            return
        first, *rest = output if isinstance(output, tuple | list) else (output,)
        kept, self._layer = self._layers[self._layer], self._layer + 1
        states = step.choose(_flat(first))
        if rest and isinstance(rest[0], Tensor) and rest[0].shape == first.shape:
            # The residual is added in the next layer, whose kernels may write into both.
            torch.add(states, step.choose(_flat(rest[0])), out=kept)
        else:
            kept.copy_(states)

    def _finish(self, _module: nn.Module, _input: Any, output: Any) -> None:
        step = self._step
        if step is None:
            return
        hidden = _flat(output[0] if isinstance(output, tuple | list) else output)
        if self._count - 1 in self._chosen:
            self._layers[-1].copy_(step.choose(hidden))
        states, alive = self._states, None
        if len(self._ends):
            ids = self._numbers[step.rows, step.positions, 0].long()
            alive = ~torch.isin(ids, self._ends)
        if step.decodes:
            self._record.add_step(step.rows, states, alive)
        else:
            self._record.add_states(step, states.transpose(0, 1), alive)
        if self._reads:
            self._score(hidden, step)

    @torch.inference_mode()
    def _score(self, hidden: Tensor, step: _Step) -> None:
        """Log-probability and entropy of the tokens of given answers."""
        batch, borders = self._runner.input_batch, self._runner.query_start_loc.np
        for number, one in enumerate(step.requests):
            start = int(batch.num_computed_tokens_cpu[number])
            known = int(batch.num_prompt_tokens[number])
            places = range(max(start, one.prompt - 1), min(one.passed, known - 1))
            if places:
                offset = int(borders[number]) - start
                logits = self._model.compute_logits(  # type: ignore[operator]
                    hidden[places.start + offset : places.stop + offset]
                )
                tokens = batch.token_ids_cpu[number, places.start + 1 : places.stop + 1].tolist()
                found = torch.tensor(score_tokens(logits, tokens), device=self._device)
                self._numbers[one.row, places.start + 1 : places.stop + 1, 1:] = found.T

    def _on_logits(self, _module: nn.Module, _input: Any, logits: Tensor | None) -> None:
        if logits is None or self._step is None or len(logits) != len(self._step.requests):
            return
        if len(self._room) < len(logits) or self._room.shape[1] != logits.shape[1]:
            self._room = torch.empty(*logits.shape, device=logits.device)
        # The next step reads them before they are written again: new memory would take longer.
        logprobs = self._room[: len(logits)]
        parts = zip(split_rows(logits), split_rows(logprobs), strict=True)
        entropies = torch.cat([self._find_entropies(*part) for part in parts])
        places = {one.row: place for place, one in enumerate(self._step.requests)}
        self._next = places, logprobs, entropies

    def _find_entropies(
        self, logits: Float[Tensor, "rows vocabulary"], logprobs: Float[Tensor, "rows vocabulary"]
    ) -> Float[Tensor, " rows"]:
        """If they are asked for; `logprobs` are filled."""
        torch.log_softmax(logits.float(), -1, out=logprobs)
        # Of a token that cannot come, 0 times minus infinity is 0.
        logprobs.clamp_(min=_LEAST)
        if not self._entropies:
            return logprobs[:, 0]
        return -torch.linalg.vecdot(logprobs.exp(), logprobs)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _flat(states: Tensor) -> Float[Tensor, "tokens dim"]:
    return states if states.dim() == 2 else states.view(-1, states.shape[-1])


def find_layers(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """The decoder layers of one of vLLM's models; one that also reads images names its part."""
    inner: nn.Module = getattr(model, "get_language_model", lambda: model)()
    lists = [one for one in inner.modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    if not lists:
        raise _unknown(model, f"list of {count} layers")
    return [*lists[0]]


def find_logits(model: nn.Module) -> nn.Module:
    """The module of one of vLLM's models that returns the logits."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "logits_processor":
            return module
    raise _unknown(model, "logits_processor")


def _unknown(model: nn.Module, what: str) -> InputError:
    return InputError(f"vLLM's {type(model).__name__} has no {what}: use clew's own engine.")


def refuse_unusable(runner: Any, layers: int, dim: int) -> None:
    """Raise InputError for a model or a mode of vLLM whose states cannot be recorded."""
    config, needed = runner.vllm_config, ("input_batch", "query_start_loc", "input_ids", "requests")
    text = runner.model_config.hf_text_config
    problems = {
        "its model runner is not known: set VLLM_USE_V2_MODEL_RUNNER=0": not all(
            hasattr(runner, name) for name in needed
        ),
        "compiled passes call no hooks: use enforce_eager": not runner.model_config.enforce_eager,
        "speculative decoding passes tokens that no answer has: turn it off": (
            config.speculative_config is not None
        ),
        "the layers are spread by pipeline parallelism": (
            config.parallel_config.pipeline_parallel_size > 1
        ),
        f"its model has {text.num_hidden_layers} layers of {text.hidden_size} numbers, not "
        f"{layers} of {dim}": (text.num_hidden_layers, text.hidden_size) != (layers, dim),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise InputError(f"vLLM's states cannot be recorded: {problem}.")


def find_ends(runner: Any) -> list[int]:
    """The tokens that end an answer, as the model declares them."""
    config: Mapping[str, Any] = runner.model_config.try_get_generation_config() or {}
    given = config.get("eos_token_id", getattr(runner.model_config.hf_config, "eos_token_id", None))
    return [] if given is None else given if isinstance(given, list) else [given]
