"""Span labels: where an answer states each of several facts, and whether it is correct there.

A part is found by its name ("The capital of Peru is Lima", "Capital: Lima"). Whatever wording alone
cannot decide is unsure, and excluded.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from rapidfuzz import fuzz

from clew.hallucination.labels.answers import StoredAnswer
from clew.hallucination.labels.methods import match_alias
from clew.hallucination.labels.normalize import answer_words, normalize_answer

SpanLabel = Literal["correct", "hallucinated", "unsure"]
# By what a store of given answers has for them.
_UNSURE = -1
_GIVEN: dict[int, SpanLabel] = {1: "hallucinated", 0: "correct", _UNSURE: "unsure"}
# A longer value is a description, not a name; beside an accepted name, a few words may stand.
_MOST_WORDS = 6
_MOST_EXTRA_WORDS = 2
# The similarity, 0 to 100, from which a value may be a spelling of the accepted name.
_SIMILAR = 80
# Of a word that others begin with: shorter ones begin too many.
_LEAST_STEM = 4
_PLURAL = re.compile(r"(?<=\w{3})s\b")
_STATES = r"(?:\s+of\s+[^,;:.\n]{1,80}?)?\s*(?::|=|\s(?:is|was)\s)\s*(?:(?:called|named|the|a)\s+)*"
# A period ends a value at the end of a sentence, but not in "St. George".
_VALUE_ENDS = r"[,;:\n(]|(?<!\bSt)(?<!\b\w)\.(?=\s|$)|\s(?:while|whereas|which|with)\b"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The characters from `start` to `end` of an answer, where it states a part."""

    question_id: str
    global_example_id: int
    part: str
    start: int
    end: int
    label: SpanLabel
    text: str
    accepted_answer: str

    @classmethod
    def of(
        cls,
        answer: StoredAnswer,
        start: int,
        end: int,
        label: SpanLabel,
        part: str = "",
        accepted: str = "",
    ) -> Self:
        return cls(
            question_id=answer.question_id,
            global_example_id=answer.global_example_id,
            part=part,
            start=start,
            end=end,
            label=label,
            text=answer.text[start:end],
            accepted_answer=accepted,
        )


class SpanLabeler:
    """Labels the spans of answers. `names` are all accepted answers of the store: another one of
    them is certainly not a spelling of the accepted one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {normalize_answer(name) for name in names}

    def label(self, answer: StoredAnswer) -> list[Span]:
        """One span per stated part, in the order of the parts; a part that is stated twice is
        unsure."""
        found = []
        for part, accepted in answer.by_part.items():
            for start, end, is_clear in _find(answer.text, part, answer.by_part):
                label = self.judge(answer.text[start:end], accepted) if is_clear else "unsure"
                found.append(Span.of(answer, start, end, label, part, accepted[0]))
        return found

    def judge(self, value: str, accepted: Sequence[str]) -> SpanLabel:
        """Whether the value of a part is one of the accepted answers."""
        words = answer_words(value)
        if not words or len(words) > _MOST_WORDS:
            return "unsure"
        if _equals(value, accepted):
            return "correct"
        if normalize_answer(value) in self._names:
            return "hallucinated"
        match = match_alias(value, accepted)
        if match.score:
            extra = len(words) - len(answer_words(match.accepted))
            return "correct" if extra <= _MOST_EXTRA_WORDS else "unsure"
        return "unsure" if any(_may_mean(value, words, one) for one in accepted) else "hallucinated"


def given_spans(answer: StoredAnswer) -> list[Span]:
    """The spans that the answer's file gives, and the text between them, which is correct. Of an
    answer that is labeled as a whole, all is correct if it is; else nobody knows what."""
    if answer.given_spans is None:
        label: SpanLabel = "correct" if answer.given_score == 1 else "unsure"
        return [Span.of(answer, 0, len(answer.text), label)] if answer.text else []
    found, last = [], 0
    for start, end, number in sorted(answer.given_spans):
        if number == _UNSURE:  # a token has the space before it
            start = max(last, len(answer.text[:start].rstrip()))
        if last < start:
            found.append(Span.of(answer, last, start, "correct"))
        found.append(Span.of(answer, start, end, _GIVEN[number]))
        last = max(last, end)
    if last < len(answer.text):
        found.append(Span.of(answer, last, len(answer.text), "correct"))
    return found


def score_spans(spans: Sequence[Span]) -> float | None:
    """1.0 if all parts that the answer states are correct, 0.0 if one is hallucinated, None if
    that is not known."""
    labels = {span.label for span in spans}
    if "hallucinated" in labels:
        return 0.0
    return 1.0 if labels == {"correct"} else None


def _find(
    text: str, part: str, parts: Mapping[str, Sequence[str]]
) -> Iterator[tuple[int, int, bool]]:
    """Where the text states the part first, and whether it does so only once."""
    others = "|".join(map(re.escape, parts))
    ends = rf"{_VALUE_ENDS}|,?\s+(?:and|but)\s+(?:(?:the|its)\s+)?(?:{others})\b|$"
    pattern = rf"\b{re.escape(part)}\b{_STATES}(?P<value>.*?)(?={ends})"
    found = list(re.finditer(pattern, text, re.IGNORECASE))
    if found:
        start, end = found[0].span("value")
        value = text[start:end]
        start += len(value) - len(value.lstrip(" \t\"'“*"))
        end -= len(value) - len(value.rstrip(" \t.\"'”*"))
        if start < end:
            yield start, end, len(found) == 1


def _equals(value: str, accepted: Sequence[str]) -> bool:
    """Equal after normalization, in the plural too ("Tanzanian shillings")."""
    plain = normalize_answer(value)
    return any(
        plain == one or _PLURAL.sub("", plain) == _PLURAL.sub("", one)
        for one in map(normalize_answer, accepted)
    )


def _may_mean(value: str, words: Sequence[str], accepted: str) -> bool:
    """Whether the value may be the accepted answer after all: incomplete ("dollar"), with other
    names beside it ("Paris or Rome"), inflected ("African"), or spelled otherwise."""
    theirs = answer_words(accepted)
    if set(words) < set(theirs) or set(theirs) <= set(words):
        return True
    long = [word for word in theirs if len(word) >= _LEAST_STEM]
    if long and all(any(word.startswith(stem) for word in words) for stem in long):
        return True
    return fuzz.ratio(normalize_answer(value), normalize_answer(accepted)) >= _SIMILAR
