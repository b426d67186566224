"""Methods to score an answer against the accepted ones: alias match and word overlap (token F1,
ROUGE-L), where a correct answer in a long sentence scores low."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rapidfuzz.distance import LCSseq

from clew.hallucination.labels.normalize import (
    ARTICLES,
    UNSPACED,
    answer_words,
    drop_articles,
    normalize_words,
)

_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|unlike)|n t|\b(?:rather|other) than"
    r"|\binstead of) (?:(?:in|at|on|by|from|of|to|with|called) )?"
    rf"(?:(?:{'|'.join(ARTICLES)}) )?$"
)
_ENDS_IN_NUMBER = re.compile(r"(?<![\w.])[\d.]+$")
_LARGER_NUMBER = re.compile(r" (?:hundred|thousand|million|billion|trillion)s?\b")
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}]")
_KATAKANA = re.compile(r"[\u30a0-\u30ff]")
Method = Literal["alias", "exact", "token-f1", "rouge-l"]


class Match(NamedTuple):
    """The result of scoring an answer: `score` from 0 (hallucinated) to 1 (correct); `accepted` is
    the best-matching accepted answer."""

    score: float
    accepted: str


def best_match(accepted: Sequence[str], score_of: Callable[[str], float]) -> Match:
    """The best score over the accepted answers; the first of them in case of a tie."""
    best = Match(0.0, accepted[0])
    for alias in accepted:
        score = score_of(alias)
        if score > best.score:
            best = Match(score, alias)
    return best


def match_exact(answer: str, accepted: Sequence[str]) -> Match:
    """1.0 if the answer is an accepted one after normalization."""
    plain = drop_articles(normalize_words(answer))
    return best_match(accepted, lambda alias: plain == drop_articles(normalize_words(alias)))


def match_alias(answer: str, accepted: Sequence[str], question: str = "") -> Match:
    """1.0 if the answer is an accepted one, or states it in whole words.

    Does not match: "not Paris"; "Paris or Rome"; "2" in "2 million" or in "1925"; one letter that
    is not the last word; words that only repeat the question ("Mexico City is in ..."). Words alone
    cannot decide some cases: "Paris, Rome, Oslo" matches each of the three, "New Mexico" matches
    Mexico, "It borders Somalia" matches Somalia; `clew label` shows the longest ones.
    """
    spelled = [normalize_words(alias) for alias in accepted]
    answered, asked = normalize_words(answer), normalize_words(question)
    # With articles too: the "a" in "Vitamin A is ..." looks like an article.
    views = [
        _View(answered, spelled, asked),
        _View(drop_articles(answered), list(map(drop_articles, spelled)), drop_articles(asked)),
    ]
    for place, alias in enumerate(accepted):
        if any(view.states(place) for view in views):
            return Match(1.0, alias)
    return Match(0.0, accepted[0])


class _View:
    """An answer, the accepted ones and the question, all normalized in the same way."""

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
        """Whether the answer names alternatives, as "Paris or Rome" does; "Burma or Myanmar" does
        not count, because both are accepted."""
        if before.endswith(" or "):
            return not before.removesuffix(" or ").endswith(tuple(self.aliases))
        return after.startswith(" or ") and not after[4:].startswith(tuple(self.aliases))

    def _repeats_question(self, before: str, alias: str, after: str) -> bool:
        """Whether the words are in the question too, with the word before or after them."""
        wider = [f"{before.split()[-1]} {alias}"] if before else []
        wider += [f"{alias} {after.split()[0]}"] if after else []
        return any(f" {words} " in self.question for words in wider)


def _places(answer: str, alias: str) -> Iterator[tuple[int, int]]:
    """Where the alias occurs as whole words."""
    start = answer.find(alias)
    while start >= 0:
        end = start + len(alias)
        if _is_edge(answer[max(0, start - 1) : start + 1]) and _is_edge(answer[end - 1 : end + 1]):
            yield start, end
        start = answer.find(alias, start + 1)


def _is_edge(pair: str) -> bool:
    """Whether a word can end between the two characters; a single character stands for the end of
    the text."""
    if len(pair) < 2 or " " in pair or _UNSPACED_CHARACTER.search(pair):
        return True
    # A Japanese loan word ends where its script does: パリ is in パリは, not in パリス.
    return bool(_KATAKANA.match(pair[0])) != bool(_KATAKANA.match(pair[1]))


def match_tokens(answer: str, accepted: Sequence[str]) -> Match:
    """F1 of the shared words in any order, as in SQuAD and TriviaQA."""
    mine = answer_words(answer)
    counts = Counter(mine)

    def score(theirs: list[str]) -> float:
        return _f_measure((counts & Counter(theirs)).total(), mine, theirs)

    return best_match(accepted, lambda alias: score(answer_words(alias)))


def match_sequence(answer: str, accepted: Sequence[str]) -> Match:
    """ROUGE-L: F-measure of the longest common subsequence of words."""
    mine = answer_words(answer)

    def score(theirs: list[str]) -> float:
        return _f_measure(LCSseq.similarity(mine, theirs), mine, theirs)

    return best_match(accepted, lambda alias: score(answer_words(alias)))


def _f_measure(shared: int, mine: Sequence[str], theirs: Sequence[str]) -> float:
    return 2 * shared / (len(mine) + len(theirs)) if shared else 0.0


def match_answer(method: Method, answer: str, accepted: Sequence[str], question: str) -> Match:
    """The best score of the answer over the accepted ones (at least one)."""
    if not answer.strip():
        return Match(0.0, accepted[0])
    if method == "alias":
        return match_alias(answer, accepted, question)
    others = {"exact": match_exact, "token-f1": match_tokens, "rouge-l": match_sequence}
    return others[method](answer, accepted)


def alias_score(answer: str, accepted: str | Sequence[str], *, question: str = "") -> float:
    """1.0 if the answer is an accepted one or contains it as whole words, else 0.0.

    With the question, words that only repeat it do not count: "Mexico City is in Peru" is not a
    correct answer to "In which country is Mexico City?".
    """
    return match_answer("alias", answer, _as_list(accepted), question).score


def token_f1(answer: str, accepted: str | Sequence[str]) -> float:
    """The best word-level F1, 0 to 1, of the answer and an accepted one."""
    return match_answer("token-f1", answer, _as_list(accepted), "").score


def rouge_l(answer: str, accepted: str | Sequence[str]) -> float:
    """The best ROUGE-L F-measure, 0 to 1, of the answer and an accepted one."""
    return match_answer("rouge-l", answer, _as_list(accepted), "").score


def _as_list(accepted: str | Sequence[str]) -> Sequence[str]:
    return [accepted] if isinstance(accepted, str) else accepted
