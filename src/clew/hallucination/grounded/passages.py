"""Answers and sources as texts: what can be read, sentences, and the passage of a source that is
nearest to a span of an answer."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

# A sentence ends behind its mark, a line at its end; not behind "Dr." or "e.g.".
_ENDS = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:Dr|Mr|Ms|St|vs|No|Jr)\.)(?<!\b(?:Mrs|etc|e\.g|i\.e)\.)"
    r"[\"'”’)\]]*\s+(?=[\"'“‘(\[*\-•]*[A-Z0-9])|\s*\n\s*|(?<=[。！？])"
)
# Behind a semicolon, or a comma with a word that joins clauses, a sentence says something else.
_JOINTS = re.compile(
    r";\s+|,\s+(?=(?:and|but|or|so|while|whereas|although|because|which|who|where|when)\b)"
)
_LEAST_WORDS = 3
_WORDS = re.compile(r"\w+")
# Words of fewer letters say little of what a sentence is about; numbers do.
_LEAST_LETTERS = 4
# Of all sources together: about 60 windows, a minute or two on a CPU.
MOST_SOURCE_CHARACTERS = 200_000
MOST_ANSWER_CHARACTERS = 40_000


@dataclass(frozen=True, kw_only=True)
class GroundedAnswer:
    """An answer, the sources that it is to be supported by, and the question, if there is one."""

    answer: str
    sources: tuple[str, ...]
    question: str | None = None


def find_problem(row: GroundedAnswer) -> str | None:
    """Why an answer cannot be read, None if it can."""
    length = sum(map(len, row.sources))
    if not any(source.strip() for source in row.sources):
        return "there is no source to compare the answer with"
    if not row.answer.strip():
        return "the answer is empty"
    if not all(map(_is_unicode, (row.answer, *row.sources, row.question or ""))):
        return "its text contains an invalid character (a lone surrogate)"
    if length > MOST_SOURCE_CHARACTERS:
        return (
            f"the sources have {length:,} characters, and at most {MOST_SOURCE_CHARACTERS:,} are "
            "read: give only the passages that the answer was written from"
        )
    if len(row.answer) > MOST_ANSWER_CHARACTERS:
        return (
            f"the answer has {len(row.answer):,} characters, and at most "
            f"{MOST_ANSWER_CHARACTERS:,} are read: give it in parts"
        )
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SourcePassage:
    """A sentence of the source with this number, by its characters from `start` to `end`."""

    source: int
    start: int
    end: int
    text: str


def split_sentences(text: str) -> list[tuple[int, int]]:
    """The places of the sentences, without the white space around them; lines end sentences."""
    found, start = [], 0
    for border in _ENDS.finditer(text):
        found.append((start, border.start()))
        start = border.end()
    found.append((start, len(text)))
    return [place for place in (_strip(text, *one) for one in found) if place[0] < place[1]]


def split_claims(text: str) -> list[tuple[int, int]]:
    """The places of the clauses of sentences, as far as punctuation shows them: where each part
    would have three words or more."""
    found = []
    for first, last in split_sentences(text):
        start = first
        for border in _JOINTS.finditer(text, first, last):
            parts = (text[start : border.start()], text[border.end() : last])
            if min(len(part.split()) for part in parts) >= _LEAST_WORDS:
                found.append((start, border.start()))
                start = border.end()
        found.append((start, last))
    return found


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    return start, max(start, start + len(inside.strip()))


def cut_at_sentences(text: str, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places, with one of its own for each sentence that they reach into."""
    borders, found = [start for start, _ in split_sentences(text)][1:], []
    for start, end in places:
        cuts = [start, *(border for border in borders if start < border < end), end]
        found += [_strip(text, *part) for part in pairwise(cuts)]
    return [(start, end) for start, end in found if start < end]


def whole_words(text: str, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places, in order, with all letters and digits of the words that they begin and end in;
    those that then overlap become one."""
    found: list[tuple[int, int]] = []
    for start, end in places:
        while 0 < start < len(text) and text[start - 1].isalnum() and text[start].isalnum():
            start -= 1
        while 0 < end < len(text) and text[end - 1].isalnum() and text[end].isalnum():
            end += 1
        if found and start < found[-1][1]:
            start = found.pop()[0]
        found.append((start, end))
    return found


class Passages:
    """The sentences of the sources of one answer, to look up the one that shares most words."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._found = [
            SourcePassage(number, start, end, source[start:end])
            for number, source in enumerate(sources)
            for start, end in split_sentences(source)
        ]
        self._words = [content_words(passage.text) for passage in self._found]
        self._counts = Counter(word for words in self._words for word in words)

    def nearest(self, answer: str, start: int, end: int) -> SourcePassage | None:
        """The passage nearest to the sentences that the span is in: shared words count the more,
        the fewer passages have them, and those of the span twice. None if none is shared."""
        wanted = Counter(content_words(answer[start:end]))
        for first, last, words in _sentence_words(answer):
            if first < end and start < last:
                wanted.update(words)
        scores = [
            sum(wanted[word] / self._counts[word] for word in words if word in wanted)
            / (8 + len(words)) ** 0.5
            for words in self._words
        ]
        best = max(range(len(scores)), key=scores.__getitem__, default=None)
        return None if best is None or not scores[best] else self._found[best]


@lru_cache(maxsize=1)  # of the answer whose spans are looked up
def _sentence_words(text: str) -> list[tuple[int, int, set[str]]]:
    return [(*place, content_words(text[slice(*place)])) for place in split_sentences(text)]


def content_words(text: str) -> set[str]:
    return {
        word
        for word in _WORDS.findall(text.casefold())
        if len(word) >= _LEAST_LETTERS or not word.isascii() or word.isdigit()
    }
