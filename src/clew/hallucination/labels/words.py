"""A text as normalized words that remember their punctuation: what stands before each word, whether
it is written as a name, and where sentences begin."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from clew.hallucination.labels.normalize import (
    ARTICLES,
    UNSPACED,
    Translation,
    normalize_words,
)

_CHUNK = re.compile(r"\S+")
# Inside a chunk: anything between letters, but not the comma of "12,500" or the point of "U.S.".
_INNER = re.compile(r"([^\w.,'’ʻ]+|,(?!\d{3}(?!\d))|(?<=\w\w)\.(?=\D)|\.$)")
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}]")
_KATAKANA = re.compile(r"[\u30a0-\u30ff]")
# After these, a point does not end a sentence.
_SHORT = frozenset(("st", "mr", "mrs", "ms", "dr", "mt", "ft", "jr", "sr", "vs", "no", "eg", "ie"))
# Of a sentence without an end, this many words around a place are read.
LONGEST_SENTENCE = 200
_MARKS_AS_LETTERS = Translation(lambda one: "x" if unicodedata.category(one)[0] == "M" else one)
_PLURAL = re.compile(r"(?<=[^\W\d]{3})s$")


@dataclass(frozen=True, slots=True)
class Word:
    """`gap` is what stands between the word and the one before it; `depth` counts the parentheses
    around it. A line break, a semicolon and a colon end a sentence too."""

    text: str
    gap: str = " "
    is_name: bool = False
    depth: int = 0
    starts_sentence: bool = False


class Place(NamedTuple):
    """The words from `first` to before `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Words:
    """The words of a text in one view: with articles, or without; or without the s of plurals."""

    words: Sequence[Word]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, place: int) -> Word:
        return self.words[place]

    def get(self, place: int) -> Word | None:
        return self.words[place] if 0 <= place < len(self.words) else None

    @cached_property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for word in self.words:
            starts.append(at)
            at += len(word.text) + 1
        return starts

    def join(self, first: int, end: int) -> str:
        return " ".join(word.text for word in self.words[max(0, first) : max(0, end)])

    def without_articles(self) -> "Words":
        """Not the last word: the A of "Vitamin A" is no article."""
        last = len(self.words) - 1
        kept: list[Word] = []
        gap, starts = "", False
        for place, word in enumerate(self.words):
            gap, starts = gap + word.gap, starts or word.starts_sentence
            if word.text not in ARTICLES or place == last:
                kept.append(replace(word, gap=gap, starts_sentence=starts))
                gap, starts = "", False
        return Words(kept)

    def singular(self) -> "Words":
        return Words([replace(word, text=singular(word.text)) for word in self.words])

    def find(self, alias: str) -> Iterator[Place]:
        """Where the alias occurs as whole words; in scripts without spaces, the words that contain
        it."""
        text = self.text
        start = text.find(alias) if alias else -1
        while start >= 0:
            end = start + len(alias)
            if _is_edge(text[max(0, start - 1) : start + 1]) and _is_edge(text[end - 1 : end + 1]):
                yield Place(
                    bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1)
                )
            start = text.find(alias, start + 1)

    def sentence_start(self, place: int) -> int:
        first = max(0, place - LONGEST_SENTENCE)
        while place > first and not self.words[place].starts_sentence:
            place -= 1
        return place

    def sentence_end(self, place: int) -> int:
        """The word after the sentence that goes on at `place`."""
        end = min(len(self.words), place + LONGEST_SENTENCE)
        while place < end and not self.words[place].starts_sentence:
            place += 1
        return place

    def rest_of_sentence(self, place: int) -> str:
        return self.join(place, self.sentence_end(place))

    def start_of_sentence(self, place: int) -> str:
        return self.join(self.sentence_start(place), place)


def singular(word: str) -> str:
    return _PLURAL.sub("", word)


def split_words(text: str) -> Words:
    """The normalized words of a text, with articles."""
    found: list[Word] = []
    gap, depth, before = "", 0, 0
    for chunk in _CHUNK.finditer(text):
        space = text[before : chunk.start()]
        gap, before = gap + ("\n" if "\n" in space else space[:1]), chunk.end()
        for piece in _split_chunk(chunk[0]):
            words = _read_piece(piece)
            if words is None:
                gap += piece
                depth = max(0, depth + piece.count("(") - piece.count(")"))
                continue
            found += _place_words(words, piece, gap, depth, found)
            gap = piece[-1] if piece[-1] in ",." else ""
    return Words(found)


def _split_chunk(chunk: str) -> Iterator[str]:
    """The pieces of a chunk: words, and what is between them. A mark, such as a vowel sign of
    Hindi, is part of a word."""
    shape = chunk if chunk.isascii() else chunk.translate(_MARKS_AS_LETTERS)
    place = 0
    for found in _INNER.finditer(shape):
        yield chunk[place : found.start()]
        yield found[0]
        place = found.end()
    yield chunk[place:]


def _place_words(
    words: Sequence[str], piece: str, gap: str, depth: int, before: Sequence[Word]
) -> list[Word]:
    first = Word(
        text=words[0],
        gap=gap,
        is_name=_is_name(piece),
        depth=depth,
        starts_sentence=_starts_sentence(before, gap, piece),
    )
    return [first, *(Word(text=word, gap="-", depth=depth) for word in words[1:])]


def _read_piece(piece: str) -> list[str] | None:
    """The words of a piece; None if it is punctuation."""
    if piece.isascii() and piece.isalnum():
        return [piece.lower()]
    if not any(character.isalnum() for character in piece):
        return None
    return normalize_words(piece).split()


def _is_name(piece: str) -> bool:
    return piece.lstrip("'’ʻ\"")[:1].isupper()


def _starts_sentence(before: Sequence[Word], gap: str, piece: str) -> bool:
    if gap == " " and before:
        return False
    if not before or "\n" in gap or any(mark in gap for mark in "!?;:。！？；："):
        return True
    if "." not in gap:
        return False
    last = before[-1].text
    is_short = last in _SHORT or len(last) == 1
    return not is_short and (_is_name(piece) or len(last) > 3)


def _is_edge(pair: str) -> bool:
    """Whether a word can end between the two characters; a single character stands for the end of
    the text."""
    if len(pair) < 2 or " " in pair or _UNSPACED_CHARACTER.search(pair):
        return True
    # A Japanese loan word ends where its script does: パリ is in パリは, not in パリス.
    return bool(_KATAKANA.match(pair[0])) != bool(_KATAKANA.match(pair[1]))
