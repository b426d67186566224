"""Unsupported answers made from supported ones, for training only: a changed number, name or word,
a sentence of another answer, or a source without what a sentence was taken from."""

import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from clew.hallucination.grounded.passages import GroundedAnswer, content_words, split_sentences

Spans = tuple[tuple[int, int], ...]
_NUMBER = re.compile(r"\b\d+(?:[.,]\d+)*\b")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")
# Words with their opposites, which are swapped both ways, and words with their negations.
_WORDS = json.loads(files(__package__).joinpath("word_swaps.json").read_text("utf-8"))
_OPPOSITES = _WORDS["opposites"]
_SWAPS = {**_OPPOSITES, **{new: old for old, new in _OPPOSITES.items()}, **_WORDS["negations"]}
_WORD = re.compile(rf"\b({'|'.join(sorted(map(re.escape, _SWAPS), key=len, reverse=True))})\b")
# A sentence whose own words are in the source to this share is from there; without the sentences
# that have them, at most to that.
_FROM_SOURCE, _STILL_THERE = 0.6, 0.25
# The least of a source that is left.
_LEFT = 0.4
# The share of synthetic answers from the sets that are most like those to be read.
_ALIKE = 0.7


@dataclass(frozen=True, kw_only=True)
class GroundedLabel(GroundedAnswer):
    """An answer to train on. `spans` are the places that the sources do not support, None if only
    the whole is labeled. Answers of one `group` share a document, those of one `set` a kind."""

    hallucinated: bool
    spans: Spans | None = None
    group: str = ""
    set: str = ""
    is_synthetic: bool = False


def make_answers(
    answers: Sequence[GroundedLabel],
    count: int,
    random: random.Random,
    most_like: Collection[str] | None = None,
) -> list[GroundedLabel]:
    """At most this many, from supported answers, if there are any with spans from those; fewer if
    they do not suit. Nearly all of them are unsupported. Most are made from the sets `most_like`
    those to be read, and foreign sentences come from there."""
    supported = [one for one in answers if not one.hallucinated]
    supported = [one for one in supported if one.spans is not None] or supported
    alike = [one for one in supported if one.set in (most_like or {one.set})] or supported
    made: list[GroundedLabel] = []
    for _ in range(10 * count if supported else 0):
        if len(made) == count:
            break
        change = random.choice(_CHANGES)
        start = random.choice(alike if random.random() < _ALIKE else supported)
        found = change(start, alike, random)
        if found is not None:
            made.append(found)
    return made


def _changed(answer: GroundedLabel, edits: Sequence[tuple[int, int, str]]) -> GroundedLabel:
    """The answer with these places replaced, which become its spans."""
    text, spans, last = "", [], 0
    for start, end, new in sorted(edits):
        text += answer.answer[last:start]
        spans.append((len(text), len(text) + len(new)))
        text, last = text + new, end
    text += answer.answer[last:]
    return replace(_unsupported(answer, tuple(spans)), answer=text)


def _unsupported(answer: GroundedLabel, spans: Spans) -> GroundedLabel:
    return replace(answer, spans=spans, hallucinated=True, is_synthetic=True)


def _change_number(
    answer: GroundedLabel, _: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    found = list(_NUMBER.finditer(answer.answer))
    if not found:
        return None
    match = random.choice(found)
    others = [one for one in _NUMBER.findall(" ".join(answer.sources)) if one not in answer.answer]
    if others and random.random() < 0.4:
        new = random.choice(others)
    else:
        last = match.end() - 1 if random.random() < 0.7 else match.start()
        digit = (int(answer.answer[last]) + random.randint(1, 8)) % 9 + 1
        new = f"{answer.answer[match.start() : last]}{digit}{answer.answer[last + 1 : match.end()]}"
    return _changed(answer, [(*match.span(), new)]) if new != match[0] else None


def _change_name(
    answer: GroundedLabel, others: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    """By another of the same source; if there is none, of another source."""
    found = list(_NAME.finditer(answer.answer))
    for row in (answer, random.choice(others)):
        names = {name for source in row.sources for name in _NAME.findall(source)}
        names = {name for name in names if name not in answer.answer}
        if found and names:
            return _changed(answer, [(*random.choice(found).span(), random.choice(sorted(names)))])
    return None


def _change_word(
    answer: GroundedLabel, _: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    found = list(_WORD.finditer(answer.answer))
    if not found:
        return None
    chosen = random.sample(found, min(len(found), random.choice((1, 1, 2))))
    return _changed(answer, [(*one.span(), _SWAPS[one[0]]) for one in chosen])


def _add_sentence(
    answer: GroundedLabel, others: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    other = random.choice(others)
    new = other.answer[slice(*random.choice(split_sentences(other.answer) or [(0, 0)]))]
    words, known = content_words(new), content_words(" ".join(answer.sources))
    is_known = len(words & known) > len(words) / 2
    if other.group == answer.group or not 25 < len(new) < 300 or is_known:
        return None
    place = random.choice([end for _, end in split_sentences(answer.answer)] or [0])
    return _changed(answer, [(place, place, f" {new}")])


def _drop_from_source(
    answer: GroundedLabel, _: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    """Without the sentences of the source that have a sentence's own words, it is baseless."""
    text = answer.answer
    places = [
        place for place in split_sentences(text) if len(content_words(text[slice(*place)])) > 3
    ]
    if len(places) < 2:
        return None
    chosen = random.choice(places)
    others = (content_words(text[slice(*place)]) for place in places if place != chosen)
    own = content_words(text[slice(*chosen)]).difference(*others)
    known = content_words(" ".join(answer.sources))
    if len(own) < 3 or len(own & known) < _FROM_SOURCE * len(own):
        return None
    left = tuple(" ".join(_keep_others(source, own)) for source in answer.sources)
    still = content_words(" ".join(left))
    is_short = sum(map(len, left)) < _LEFT * sum(map(len, answer.sources))
    if is_short or len(own & still) > _STILL_THERE * len(own):
        return None
    return replace(_unsupported(answer, (chosen,)), sources=left)


def _keep_others(source: str, own: set[str]) -> Iterator[str]:
    for start, end in split_sentences(source):
        if len(own & content_words(source[start:end])) < max(1, len(own) / 4):
            yield source[start:end]


def _change_quote(
    answer: GroundedLabel, others: Sequence[GroundedLabel], random: random.Random
) -> GroundedLabel | None:
    """Sentences of the source, half of the time with a change: what differs is all that counts."""
    source = random.choice(answer.sources)
    places = [(start, end) for start, end in split_sentences(source) if 40 < end - start < 400]
    if len(places) < 4:
        return None
    first = random.randrange(len(places) - 1)
    chosen = places[first : first + random.randint(1, 3)]
    text = " ".join(source[slice(*place)] for place in chosen)
    quote = replace(answer, answer=text, spans=(), is_synthetic=True)
    if random.random() < 0.5:
        return quote
    return random.choice((_change_number, _change_name, _change_word))(quote, others, random)


_Change = Callable[[GroundedLabel, Sequence[GroundedLabel], random.Random], GroundedLabel | None]
# Baseless sentences are what language models write most often.
_CHANGES: tuple[_Change, ...] = (
    *(_change_number, _change_name, _change_word, _change_word),
    *(_add_sentence, _add_sentence, _drop_from_source, _drop_from_source, _drop_from_source),
    *(_change_quote, _change_quote),
)
