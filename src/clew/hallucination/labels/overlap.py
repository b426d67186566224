"""How much of an accepted answer's wording an answer has: token F1 and ROUGE-L.

Both are F-measures over words: a right answer in a long sentence scores low.
"""

from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

from clew.hallucination.labels.match import Match, best_match
from clew.hallucination.labels.normalize import answer_words


def match_tokens(answer: str, accepted: Sequence[str]) -> Match:
    """F1 of the words that both have, in any order, as SQuAD and TriviaQA count it."""
    mine = answer_words(answer)
    counts = Counter(mine)

    def score(theirs: list[str]) -> float:
        return _f_measure((counts & Counter(theirs)).total(), mine, theirs)

    return best_match(accepted, lambda alias: score(answer_words(alias)))


def match_sequence(answer: str, accepted: Sequence[str]) -> Match:
    """ROUGE-L: F-measure of the most words that both have in the same order, gaps allowed."""
    mine = answer_words(answer)

    def score(theirs: list[str]) -> float:
        return _f_measure(LCSseq.similarity(mine, theirs), mine, theirs)

    return best_match(accepted, lambda alias: score(answer_words(alias)))


def _f_measure(shared: int, mine: Sequence[str], theirs: Sequence[str]) -> float:
    return 2 * shared / (len(mine) + len(theirs)) if shared else 0.0
