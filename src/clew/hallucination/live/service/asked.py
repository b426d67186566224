"""What a request asks for, read from its JSON: the same for chats and completions."""

from dataclasses import dataclass, replace
from typing import Any

from clew.hallucination.live.service.fields import CHAT, COMPLETION, read_stream_options
from clew.hallucination.live.service.messages import read_messages
from clew.hallucination.llm.requests import Sampling
from clew.pages.api import invalid

# OpenAI's default for completions; a chat goes on until the model ends it.
_COMPLETION_TOKENS = 16

Messages = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A chat has `messages`, a completion has `prompts`, which are texts or token ids; each is
    answered `n` times. `limit_name` is the field that limits an answer's length. `context` is the
    text to answer a question from, which is clew's own field. `top_logprobs` is None if the log
    probabilities are not asked for."""

    model: str | None
    messages: Messages | None = None
    prompts: tuple[str | list[int], ...] = ()
    n: int
    max_tokens: int | None
    limit_name: str
    sampling: Sampling
    stop: tuple[str, ...]
    top_logprobs: int | None
    is_stream: bool
    includes_usage: bool
    context: str | None = None

    @property
    def is_chat(self) -> bool:
        return self.messages is not None

    @property
    def answers(self) -> int:
        """How many answers the request gets."""
        return self.n * (len(self.prompts) or 1)

    @property
    def prompt_name(self) -> str:
        """The field that holds the prompt, for errors."""
        return "messages" if self.is_chat else "prompt"

    def sampling_of(self, choice: int) -> Sampling:
        """Several answers with one seed are different, and each can be had again."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + choice)


def read_chat(body: Any) -> Asked:
    """Raises ApiError, which names the field that cannot be used."""
    found = CHAT.read(body)
    if found["messages"] is None:
        raise invalid("messages", "Missing required parameter: 'messages'.", "missing_parameter")
    if found["top_logprobs"] is not None and not found["logprobs"]:
        raise invalid("top_logprobs", "'top_logprobs' requires 'logprobs': true.")
    if None not in (found["max_tokens"], found["max_completion_tokens"]):
        raise invalid("max_tokens", "Give 'max_completion_tokens' or 'max_tokens', not both.")
    return _asked(
        found,
        messages=read_messages(found["messages"]),
        max_tokens=found["max_completion_tokens"] or found["max_tokens"],
        limit_name="max_completion_tokens" if found["max_tokens"] is None else "max_tokens",
        top_logprobs=(found["top_logprobs"] or 0) if found["logprobs"] else None,
        context=found["context"],
    )


def read_completion(body: Any) -> Asked:
    """Raises ApiError, which names the field that cannot be used."""
    found = COMPLETION.read(body)
    prompt = found["prompt"]
    if prompt is None:
        raise invalid("prompt", "Missing required parameter: 'prompt'.", "missing_parameter")
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return _asked(
        found,
        prompts=(prompt,) if is_one else tuple(prompt),
        max_tokens=found["max_tokens"] or _COMPLETION_TOKENS,
        limit_name="max_tokens",
        top_logprobs=found["logprobs"],
    )


def _asked(found: dict[str, Any], **own: Any) -> Asked:
    stop = found["stop"]
    sampling = Sampling(
        temperature=found["temperature"] or 0.0,
        top_p=found["top_p"],
        top_k=found["top_k"] or None,
        frequency_penalty=found["frequency_penalty"],
        presence_penalty=found["presence_penalty"],
        seed=found["seed"],
    )
    return Asked(
        model=found["model"],
        n=found["n"],
        sampling=sampling,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        is_stream=found["stream"],
        includes_usage=read_stream_options(found["stream_options"], is_stream=found["stream"]),
        **own,
    )
