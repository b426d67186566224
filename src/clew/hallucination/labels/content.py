"""What an accepted answer that is a sentence says beyond the question: "Paris" of "The capital of
France is Paris."."""

import re
from collections.abc import Iterator, Sequence

from clew.hallucination.labels.normalize import LISTS, Word, normalize_words, split_words

# Words that say nothing by themselves, and those that may stand between two words of one name.
_MORE = "because been being do does located situated found after before during than when while"
_EMPTY = frozenset((*LISTS["clauses"], *LISTS["fillers"], *_MORE.split()))
_WITHIN = frozenset(("of", "the", "and", "de", "da", "del", "la", "le", "von", "van"))
_VERBS = frozenset(("is", "was", "are", "were", "has", "have", "had"))
_YES_NO = ("yes", "no")
_FEWEST_WORDS = 3
_END = re.compile(r"[.!?。！？][\"'”’)]*$")
_REJECTED = re.compile(r",? (?:and )?(?:not|rather than|instead of) .*$")  # "Paris, not Lyon."
_ENDING = re.compile(r"(?<=\w{3})(?:ing|ed|es|s|d|e)$")
_WANTS_NUMBER = re.compile(r"\b(?:how (?!do|did|does|is|are|was|can)\w+|when|year|number|date)\b")


def find_content(sentence: str, question: str) -> tuple[str, ...]:
    """The parts of a sentence that answer the question, normalized; empty for a text that is no
    sentence, or that only repeats the question. The number, if it asks for one and there is one;
    else the name, if there is one, or the subject of a sentence whose other words are those of
    the question; else all that is left without those."""
    words = split_words(_REJECTED.sub("", sentence)).words
    is_sentence = _END.search(sentence.strip()) or _VERBS & {one.text for one in words}
    if len(words) < _FEWEST_WORDS or not is_sentence or all(one.is_name for one in words):
        return ()
    asked = normalize_words(question)
    known = {_stem(word) for word in asked.split()}
    parts = list(_split(words, known))
    numbers = [part for part in parts if any(word.text[:1].isdigit() for word in part)]
    names = [name for part in parts if (name := _name_in(part))]
    if _WANTS_NUMBER.search(asked) and len(numbers) == 1:
        parts = numbers
    elif parts and (words[0].text in _YES_NO or _is_subject(parts[0], words, known)):
        parts = parts[:1]
    elif len(names) == 1:
        parts = names
    return tuple(" ".join(word.text for word in part) for part in parts)


def _split(words: Sequence[Word], asked: set[str]) -> Iterator[list[Word]]:
    """The longest runs of words that are neither empty nor in the question."""
    part: list[Word] = []
    between: list[Word] = []
    for word in words:
        is_name = word.is_name and not word.starts_sentence
        is_empty = (word.text in _EMPTY and not is_name) or _stem(word.text) in asked
        if part and word.text in _WITHIN and word.gap == " ":
            between.append(word)
        elif is_empty or "," in word.gap or word.starts_sentence:
            if part:
                yield part
            part, between = [] if is_empty else [word], []
        else:
            part, between = [*part, *between, word], []
    if part:
        yield part


def _name_in(part: Sequence[Word]) -> list[Word]:
    """From the first to the last name; not a word that is only the first of its sentence."""
    places = [place for place, word in enumerate(part) if word.is_name]
    if not places or (len(places) == 1 and part[places[0]].starts_sentence):
        return []
    return list(part[places[0] : places[-1] + 1])


def _is_subject(part: Sequence[Word], words: Sequence[Word], asked: set[str]) -> bool:
    """Of "Jupiter is the largest planet"."""
    after = [word.text for word in words[len(part) :]]
    echoed = sum(_stem(text) in asked for text in after if text not in _EMPTY)
    return words[0] is part[0] and after[:1] != [] and after[0] in _VERBS and echoed > 1


def _stem(word: str) -> str:
    return _ENDING.sub("", word)
