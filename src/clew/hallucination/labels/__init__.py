"""Labels: whether an answer is correct. Scores by text matching or by a judge, and their files.
Reading scores is here; the modules that compute them (`label`, `methods`, `chat`) are imported
where needed, since they load a string matcher and an HTTP client.
"""

from clew.hallucination.labels.answers import LabeledAnswer
from clew.hallucination.labels.normalize import normalize_answer
from clew.hallucination.labels.scores import (
    HigherIs,
    MatchedScores,
    Refused,
    Scores,
    SpanLabels,
    read_scores,
    read_span_labels,
    refuse_other_answers,
    require_scores,
)
from clew.hallucination.labels.table import spans_beside

__all__ = [
    "HigherIs",
    "LabeledAnswer",
    "MatchedScores",
    "Refused",
    "Scores",
    "SpanLabels",
    "normalize_answer",
    "read_scores",
    "read_span_labels",
    "refuse_other_answers",
    "require_scores",
    "spans_beside",
]
