"""The trace of a new answer: one more pass over its tokens."""

from dataclasses import dataclass
from typing import Any, Protocol

from clew.hallucination.answer_page.picture import ShownAnswer


@dataclass(frozen=True, kw_only=True)
class Traced:
    """An answer with everything that is drawn of it; `risk` is as in the API."""

    answer: ShownAnswer
    risk: dict[str, Any] | None
    token_risks: list[float | None] | None


class Tracer(Protocol):
    """The served model and its detector."""

    def describe(self) -> dict[str, Any]:
        """The names of the model and the detector, for the head of the page."""

    def trace(self, question: str, context: str | None, tokens: list[int]) -> Traced: ...

    def explain_other_model(self, model: dict[str, Any]) -> str:
        """Why traces of `model` cannot be compared with new answers; empty if they can."""
