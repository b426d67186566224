"""The ways to score an answer against the accepted ones, by name."""

from collections.abc import Sequence
from typing import Literal

from clew.hallucination.labels.aliases import match_alias, match_exact
from clew.hallucination.labels.match import Match
from clew.hallucination.labels.overlap import match_sequence, match_tokens

Method = Literal["alias", "exact", "token-f1", "rouge-l"]


def match_answer(method: Method, answer: str, accepted: Sequence[str], question: str) -> Match:
    """The best score of the answer over the accepted ones, of which there is at least one."""
    if not answer.strip():
        return Match(0.0, accepted[0])
    if method == "alias":
        return match_alias(answer, accepted, question)
    others = {"exact": match_exact, "token-f1": match_tokens, "rouge-l": match_sequence}
    return others[method](answer, accepted)


def alias_score(answer: str, accepted: str | Sequence[str], *, question: str = "") -> float:
    """1.0 if the answer is an accepted one or states it in whole words, else 0.0.

    With the question, words that only repeat it do not count: "Mexico City is in Peru" is no
    right answer to "In which country is Mexico City?".
    """
    return match_answer("alias", answer, _as_list(accepted), question).score


def token_f1(answer: str, accepted: str | Sequence[str]) -> float:
    """The best F1 over words, 0 to 1, of the answer and an accepted one."""
    return match_answer("token-f1", answer, _as_list(accepted), "").score


def rouge_l(answer: str, accepted: str | Sequence[str]) -> float:
    """The best ROUGE-L F-measure, 0 to 1, of the answer and an accepted one."""
    return match_answer("rouge-l", answer, _as_list(accepted), "").score


def _as_list(accepted: str | Sequence[str]) -> Sequence[str]:
    return [accepted] if isinstance(accepted, str) else accepted
