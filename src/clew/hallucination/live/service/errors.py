"""Errors of requests that OpenAI's API has a code for."""

from clew.base.errors import InputError
from clew.hallucination.llm.prompts import PromptTooLongError
from clew.pages.api import ApiError, invalid


def unsupported(param: str, message: str) -> ApiError:
    """A field that OpenAI's API has, and this one does not."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def too_long(param: str, message: str) -> ApiError:
    """A prompt with more tokens than the model or the server takes. Status and code are OpenAI's:
    clients catch them and shorten the prompt."""
    return ApiError(400, message, param=param, code="context_length_exceeded")


def over_limit(param: str | None, message: str) -> ApiError:
    """More than this server gives, whatever the model could."""
    return ApiError(422, message, param=param, code="limit_exceeded")


def unusable(param: str, error: InputError) -> ApiError:
    """A prompt that the model cannot read."""
    text = str(error)
    make = too_long if isinstance(error, PromptTooLongError) else invalid
    return make(param, f"{text[:1].upper()}{text[1:]}")


def out_of_time(seconds: float) -> ApiError:
    """Asking again would take as long: OpenAI's clients do not retry."""
    return ApiError(
        503,
        f"The answer was not finished within {seconds:g} s. Ask for fewer tokens.",
        code="timeout",
        headers={"x-should-retry": "false"},
    )
