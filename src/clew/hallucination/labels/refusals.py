"""Refusals: answers that decline to answer, and answers of yes or no."""

import re
from collections.abc import Sequence
from typing import Literal

from clew.hallucination.labels.normalize import normalize_words

# On normalized words: an apostrophe is a space.
_REFUSAL = re.compile(
    r"\bi (?:do not|don t|didn t|did not|really don t|honestly don t) (?:actually |currently )?"
    r"(?:know|have|possess|recall|remember|understand|see)\b"
    r"|\bi (?:am|m) (?:\w+ )?(?:unable|not able|not aware|not familiar|not sure|unsure|not certain"
    r"|uncertain|not capable|incapable|unaware|unfamiliar)\b"
    r"|\bi (?:cannot|can t|can not|could not|couldn t|won t|will not|am not allowed)\b"
    r"(?! (?:stress|emphasize|wait))"
    r"|\bi have no (?:idea|information|knowledge|way|data|record)\b"
    r"|\b(?:i am|i m|we are|we re) (?:\w+ )?sorry\b|^sorry\b|\bi apologi[sz]e\b"
    r"|\bas an? (?:ai|artificial intelligence|large language model|language model|assistant)\b"
    r"|\b(?:there is|there s|there was|i have|i found|we have) (?:no|not enough|insufficient)"
    r" (?:\w+ )?(?:information|data|evidence|answer|record|context|mention|details)\b"
    r"|\b(?:text|passage|context|article|question|document|paragraph|story) (?:above |given "
    r"|provided )?(?:does not|doesn t|did not|didn t|never|is not|isn t)"
    r" (?:\w+ )?(?:say|says|state|states|mention|mentions|provide|specify|contain|give|tell|include"
    r"|answer|clear|complete|indicate|list|name)\b"
    r"|\b(?:is|was|are|were) not (?:\w+ )?(?:mentioned|stated|specified|provided|given|known|clear"
    r"|available)(?: |$)(?!for )"
    r"|\b(?:cannot|can t|can not|could not|couldn t) be (?:determined|answered|found|known|verified"
    r"|inferred)\b"
    r"|\b(?:it|this) is (?:not possible|impossible|unclear|unknown|not clear)\b"
    r"|\b(?:could you|can you|would you|please) (?:please )?(?:provide|clarify|rephrase|specify"
    r"|give|share|tell)\b"
    r"|^(?:not (?:mentioned|stated|specified|given|known|provided|available|sure"
    r"|enough information)|unknown|unanswerable|n a|no (?:answer|information|idea|comment)"
    r"|none given|not in the (?:text|passage|context))\b"
)
# A claim after all, whatever was said before it.
_CLAIM_AFTER = re.compile(
    r"\b(?:but|however|still|although)\b(?: \w+){0,3}? (?:i (?:think|believe|guess|would say|d say"
    r"|suspect|assume|know|can tell)|it (?:is|was|s|may|might|could|should|must|would)|its"
    r"|he (?:is|was)|she (?:is|was)|they (?:are|were)|that (?:is|would|s)|probably|possibly|perhaps"
    r"|maybe|my (?:best )?guess|the (?:\w+ ){1,6}(?:is|was|are|were))\b"
    r"|\b(?:i think|i believe|i guess|i would say|my (?:best )?guess|probably|it is likely"
    r"|it may be|it might be|it could be)\b"
)
_APOLOGY_ONLY = re.compile(r"^(?:(?:i am|i m) (?:\w+ )?sorry|sorry|i apologi[sz]e)\b")
_YES_NO = {
    **dict.fromkeys(("yes", "true", "correct", "right", "yeah", "y", "yep"), True),
    **dict.fromkeys(("no", "false", "incorrect", "wrong", "nope", "n", "not true"), False),
}
_ASKS_YES_NO = re.compile(
    r"^(?:(?:true or false|yes or no) )?(?:is|are|was|were|do|does|did|can|could|has|have|had|will"
    r"|would|should|may|must)\b"
)
_SAID = re.compile(
    r"\b(?:(?P<no>not (?:true|correct|right|the case)|untrue|no|nope|false|incorrect|wrong)"
    r"|(?P<yes>yes|yeah|yep|true|correct|right|indeed|certainly|definitely|absolutely|of course))\b"
)
_NEGATION = re.compile(r"\b(?:not|never|no|cannot|neither|nor|none|without|false)\b|n t\b")
_BOTH = re.compile(r"^(?:yes and no|both|it depends|that depends|maybe|perhaps|sometimes)\b")
_FEWEST_SHARED = 0.5


def is_refusal(answer: str) -> bool:
    """Whether an answer declines to answer, and does not make a claim after that."""
    plain = normalize_words(answer)
    found = _REFUSAL.search(plain)
    if found is None:
        return False
    rest = plain[found.end() :]
    if _CLAIM_AFTER.search(rest):
        return False
    if not _APOLOGY_ONLY.match(found[0]):
        return _is_whole(plain, found)
    # "Sorry, it is Rome" apologizes, but answers.
    return bool(_REFUSAL.search(rest)) or len(rest.split()) <= 4 or " not " in f" {rest} "


def is_refusal_of(answer: str, accepted: str) -> bool:
    """Whether the sentence that declines also names the accepted answer: "I cannot verify that it
    is Paris" does not state it."""
    name = normalize_words(accepted)
    sentences = map(normalize_words, re.split(r"[.!?\n]|\bbut\b", answer))
    return any(_REFUSAL.search(one) and name in one for one in sentences)


def _is_whole(plain: str, found: re.Match[str]) -> bool:
    """Whether the refusal is what the answer says, rather than a remark after an answer."""
    before = plain[: found.start()].split()
    return len(before) <= 12


def accepts_refusal(accepted: Sequence[str]) -> bool:
    """Whether a question has no answer, as a text that does not contain it: its accepted answers
    are refusals."""
    return any(is_refusal(alias) for alias in accepted)


Polarity = Literal["yes", "no", "both", "none"]


def accepted_polarity(accepted: Sequence[str]) -> Polarity | None:
    """The one polarity of the accepted answers; None if they are not yes or no."""
    found = {_YES_NO.get(normalize_words(alias)) for alias in accepted}
    if len(found) != 1 or None in found:
        return None
    return "yes" if found == {True} else "no"


def answer_polarity(answer: str, question: str) -> Polarity:
    """What an answer says to a question of yes or no: by its first word, or by whether it denies
    what the question says."""
    plain, asked = normalize_words(answer), normalize_words(question)
    if _BOTH.match(plain):
        return "both"
    said = [m.lastgroup for m in _SAID.finditer(plain) if _stands_alone(plain, m)]
    if said:
        return "both" if len({*said}) > 1 else "yes" if said[0] == "yes" else "no"
    first = _first_sentence(answer)
    asked_words = {*asked.split()}
    words = normalize_words(first).split()
    shared = sum(word in asked_words for word in words)
    if not words or (asked and shared < _FEWEST_SHARED * len(words)):
        return "none"
    is_denied = bool(_NEGATION.search(" ".join(words))) != bool(_NEGATION.search(asked))
    return "no" if is_denied else "yes"


def _stands_alone(plain: str, found: re.Match[str]) -> bool:
    """At the beginning, or as what is said of the statement; not "no" in "there is no"."""
    before = plain[: found.start()].split()
    if not before:
        return True
    if found[0] in ("yes", "no") and before[-1] in ("is", "answer", "so", "therefore", "actually"):
        return before[-2:-1] != ["there"]
    return found[0] not in ("yes", "no", "right", "indeed", "of course") and before[-1] in (
        *("is", "was", "s", "answer", "statement", "are"),
    )


def _first_sentence(answer: str) -> str:
    return re.split(r"[.!?\n]", answer.strip(), maxsplit=1)[0]
