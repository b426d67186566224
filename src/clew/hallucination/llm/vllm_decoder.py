"""Whole batches of answers with their record by vLLM: they are generated, cut as clew's own engine
cuts them, and then read once more, which is when the states of their tokens are recorded."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from typing import Any

import torch
from safetensors.torch import load, save

from clew.base.errors import ClewError
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.embedded import EMBEDDED_NAME, embedded_model_folder
from clew.hallucination.llm.prompts import StopReason
from clew.hallucination.llm.recording import Recording, reduce_rows
from clew.hallucination.llm.requests import Finished
from clew.hallucination.llm.vllm_states import BORDER, StateRecorder
from clew.hallucination.traces.compact import STATES, Basis, Reduced
from clew.hallucination.traces.schema import TraceShape

_WORKER = "clew.vllm.StatesWorker"
_MOST_ROWS = 256


class VllmDecoder(Decoder):
    """The same answers and records as those of a `Decoder`, without attention. vLLM is started with
    the first batch; `loaded` is only described."""

    def answer(self, prompts: Sequence[Sequence[int]]) -> tuple[list[Finished], Reduced]:
        end, most = self.answer_end, self.max_new_tokens
        # One more shows whether the answer ends there.
        found = [end.cut(tokens) for tokens in self._generate(prompts, most + 1)]
        cut = [(t, reason) if len(t) <= most else (t[:most], "length") for t, reason in found]
        return self.read(prompts, cut)

    def read(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[tuple[Sequence[int], StopReason]]
    ) -> tuple[list[Finished], Reduced]:
        borders = [len(prompt) for prompt in prompts]
        whole = [[*p, *tokens] for p, (tokens, _) in zip(prompts, answers, strict=True)]
        names = [one.request_id for one in self._pass(whole, 1, borders)]
        tensors = load(self._llm.collective_rpc("clew_take", args=(names,))[0])
        numbers = tensors.pop("numbers").tolist()
        finished, start = [], 0
        for tokens, reason in answers:
            some, start = numbers[start : start + len(tokens)], start + len(tokens)
            finished.append(
                Finished(
                    tokens=tuple(tokens),
                    text=self.batch.text_of(tokens),
                    ended=reason,
                    logprobs=tuple(one[0] for one in some),
                    entropies=tuple(one[1] for one in some),
                )
            )
        return finished, Reduced(**tensors)

    def time_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        steps: int = 8,
        clock: Callable[[], float] | None = None,
    ) -> tuple[float, float]:
        now = clock or self._now
        started = now()
        self._generate(prompts, 1)
        middle = now()
        self._generate(prompts, 1 + steps, ignore_eos=True)
        of_prompts = middle - started
        return of_prompts, max(0.0, now() - middle - of_prompts) / steps

    def close(self) -> None:
        if "_llm" in self.__dict__:
            self._llm.llm_engine.engine_core.shutdown()
            del self.__dict__["_llm"]

    def _generate(
        self, prompts: Sequence[Sequence[int]], most: int, *, ignore_eos: bool = False
    ) -> list[list[int]]:
        """The tokens of greedy answers, the one that ends them included."""
        found = self._pass(prompts, most, ignore_eos=ignore_eos)
        return [list(one.outputs[0].token_ids) for one in found]

    def _pass(
        self,
        prompts: Sequence[Sequence[int]],
        most: int,
        borders: Sequence[int] = (),
        *,
        ignore_eos: bool = False,
    ) -> list[Any]:
        from vllm import SamplingParams

        extra: list[dict[str, int]] = [{BORDER: one} for one in borders] or [{}] * len(prompts)
        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=most,
                ignore_eos=ignore_eos,
                detokenize=False,
                extra_args=one,
            )
            for one in extra
        ]
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        found: list[Any] = self._llm.generate(given, sampling, use_tqdm=False)
        return found

    @cached_property
    def _llm(self) -> Any:
        from vllm import LLM

        name, dtype = self._loaded.name, next(self.model.parameters()).dtype
        llm = LLM(
            model=str(embedded_model_folder()) if name == EMBEDDED_NAME else name,
            dtype=str(dtype).removeprefix("torch."),
            enforce_eager=True,
            enable_prefix_caching=False,  # the states of all tokens are recorded
            max_num_seqs=min(self._max_rows, _MOST_ROWS),
            worker_extension_cls=_WORKER,
            disable_log_stats=True,
        )
        assert self.basis is not None
        basis = save({"mean": self.basis.mean, "components": self.basis.components})
        problems = llm.collective_rpc("clew_record", args=(asdict(self.shape), basis))
        for problem in filter(None, problems):
            raise ClewError(problem)
        return llm


class StatesWorker:
    """What vLLM adds to its worker (`worker_extension_cls`): it records answers that are read."""

    model_runner: Any

    def clew_record(self, shape: dict[str, Any], basis: bytes) -> str:
        """Start to record. Returns why that is not possible, or ""."""
        sizes = TraceShape(**{**shape, "without_attention": tuple(shape["without_attention"])})
        recording = Recording(shape=sizes, basis=Basis(**load(basis)), columns=STATES)
        try:
            self.model_runner.clew_recorder = StateRecorder(
                self.model_runner, recording, reads=True
            )
        except ClewError as error:
            return str(error)
        return ""

    @torch.inference_mode()
    def clew_take(self, names: Sequence[str]) -> bytes:
        """The record of requests, reduced, and log-probability and entropy of their tokens."""
        found = [self.model_runner.clew_recorder.take(name) for name in names]
        problems = [one.problem for one in found if one.copy is None]
        if problems:
            raise RuntimeError(problems[0])
        reduced = reduce_rows([one.copy for one in found if one.copy is not None])
        tensors = {one.name: getattr(reduced, one.name) for one in fields(Reduced)}
        pairs = [pair for one in found for pair in zip(one.logprobs, one.entropies, strict=True)]
        tensors["numbers"] = torch.tensor(pairs).reshape(-1, 2)
        return save({name: values.cpu().contiguous() for name, values in tensors.items()})
