"""Answers with their risk, and what a caller holds of a request while its answer comes."""

from dataclasses import dataclass

from clew.hallucination.detectors.risk import Risk
from clew.hallucination.llm.requests import Ended, Events, Ticket


@dataclass(frozen=True, kw_only=True)
class LiveToken:
    """A token of an answer. `risk`: that it is hallucinated; None without a token probe."""

    id: int
    text: str
    logprob: float
    entropy: float
    top: tuple[tuple[int, float], ...] = ()
    risk: float | None = None


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """A whole answer with its risk. `tokens` are those of the text: tokens of a repetition that it
    was cut before may have come as events."""

    text: str
    tokens: tuple[LiveToken, ...]
    ended: Ended
    risk: Risk


class LiveTicket(Events[LiveToken, LiveAnswer]):
    """A submitted request: its tokens come with their risk, then the answer."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(LiveAnswer)
        self.request = ticket.request
        self._tickets = [ticket]  # and those of answers drawn for it

    def answer(self) -> LiveAnswer:
        """Wait for the whole answer."""
        *_, last = self
        assert isinstance(last, LiveAnswer)
        return last

    def cancel(self) -> None:
        """End the answer as soon as possible: it follows, with what there is of it."""
        for ticket in self._tickets:
            ticket.cancel()

    def add_draw(self, ticket: Ticket) -> None:
        """An answer that is drawn for this one; for the delivery."""
        self._tickets.append(ticket)
