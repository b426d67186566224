"""A request that is being answered: its row, and what the next pass takes of it."""

from dataclasses import dataclass

from clew.hallucination.live.engine.drafts import Draft
from clew.hallucination.live.engine.passes import Segment
from clew.hallucination.live.engine.requests import Request
from clew.hallucination.live.engine.sampling import Asking, Chooser
from clew.hallucination.live.engine.tickets import Ticket

# In place of a token that has been chosen, but not read yet.
UNREAD = -1


@dataclass(kw_only=True, eq=False)
class Running:
    """A request that has a row. `to_pass` are the tokens of its prompt that are still to be passed,
    `position` is where the next token goes, and `launched` is how many tokens of its answer have
    been passed, or are being passed."""

    ticket: Ticket
    draft: Draft
    chooser: Chooser
    row: int
    to_pass: list[int]
    position: int = 0
    launched: int = 0
    # Where the beginning ends that is kept for other prompts; 0 if none is.
    shared: int = 0
    # The answer is complete, and is passed once more, since tokens after it had been recorded.
    is_again: bool = False
    has_left: bool = False

    @property
    def request(self) -> Request:
        return self.ticket.request

    @property
    def length(self) -> int:
        """Tokens in its row once its prompt has passed."""
        return self.position + len(self.to_pass)

    @property
    def asking(self) -> Asking:
        """For the token after those that were launched."""
        return Asking(self.chooser, self.launched, self.draft.tokens)

    def take(self, most: int) -> "Taken | None":
        """What the next pass takes of it, at most that many tokens of a prompt; None if
        nothing."""
        return self._take_prompt(most) if self.to_pass else self._take_token()

    def _take_prompt(self, most: int) -> "Taken | None":
        if most < 1:
            return None
        if self.position < self.shared:
            most = min(most, self.shared - self.position)
        tokens, start = self.to_pass[:most], self.position
        del self.to_pass[:most]
        self.position += len(tokens)
        wants = not self.to_pass and not self.is_again
        segment = Segment(row=self.row, tokens=tokens, start=start, wants_logits=wants)
        return Taken(running=self, segment=segment, number=None)

    def _take_token(self) -> "Taken | None":
        """The next token of the answer, unless it may not have one."""
        draft, number = self.draft, self.launched
        is_known = number < len(draft.tokens)
        if not is_known and (draft.ended or number == self.request.max_new_tokens):
            return None
        token = draft.tokens[number] if is_known else UNREAD
        self.launched += 1
        self.position += 1
        wants = draft.ended is None
        segment = Segment(row=self.row, tokens=[token], start=self.position - 1, wants_logits=wants)
        return Taken(running=self, segment=segment, number=number)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one pass has taken of a running request: part of its prompt, or the token of that
    `number` of its answer."""

    running: Running
    segment: Segment
    number: int | None

    @property
    def is_alive(self) -> bool:
        """Whether it is part of a request that still runs, as far as that is known."""
        running = self.running
        if running.has_left or self.number is None:
            return not running.has_left
        return not running.is_again and self.number < len(running.draft.tokens)

    @property
    def completes_record(self) -> bool:
        """Whether an answer that is passed once more has been passed."""
        running, end = self.running, self.segment.start + len(self.segment.tokens)
        whole = len(running.request.prompt) + len(running.draft.tokens)
        return running.is_again and end == whole

    def give_back(self) -> None:
        """The pass has failed: another one takes it again."""
        running, count = self.running, len(self.segment.tokens)
        running.position -= count
        if self.number is None:
            running.to_pass[:0] = self.segment.tokens
        else:
            running.launched -= 1
