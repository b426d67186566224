"""Labels: whether an answer is correct. Scores by text matching or by a judge, and their files.
Reading scores is here; the modules that compute them (`label`, `methods`, `chat`) are imported
where needed, since they load a string matcher and an HTTP client.
"""

from clew.hallucination.labels.answers import LabeledAnswer
from clew.hallucination.labels.normalize import normalize_answer
from clew.hallucination.labels.scores import (
    MatchedScores,
    Scores,
    read_scores,
    refuse_other_answers,
    require_scores,
)

__all__ = [
    "LabeledAnswer",
    "MatchedScores",
    "Scores",
    "normalize_answer",
    "read_scores",
    "refuse_other_answers",
    "require_scores",
]
