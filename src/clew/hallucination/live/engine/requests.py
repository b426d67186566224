"""What is asked of the engine, and what it delivers."""

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from clew.base.errors import InputError
from clew.hallucination.capture.dialogue import Cut

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from clew.hallucination.live.engine.copies import RowCopy
    from clew.hallucination.traces.compact import Reduced

Ended = Literal["end", "stop", "line", "sentence", "repetition", "length", "canceled"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. `temperature=0` is greedy: the most likely token after the
    penalties; the other settings are then ignored. With a `seed`, the same request
    gives the same answer whatever else is in the batch."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "give 0 (greedy) or more.", self.temperature >= 0)
        _check("top_p", self.top_p, "give a number from 0 to 1.", 0 <= self.top_p <= 1)
        _check("top_k", self.top_k, "give 1 or more.", self.top_k is None or self.top_k >= 1)
        for setting in ("frequency_penalty", "presence_penalty"):
            _check(setting, value := getattr(self, setting), "give a number.", isfinite(value))


def _check(setting: str, value: float | None, advice: str, is_right: bool) -> None:
    if not is_right or value == inf:
        raise InputError(advice, setting=setting, value=value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One answer to generate after the `prompt` (token ids). It ends at the model's end token, at
    one of the texts in `stop` (excluded from the answer), where `cut` says, or after
    `max_new_tokens`. `top_logprobs`: how many alternatives to report per token. Only a request
    that `is_scored` is recorded."""

    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    cut: Cut = "none"
    top_logprobs: int = 0
    is_scored: bool = True

    def __post_init__(self) -> None:
        least = self.max_new_tokens
        _check("max_new_tokens", least, "give 1 or more.", least >= 1)
        _check("top_logprobs", self.top_logprobs, "give 0 or more.", self.top_logprobs >= 0)


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token of the answer, delivered once it has passed through the model. `nodes` are its
    projected states in the layers that were asked for; None if the request is not scored."""

    id: int
    text: str
    logprob: float
    entropy: float
    top: tuple[tuple[int, float], ...] = ()
    nodes: "Float[Tensor, 'layers node_dim'] | None" = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The whole answer. `kept` is what was recorded of it."""

    tokens: tuple[int, ...]
    text: str
    ended: Ended
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    kept: "RowCopy | None" = None

    @property
    def record(self) -> "Reduced | None":
        """What capture would have stored of it, a batch of one."""
        from clew.hallucination.live.engine.copies import reduce_ragged

        return None if self.kept is None else reduce_ragged([self.kept])
