"""Methods to score an answer against the accepted ones: alias match and word overlap (token F1,
ROUGE-L), where a correct answer in a long sentence scores low. Answers of yes or no are compared by
what they mean; answers that decline to answer are refused, not wrong."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from rapidfuzz.distance import LCSseq

from clew.hallucination.labels.alternatives import parse_list
from clew.hallucination.labels.answers import REFUSED
from clew.hallucination.labels.claims import Claims
from clew.hallucination.labels.content import find_content
from clew.hallucination.labels.normalize import (
    PATTERNS,
    answer_words,
    drop_articles,
    join_initials,
    normalize_answer,
    normalize_words,
    singular,
    split_words,
)
from clew.hallucination.labels.values import canonical_values, is_date, parse_quantity

Method = Literal["alias", "exact", "token-f1", "rouge-l"]
# With articles, without them, without the s of plurals; the last not where the question is about
# singular and plural.
_VIEWS = (0, 1, 2)
_ASKS_NUMBER = re.compile(r"\b(?:singular|plural|more than one)\b", re.IGNORECASE)
Polarity = Literal["yes", "no", "both", "none"]
_YES_NO = {
    **dict.fromkeys(("yes", "true", "correct", "right", "yeah", "y", "yep"), True),
    **dict.fromkeys(("no", "false", "incorrect", "wrong", "nope", "n", "untrue"), False),
    **dict.fromkeys(("not true", "not correct", "not right"), False),
}
_NEGATION = re.compile(r"\b(?:not|never|no|cannot|neither|nor|none|without|false)\b|n t\b")
_BOTH = re.compile(r"^(?:yes and no|both|it depends|that depends|maybe|perhaps|sometimes)\b")
# Repeated from the question.
_CHOICE = re.compile(r"\b(?:yes or no|true or false)\b")
_INSTRUCTION = re.compile(r"\b(?:answer|reply|respond)(?: with)?(?: only)? yes or no\b")
# Of the words of a sentence, those that must be in the question for it to repeat the question.
_LEAST_SHARED = 0.5
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
# Words before the refusal that are no answer: "Based on the given text, ...".
_MOST_BEFORE = 12
_FEW_WORDS = 3


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
    question ("Mexico City is in ..."). Of an accepted sentence, what it says beyond the question is
    enough: "Paris" for "The capital of France is Paris." Words alone cannot decide some cases: "It
    borders on Somalia" may match Somalia. `clew label` shows the doubtful ones.
    """
    polarity = accepted_polarity(accepted)
    if polarity is not None:
        return _match_polarity(answer, accepted, question, polarity)
    found = _match_words(answer, accepted, question)
    if not found.score and "/" in answer:
        other = _match_words(canonical_values(answer, day_first=True), accepted, question)
        found = other if other.score else found
    return found if found.score else _match_content(answer, accepted, question) or found


def _match_content(answer: str, accepted: Sequence[str], question: str) -> Match | None:
    """By the content of accepted sentences, each of whose parts has to be stated; None if none of
    them is mentioned."""
    worst = None
    for alias in accepted:
        parts = find_content(_canonical(alias), question)
        matches = [match_alias(answer, [part], question) for part in parts if part != alias]
        if matches and all(match.score for match in matches):
            return matches[0]._replace(accepted=alias)
        mentioned = (one for one in matches if one.reason != "absent" and not one.score)
        worst = worst or next((one._replace(accepted=alias) for one in mentioned), None)
    return worst


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


def accepted_polarity(accepted: Sequence[str]) -> Polarity | None:
    """The one polarity of the accepted answers; None if they are not yes or no."""
    found = {_YES_NO.get(normalize_words(alias)) for alias in accepted}
    if len(found) != 1 or None in found:
        return None
    return "yes" if found == {True} else "no"


def answer_polarity(answer: str, question: str) -> Polarity:
    """What an answer says to a question of yes or no: by its first word, or by whether it denies
    what the question says."""
    plain = _CHOICE.sub("", normalize_words(answer)).strip()
    if not plain or _BOTH.match(plain):
        return "both"
    said = [
        found.lastgroup for found in PATTERNS["said"].finditer(plain) if _is_verdict(plain, found)
    ]
    if said:
        return "both" if len({*said}) > 1 else "yes" if said[0] == "yes" else "no"
    asked = _INSTRUCTION.sub("", normalize_words(question))
    known = {*asked.split()}
    first = normalize_words(re.split(r"[.!?\n]", answer.strip(), maxsplit=1)[0]).split()
    shared = len([word for word in first if word in known])
    if not first or (asked and shared < _LEAST_SHARED * len(first)):
        return "none"
    is_denied = bool(_NEGATION.search(" ".join(first))) != bool(_NEGATION.search(asked))
    return "no" if is_denied else "yes"


def _is_verdict(plain: str, found: re.Match[str]) -> bool:
    """At the beginning, or as what is said of the statement; not "no" in "there is no"."""
    before = plain[: found.start()].rsplit(maxsplit=2)
    if not before:
        return True
    if found[0] in ("yes", "no"):
        is_said = before[-1] in ("is", "answer", "so", "therefore", "actually")
        is_last = found[0] == "yes" and found.end() == len(plain)
        return is_last or (is_said and before[-2:-1] != ["there"])
    if found[0] in ("right", "indeed", "of course"):
        return False
    if "n t " in found[0]:
        return True
    return before[-1] in ("is", "was", "s", "answer", "statement", "are")


def is_refusal(answer: str) -> bool:
    """Whether an answer declines to answer, and does not make a claim after that."""
    plain = normalize_words(answer)
    found = PATTERNS["declines"].search(plain)
    if found is not None:
        is_early = plain[: found.start()].count(" ") <= _MOST_BEFORE
        return is_early and not PATTERNS["claims"].search(plain[found.end() :])
    apology = PATTERNS["apologizes"].match(plain)
    if apology is None:
        return False
    # "Sorry, it is Rome" and "Sorry for the confusion. It is Rome" apologize, but answer.
    others = map(normalize_words, _SENTENCE.split(answer.strip())[1:])
    if any(other.count(" ") >= _FEW_WORDS for other in others):
        return False
    rest = plain[apology.end() :]
    return not PATTERNS["claims"].search(rest) and not re.match(
        r" (?:it|the|he|she|they|that)\b", rest
    )


def is_refusal_of(answer: str, accepted: str) -> bool:
    """Whether the sentence that declines also names the accepted answer: "I cannot verify that it
    is Paris" does not state it."""
    name = normalize_words(accepted)
    sentences = map(normalize_words, re.split(r"[.!?\n]|\bbut\b", answer))
    return any(PATTERNS["declines"].search(one) and name in one for one in sentences)


def accepts_refusal(accepted: Sequence[str]) -> bool:
    """Whether a question has no answer, as a text that does not contain it: its accepted answers
    are refusals."""
    return any(PATTERNS["declines"].search(normalize_words(alias)) for alias in accepted)


def offers_refusal(question: str) -> bool:
    """Whether a question names an answer for those who do not know: "answer 'not stated'"."""
    return bool(PATTERNS["offers"].search(normalize_words(question)))
