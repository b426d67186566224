"""Methods to score an answer against the accepted ones: alias match and word overlap (token F1,
ROUGE-L), where a correct answer in a long sentence scores low."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from rapidfuzz.distance import LCSseq

from clew.hallucination.labels.alternatives import parse_list
from clew.hallucination.labels.answers import REFUSED
from clew.hallucination.labels.claims import Claims
from clew.hallucination.labels.normalize import (
    answer_words,
    drop_articles,
    join_initials,
    normalize_answer,
    normalize_words,
)
from clew.hallucination.labels.polarity import Polarity, accepted_polarity, answer_polarity
from clew.hallucination.labels.refusals import (
    accepts_refusal,
    is_refusal,
    is_refusal_of,
    offers_refusal,
)
from clew.hallucination.labels.values import canonical_values, is_date, parse_quantity
from clew.hallucination.labels.words import singular, split_words

Method = Literal["alias", "exact", "token-f1", "rouge-l"]


class Match(NamedTuple):
    """The result of scoring an answer: `score` from 0 (hallucinated) to 1 (correct); `accepted` is
    the best-matching accepted answer; `reason` says why, and is "refused" for an answer that is
    neither."""

    score: float
    accepted: str
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        return self.reason == REFUSED


def best_match(accepted: Sequence[str], score_of: Callable[[str], float]) -> Match:
    """The best score over the accepted answers; the first of them in case of a tie."""
    best = Match(0.0, accepted[0])
    for alias in accepted:
        score = score_of(alias)
        if score > best.score:
            best = Match(score, alias)
    return best


def match_exact(answer: str, accepted: Sequence[str]) -> Match:
    """1.0 if the answer is an accepted one after normalization; numbers and dates are values."""
    plain = _plain(answer)
    return best_match(accepted, lambda alias: plain == _plain(alias))


def _plain(text: str) -> str:
    return normalize_answer(_canonical(text))


def _canonical(text: str) -> str:
    return canonical_values(join_initials(text))


def match_alias(answer: str, accepted: Sequence[str], question: str = "") -> Match:
    """1.0 if the answer is an accepted one, or states it in whole words; numbers and dates are
    compared as values, and yes and no by what they mean.

    Does not match: "not Paris"; "Paris or Rome" and longer lists, unless the question asks for
    several; "Paris, but some say Rome"; "Paris. No, wait: Rome"; "2" in "2 million" or in "1925";
    one letter that is not the last word; "New Mexico" for Mexico; words that only repeat the
    question ("Mexico City is in ..."). Words alone cannot decide some cases: "It borders on
    Somalia" may match Somalia. `clew label` shows the doubtful ones.
    """
    polarity = accepted_polarity(accepted)
    if polarity is not None:
        return _match_polarity(answer, accepted, question, polarity)
    found = _match_words(answer, accepted, question)
    if found.score or "/" not in answer:
        return found
    other = _match_words(canonical_values(answer, day_first=True), accepted, question)
    return other if other.score else found


def _match_polarity(answer: str, accepted: Sequence[str], question: str, wanted: Polarity) -> Match:
    said = answer_polarity(answer, question)
    if said == wanted:
        return Match(1.0, accepted[0], f"says {said}")
    reasons = {"both": "contradicted", "none": "absent"}
    return Match(0.0, accepted[0], reasons.get(said, f"says {said}"))


def _match_words(answer: str, accepted: Sequence[str], question: str) -> Match:
    """In three views of the words. With articles too: the "a" in "Vitamin A is ..." looks like an
    article."""
    spelled = [_spell(alias) for alias in accepted]
    said = _spell_text(answer)
    worst = None
    for view in _VIEWS[:2] if _ASKS_NUMBER.search(question) else _VIEWS:
        aliases = [texts[view] for texts in spelled]
        if said[view] in aliases:
            return Match(1.0, accepted[aliases.index(said[view])], "equal")
        if not any(alias in said[view] for alias in aliases):
            continue
        found = _open_claims(answer, aliases, question, view).judge()
        if found is not None and found.problem is None:
            return Match(1.0, accepted[found.place], "stated")
        worst = worst or found
    if worst is not None:
        return Match(0.0, accepted[worst.place], worst.problem or "absent")
    return _match_values(answer, accepted, question) or Match(0.0, accepted[0], "absent")


# With articles, without them, without the s of plurals; the last not where the question is about
# singular and plural.
_VIEWS = (0, 1, 2)
_ASKS_NUMBER = re.compile(r"\b(?:singular|plural|more than one)\b", re.IGNORECASE)


def _spell_text(text: str) -> tuple[str, str, str]:
    """A text with articles, without them, and without the s of plurals."""
    plain = normalize_words(_canonical(text))
    short = drop_articles(plain)
    return plain, short, " ".join(map(singular, short.split()))


_spell = lru_cache(maxsize=1 << 14)(_spell_text)


def _open_claims(answer: str, aliases: Sequence[str], question: str, view: int) -> Claims:
    words, asked = (split_words(_canonical(text)) for text in (answer, question))
    if view:
        words, asked = words.without_articles(), asked.without_articles()
    if view == 2:
        words, asked = words.singular(), asked.singular()
    return Claims(words, aliases, asked)


def _match_values(answer: str, accepted: Sequence[str], question: str) -> Match | None:
    """An accepted quantity in another unit, or without it; an accepted list in another order."""
    for alias in accepted:
        value = _read_value(alias)
        if value is None:
            continue
        claims = _open_claims(answer, [], question, 1)
        if claims.states_quantity(value) or claims.states_year(value):
            return Match(1.0, alias, "same value")
        if claims.states_list(value):
            return Match(1.0, alias, "same list")
    return None


@lru_cache(maxsize=1 << 14)
def _read_value(alias: str) -> str | None:
    """An accepted answer in canonical form, if it is a quantity, a date or a list."""
    value = canonical_values(alias)
    is_value = parse_quantity(value) or is_date(value) or parse_list(value)
    return value if is_value else None


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
    """The best score of the answer over the accepted ones (at least one). An answer that declines
    to answer is refused, unless that is what is accepted."""
    if not answer.strip():
        return Match(0.0, accepted[0], "empty")
    declines = is_refusal(answer)
    if accepts_refusal(accepted):
        return Match(float(declines), accepted[0], "declines" if declines else "absent")
    found = _match_by(method, answer, accepted, question)
    if not declines or offers_refusal(question):
        return found
    if method != "alias" or not found.score or is_refusal_of(answer, found.accepted):
        return Match(0.0, found.accepted, REFUSED)
    return found


def _match_by(method: Method, answer: str, accepted: Sequence[str], question: str) -> Match:
    if method == "alias":
        return match_alias(answer, accepted, question)
    others = {"exact": match_exact, "token-f1": match_tokens, "rouge-l": match_sequence}
    found = others[method](answer, accepted)
    return found._replace(reason="equal" if found.score == 1 else f"overlap {found.score:.2f}")


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
