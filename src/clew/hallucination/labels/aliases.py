"""Alias match: does an answer, which may be a whole sentence, state an accepted answer.

What words alone cannot tell stays: "Paris, Rome, Oslo" is right for each of the three, "New
Mexico" for Mexico, "It borders Somalia" for Somalia; `clew label` shows the longest such answers.
"""

import re
from collections.abc import Iterator, Sequence

from clew.hallucination.labels.match import Match, best_match
from clew.hallucination.labels.normalize import ARTICLES, UNSPACED, drop_articles, normalize_words

_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|unlike)|n t|\b(?:rather|other) than"
    r"|\binstead of) (?:(?:in|at|on|by|from|of|to|with|called) )?"
    rf"(?:(?:{'|'.join(ARTICLES)}) )?$"
)
_ENDS_IN_NUMBER = re.compile(r"(?<![\w.])[\d.]+$")
_LARGER_NUMBER = re.compile(r" (?:hundred|thousand|million|billion|trillion)s?\b")
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}]")
_KATAKANA = re.compile(r"[\u30a0-\u30ff]")


def match_exact(answer: str, accepted: Sequence[str]) -> Match:
    """1.0 if the answer is an accepted one after normalisation."""
    plain = drop_articles(normalize_words(answer))
    return best_match(accepted, lambda alias: plain == drop_articles(normalize_words(alias)))


def match_alias(answer: str, accepted: Sequence[str], question: str = "") -> Match:
    """1.0 if the answer is an accepted one, or states it in whole words.

    Not counted: "not Paris"; "Paris or Rome"; "2" in "2 million" or in "1925"; one letter that is
    not the last word; words that only repeat the question ("Mexico City is in ...").
    """
    spelled = [normalize_words(alias) for alias in accepted]
    answered, asked = normalize_words(answer), normalize_words(question)
    # With articles too: the "a" of "Vitamin A is ..." is none, but looks like one.
    views = [
        _View(answered, spelled, asked),
        _View(drop_articles(answered), list(map(drop_articles, spelled)), drop_articles(asked)),
    ]
    for place, alias in enumerate(accepted):
        if any(view.states(place) for view in views):
            return Match(1.0, alias)
    return Match(0.0, accepted[0])


class _View:
    """An answer, the accepted ones and the question, all normalised the same way."""

    def __init__(self, answer: str, aliases: list[str], question: str) -> None:
        self.answer = answer
        self.aliases = aliases
        self.question = f" {question} "

    def states(self, place: int) -> bool:
        alias = self.aliases[place]
        if alias == self.answer:
            return True
        return alias in self.answer and any(
            self._counts(start, end) for start, end in _places(self.answer, alias)
        )

    def _counts(self, start: int, end: int) -> bool:
        before, alias, after = self.answer[:start], self.answer[start:end], self.answer[end:]
        if len(alias) == 1 and not alias.isdigit() and after:
            return False
        if _ENDS_IN_NUMBER.search(alias) and _LARGER_NUMBER.match(after):
            return False
        if _DENIED.search(before) or self._is_one_of_several(before, after):
            return False
        return not self._repeats_question(before, alias, after)

    def _is_one_of_several(self, before: str, after: str) -> bool:
        """ "Paris or Rome"; but not "Burma or Myanmar", where both are accepted."""
        if before.endswith(" or "):
            return not before.removesuffix(" or ").endswith(tuple(self.aliases))
        return after.startswith(" or ") and not after[4:].startswith(tuple(self.aliases))

    def _repeats_question(self, before: str, alias: str, after: str) -> bool:
        """Whether the words stand in the question too, with the word before or after them."""
        wider = [f"{before.split()[-1]} {alias}"] if before else []
        wider += [f"{alias} {after.split()[0]}"] if after else []
        return any(f" {words} " in self.question for words in wider)


def _places(answer: str, alias: str) -> Iterator[tuple[int, int]]:
    """Where the alias stands as whole words."""
    start = answer.find(alias)
    while start >= 0:
        end = start + len(alias)
        if _is_edge(answer[max(0, start - 1) : start + 1]) and _is_edge(answer[end - 1 : end + 1]):
            yield start, end
        start = answer.find(alias, start + 1)


def _is_edge(pair: str) -> bool:
    """Whether a word can end between the two characters (one alone: the end of the text)."""
    if len(pair) < 2 or " " in pair or _UNSPACED_CHARACTER.search(pair):
        return True
    # A Japanese loan word ends where its script does: パリ is in パリは, not in パリス.
    return bool(_KATAKANA.match(pair[0])) != bool(_KATAKANA.match(pair[1]))
