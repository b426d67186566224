"""Answers of yes or no, compared by what they mean."""

import re
from collections.abc import Sequence
from typing import Literal

from clew.hallucination.labels.normalize import normalize_words

Polarity = Literal["yes", "no", "both", "none"]

_YES_NO = {
    **dict.fromkeys(("yes", "true", "correct", "right", "yeah", "y", "yep"), True),
    **dict.fromkeys(("no", "false", "incorrect", "wrong", "nope", "n", "untrue"), False),
    **dict.fromkeys(("not true", "not correct", "not right"), False),
}
_SAID = re.compile(
    r"\b(?:(?P<no>(?:\w+n t|not) (?:true|correct|right|the case)|untrue|no(?! doubt)|nope|false"
    r"|incorrect|wrong)"
    r"|(?P<yes>not (?:false|incorrect|wrong|untrue)|yes|yeah|yep|true|correct|right|indeed"
    r"|certainly|definitely|absolutely|of course))\b"
)
_NEGATION = re.compile(r"\b(?:not|never|no|cannot|neither|nor|none|without|false)\b|n t\b")
_BOTH = re.compile(r"^(?:yes and no|both|it depends|that depends|maybe|perhaps|sometimes)\b")
# Repeated from the question.
_CHOICE = re.compile(r"\b(?:yes or no|true or false)\b")
_INSTRUCTION = re.compile(r"\b(?:answer|reply|respond)(?: with)?(?: only)? yes or no\b")
# Of the words of a sentence, those that must be in the question for it to repeat the question.
_LEAST_SHARED = 0.5


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
    said = [found.lastgroup for found in _SAID.finditer(plain) if _is_verdict(plain, found)]
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
