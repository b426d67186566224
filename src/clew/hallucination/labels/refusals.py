"""Refusals: answers that decline to answer, rather than answer wrongly."""

import re
from collections.abc import Sequence

from clew.hallucination.labels.normalize import normalize_words

_TEXT = (
    r"(?:text|passage|context|article|question|document|paragraph|story|information|data|prompt)"
)
_MACHINE = r"(?:ai|chatbot|bot|artificial intelligence|language model|virtual assistant|assistant)"
# On normalized words: an apostrophe is a space.
_DECLINES = re.compile(
    r"\bi (?:do not|don t|didn t|did not|really don t|honestly don t) (?:actually |currently )?"
    r"(?:know|have|possess|recall|remember|understand|see)\b"
    r"|\bi (?:am|m) (?:\w+ )?(?:unable|not able|not aware|not familiar|not sure|unsure|not certain"
    r"|uncertain|not capable|incapable|unaware|unfamiliar)\b"
    r"|\bi (?:cannot|can t|can not|could not|couldn t|won t|will not|am not allowed)\b"
    r"(?! (?:stress|emphasize|wait))"
    r"|\bi have no (?:idea|information|knowledge|way|data|record)\b"
    rf"|\b(?:as|i am|i m) an? (?:\w+ ){{0,4}}{_MACHINE}\b"
    r"|\b(?:there is|there s|there was|i have|i found|we have) (?:no|not enough|insufficient)"
    r" (?:\w+ )?(?:information|data|evidence|answer|record|context|mention|details)\b"
    rf"|\b{_TEXT} (?:above |given |provided )?(?:does not|doesn t|did not|didn t|never|is not"
    r"|isn t) (?:\w+ )?(?:says?|states?|mentions?|provide|specify|contain|give|tell|include"
    r"|answer|clear|complete|indicate|list|name)\b"
    r"|\b(?:is|was|are|were) not (?:\w+ )?(?:mentioned|stated|specified|provided|given|available)"
    rf"(?:$| (?:in|by|from) (?:the|this) (?:\w+ )?{_TEXT}\b)"
    r"|\b(?:cannot|can t|can not|could not|couldn t) be (?:determined|answered|found|known|verified"
    r"|inferred)\b"
    r"|\b(?:it|this) is (?:not possible|impossible|unclear|unknown|not clear)\b"
    r"|\b(?:could you|can you|would you|please) (?:please )?(?:provide|clarify|rephrase|specify"
    r"|give|share|tell)\b"
    r"|^(?:not (?:mentioned|stated|specified|given|known|provided|available|sure"
    r"|enough information)|unknown|unanswerable|n a|no (?:answer|information|idea|comment)"
    r"|none given|does not (?:say|mention|state|specify|provide)"
    r"|doesn t (?:say|mention|state|specify|provide)|not in the (?:text|passage|context))\b"
)
_APOLOGIZES = re.compile(
    r"\b(?:i am|i m|we are|we re) (?:\w+ )?sorry\b|^sorry\b|\bi apologi[sz]e\b"
)
# A claim after all, whatever was said before it.
_CLAIMS = re.compile(
    r"\b(?:but|however|still|although)\b(?: \w+){0,3}? (?:i (?:think|believe|guess|would say|d say"
    r"|suspect|assume|know|can tell)|it (?:is|was|s|may|might|could|should|must|would)|its"
    r"|he (?:is|was)|she (?:is|was)|they (?:are|were)|that (?:is|would|s)|probably|possibly|perhaps"
    r"|maybe|my (?:best )?guess|the (?:\w+ ){1,6}(?:is|was|are|were))\b"
    r"|\b(?:i think|i believe|i guess|i would say|my (?:best )?guess|probably|it is likely"
    r"|it may be|it might be|it could be)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
# A question that offers a refusal as one of its answers: it is a claim then.
_OFFERS = re.compile(
    r"\b(?:answer|say|reply|write|respond)(?: with| by)? (?:not |unknown|unanswerable|i don t know"
    r"|none|no answer)"
)
# Words before the refusal that are no answer: "Based on the given text, ...".
_MOST_BEFORE = 12
_FEW_WORDS = 3


def is_refusal(answer: str) -> bool:
    """Whether an answer declines to answer, and does not make a claim after that."""
    plain = normalize_words(answer)
    found = _DECLINES.search(plain)
    if found is not None:
        is_early = plain[: found.start()].count(" ") <= _MOST_BEFORE
        return is_early and not _CLAIMS.search(plain[found.end() :])
    apology = _APOLOGIZES.match(plain)
    if apology is None:
        return False
    # "Sorry, it is Rome" and "Sorry for the confusion. It is Rome" apologize, but answer.
    others = map(normalize_words, _SENTENCE.split(answer.strip())[1:])
    if any(other.count(" ") >= _FEW_WORDS for other in others):
        return False
    rest = plain[apology.end() :]
    return not _CLAIMS.search(rest) and not re.match(r" (?:it|the|he|she|they|that)\b", rest)


def is_refusal_of(answer: str, accepted: str) -> bool:
    """Whether the sentence that declines also names the accepted answer: "I cannot verify that it
    is Paris" does not state it."""
    name = normalize_words(accepted)
    sentences = map(normalize_words, re.split(r"[.!?\n]|\bbut\b", answer))
    return any(_DECLINES.search(one) and name in one for one in sentences)


def accepts_refusal(accepted: Sequence[str]) -> bool:
    """Whether a question has no answer, as a text that does not contain it: its accepted answers
    are refusals."""
    return any(_DECLINES.search(normalize_words(alias)) for alias in accepted)


def offers_refusal(question: str) -> bool:
    """Whether a question names an answer for those who do not know: "answer 'not stated'"."""
    return bool(_OFFERS.search(normalize_words(question)))
