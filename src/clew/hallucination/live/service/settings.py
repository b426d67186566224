"""The settings of the service."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import InputError
from clew.base.settings import check_numbers, check_positive

PromptSource = Literal["detector", "messages"]


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """`model_name` is the model's name in the API (None: its own). `prompt` "detector" puts a
    conversation of one user message in the detector's prompt and cuts its answer as the training
    answers were; "messages" sends every conversation to the model as it is.

    A request may have at most `max_prompt_tokens` (None: the model's context) and generate
    `max_tokens` per answer, for `max_choices` answers, within `request_seconds`; a request to score
    may have `max_items`. After the signal to end, requests get `drain_seconds`. Prompts and answers
    are logged only if `log_requests`."""

    model_name: str | None = None
    prompt: PromptSource = "detector"
    max_prompt_tokens: int | None = None
    max_tokens: int = 1024
    max_choices: int = 16
    max_items: int = 256
    request_seconds: float = 300.0
    drain_seconds: float = 20.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "max_tokens", "max_choices", "max_items")
        if self.max_prompt_tokens is not None:
            check_positive(self, "max_prompt_tokens")
        if not 0 < self.request_seconds < math.inf:
            raise InputError(
                "give a number of seconds above 0.",
                setting="request_seconds",
                value=self.request_seconds,
            )
        if not 0 <= self.drain_seconds < math.inf:
            raise InputError(
                "give a number of seconds, 0 or more.",
                setting="drain_seconds",
                value=self.drain_seconds,
            )

    def name_of(self, model: Mapping[str, Any]) -> str:
        """The name of a model in the API. That of a folder on this machine is only its last part:
        clients learn nothing of the others."""
        name = self.model_name or str(model["id"])
        return Path(name).name if self.model_name is None and Path(name).exists() else name
