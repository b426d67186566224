"""Normalize the spelling of answers: case, accents, punctuation, articles, by TriviaQA's rules,
extended to every script and to numbers; and split them into normalized words that remember their
punctuation: what stands before each, whether it is a name, and where sentences begin."""

import json
import re
import tomllib
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

# Words by which the rules for labels go, and units of measure.
LISTS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))


def _read_patterns() -> dict[str, re.Pattern[str]]:
    texts = tomllib.loads(Path(__file__).with_name("patterns.toml").read_text("utf-8"))
    parts = {f"<{name}>": text.replace("\n", "") for name, text in texts.pop("parts").items()}
    names = re.compile("|".join(parts))
    plain = {name: text.replace("\n", "") for name, text in texts.items()}
    return {
        name: re.compile(names.sub(lambda found: parts[found[0]], text))
        for name, text in plain.items()
    }


PATTERNS = _read_patterns()
# English only, as in TriviaQA: "die" and "la" are articles too, but also words of other answers.
ARTICLES = ("a", "an", "the")
# Not the last word: "Vitamin A" must not become "vitamin", which "Vitamin C" contains.
_ARTICLE = re.compile(rf"\b(?:{'|'.join(ARTICLES)}) (?=\S)")
# "U.S.A." is one word; with separate letters, the last would look like an article.
_ABBREVIATION = re.compile(r"\b[a-zα-ωа-я](?:\.[a-zα-ωа-я]\b)+")
# "C. S. Lewis" is also written "C.S. Lewis" and "CS Lewis".
_INITIALS = re.compile(r"(?<![^\W_])([A-Z]\.) (?=[A-Z]\.(?!\w))")
# "12,500" is one number; so is "3.5", which does not contain 5. "8.5.1945" is three.
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DECIMAL = re.compile(r"(?<![\d.])(\d+)\.(\d+)(?!\.?\d)")
_KEPT_POINT = "\ue000"
# Letters that Unicode does not decompose into a base letter and an accent.
_PLAIN_LETTERS = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"}
# Scripts without spaces between words: each character can start or end one.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff"
_UNSPACED_CHARACTER = re.compile(rf"([{UNSPACED}])")
_CHUNK = re.compile(r"\S+")
# Inside a chunk: anything between letters, but not the comma of "12,500" or the point of "U.S.".
_INNER = re.compile(r"([^\w.,'’ʻ]+|,(?!\d{3}(?!\d))|(?<=\w\w)\.(?=\D)|\.$)")
_KATAKANA = re.compile(r"[\u30a0-\u30ff]")
# After these, a point does not end a sentence.
_SHORT = frozenset(("st", "mr", "mrs", "ms", "dr", "mt", "ft", "jr", "sr", "vs", "no", "eg", "ie"))
# Of a sentence without an end, this many words around a place are read.
LONGEST_SENTENCE = 200
_PLURAL = re.compile(r"(?<=[^\W\d]{3})s$")


class Translation(dict[int, str]):
    """The replacement of each character, cached."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


def _plain_character(character: str) -> str:
    kind = unicodedata.category(character)
    if character == _KEPT_POINT:
        return "."
    if _is_accent(character) or kind == "Cf":
        return ""
    # Not with \w: the vowel signs of many scripts are not letters, but parts of words.
    if kind[0] in "PSZC":
        return " "
    return _PLAIN_LETTERS.get(character, character)


def _is_accent(character: str) -> bool:
    """Marks that are optional in a word; not those that change it, such as ハ, バ and パ."""
    return (
        "\u0300" <= character <= "\u036f"  # Latin, Greek, Cyrillic
        or "\u02b0" <= character <= "\u02ff"  # Hawaiʻi
        or ("\u0591" <= character <= "\u05c7" and unicodedata.category(character) == "Mn")  # Hebrew
        or "\u064b" <= character <= "\u0652"  # Arabic vowels
        or character in "\u0640\u0670"
    )


_WITHOUT_ACCENTS = Translation(lambda character: "" if _is_accent(character) else character)
_PLAIN = Translation(_plain_character)


def normalize_answer(text: str) -> str:
    """The text in lowercase without accents, punctuation and English articles.

    "The Café  de_Flore!" and "cafe de flore" become the same. A text that would become empty, such
    as "?", keeps its characters, in lowercase.
    """
    return drop_articles(normalize_words(text))


def normalize_words(text: str) -> str:
    """Like `normalize`, but keeps articles."""
    plain = _fold(text)
    if "." in plain:
        plain = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), plain)
        plain = _DECIMAL.sub(rf"\1{_KEPT_POINT}\2", plain)
    if "," in plain:
        plain = _GROUPED.sub("", plain)
    return " ".join(plain.translate(_PLAIN).split()) or " ".join(text.casefold().split())


def join_initials(text: str) -> str:
    """ "J. R. R. Tolkien" as "J.R.R. Tolkien"."""
    return _INITIALS.sub(r"\1", text)


def drop_articles(plain: str) -> str:
    return _ARTICLE.sub("", plain)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text).casefold()
    # Recomposed, so that a Korean syllable and a Japanese パ are one character.
    return unicodedata.normalize("NFKC", apart.translate(_WITHOUT_ACCENTS))


def answer_words(text: str) -> list[str]:
    """The words of the normalized text; for scripts without spaces, its characters."""
    plain = normalize_answer(text)
    return (plain if plain.isascii() else _UNSPACED_CHARACTER.sub(r" \1 ", plain)).split()


_MARKS_AS_LETTERS = Translation(lambda one: "x" if unicodedata.category(one)[0] == "M" else one)


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
