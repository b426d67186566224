"""Labels: is an answer right. Scores by wording or by a judge, and the files that hold them.

What reads scores is here; what makes them (`label`, `methods`, `chat`) is imported by who needs
it: it brings a string matcher and an HTTP client.
"""

from clew.hallucination.labels.answers import LabelledAnswer
from clew.hallucination.labels.normalize import normalize_answer
from clew.hallucination.labels.scores import (
    MatchedScores,
    Scores,
    read_scores,
    refuse_other_answers,
    require_scores,
)

__all__ = [
    "LabelledAnswer",
    "MatchedScores",
    "Scores",
    "normalize_answer",
    "read_scores",
    "refuse_other_answers",
    "require_scores",
]
