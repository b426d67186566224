"""The settings of a capture, validated once, and its result. Loads no PyTorch: whoever only hands a
capture to others does not need it."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from clew.base.errors import InputError
from clew.base.settings import check_numbers, check_positive, check_weight
from clew.hallucination.llm.embedded import EMBEDDED_NAME, DeviceMap, Engine, Quantize
from clew.hallucination.llm.prompts import Cut, check_template
from clew.hallucination.questions.given import Answers
from clew.hallucination.traces.loader import DEFAULT_TRACES_DIR
from clew.hallucination.traces.schema import GIVEN, Keep
from clew.storage.lock import Part


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How the model answers, and how many additional answers are drawn as text."""

    max_new_tokens: int = 32
    num_beams: int = 1
    cut: Cut = "sentence"
    draws: int = 0
    draw_temperature: float = 1.0

    def describe(self) -> dict[str, Any]:
        """The settings as recorded in the manifest; those of sampled answers only if used."""
        names = ["max_new_tokens", "num_beams", "cut"]
        described = {name: getattr(self, name) for name in names}
        if self.draws:  # existing stores use these earlier names
            described |= {"samples": self.draws, "sample_temperature": self.draw_temperature}
        return described


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(Generation):
    """The settings of `clew extract`; the command's options have the same names."""

    model: str = EMBEDDED_NAME
    questions: str = "facts"
    answers: Answers | None = None
    out: Path = Path(DEFAULT_TRACES_DIR)
    num_samples: int | None = None
    shard_size: int = 500
    generation_batch: int | None = None
    prompt: str | None = None
    chat: bool | None = None
    suit_answers: bool = False  # choose `cut` by what the accepted answers look like
    keep: Keep = "compact"
    state_bits: int = 16
    node_dim: int = 64
    edges_per_token: int = 16
    basis: Path | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantize: Quantize | None = None
    device_map: DeviceMap | None = None
    offload_folder: Path | None = None
    engine: Engine = "clew"
    self_evaluation: bool = False
    entailment: bool = False
    part: Part = field(default_factory=Part)
    join: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        self._refuse_generation()
        self._refuse_for_vllm()
        check_numbers(self)
        check_positive(
            self, "shard_size", "max_new_tokens", "num_beams", "node_dim", "edges_per_token"
        )
        given = ("num_samples", "generation_batch", "threads")
        check_positive(self, *(name for name in given if getattr(self, name) is not None))
        check_weight(self, "draws")
        if not 0 < self.draw_temperature < math.inf:
            raise InputError(
                "it must be greater than 0; 1 samples from the model's own distribution.",
                setting="draw_temperature",
                value=self.draw_temperature,
            )
        if self.entailment and self.draws < 2:
            raise InputError(
                f"it compares drawn answers, but `draws` is {self.draws}: draw 2 or more.",
                setting="entailment",
                value=self.entailment,
            )
        if self.prompt is not None:
            check_template(self.prompt)
        choices = {"cut": get_args(Cut), "keep": get_args(Keep)}
        if self.answers is not None:
            choices["answers"] = get_args(Answers)
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"choose from: {', '.join(known)}.", setting=name, value=value)
        if self.state_bits not in (8, 16):
            raise InputError("choose 8 or 16.", setting="state_bits", value=self.state_bits)
        if self.keep == "full" and self.state_bits == 8:
            raise InputError(
                'with `keep="full"`, every state is stored as it is: omit it.',
                setting="state_bits",
                value=self.state_bits,
            )
        if self.join and self.part.count > 1:
            raise InputError(
                "a process that joins takes any pending shard: omit `part`.",
                setting="part",
                value=str(self.part),
            )

    @property
    def is_given(self) -> bool:
        return self.answers == GIVEN

    @property
    def new_tokens(self) -> int:
        """The most tokens that are generated for an answer."""
        return 0 if self.is_given else self.max_new_tokens

    def _refuse_for_vllm(self) -> None:
        names = ("num_beams", "draws", "self_evaluation", "entailment", "keep", "quantize")
        usual = {one.name: one.default for one in fields(self)}
        for name in (*names, "device_map") if self.engine == "vllm" else ():
            if (value := getattr(self, name)) != usual[name]:
                raise InputError(
                    'vLLM gives states of greedy answers only: omit it, or use `engine="clew"`.',
                    setting=name,
                    value=value,
                )

    def _refuse_generation(self) -> None:
        """Raises InputError if answers are given, and a setting is about generating some."""
        if not self.is_given:
            return
        generating = ("entailment", *(one.name for one in fields(Generation)))
        for one in fields(self):
            if one.name in generating and (value := getattr(self, one.name)) != one.default:
                raise InputError(
                    "it is about generating answers, and yours are only read: omit it, or use "
                    '`answers="generate"`.',
                    setting=one.name,
                    value=value,
                )


@dataclass(frozen=True, kw_only=True)
class ExtractResult:
    """The result of a run. `finished` says whether this part of the store is complete."""

    store: Path
    finished: bool
    traces_made: int
    traces_stored: int
    skipped: int
