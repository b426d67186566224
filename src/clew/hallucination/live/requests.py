"""What is asked of the engine, and what it delivers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clew.hallucination.capture.dialogue import Cut

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from clew.hallucination.traces.compact import Reduced

Ended = Literal["end", "stop", "line", "sentence", "repetition", "length", "canceled"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. `temperature=0` is greedy, and the other settings are then
    ignored. With a `seed`, the same request gives the same answer whatever else is in the batch."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None


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
    """The whole answer. `record` holds what capture would have stored of it, a batch of one."""

    tokens: tuple[int, ...]
    text: str
    ended: Ended
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    record: "Reduced | None" = None
