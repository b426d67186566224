"""Labels: is an answer right. Scores by wording or by a judge, and the files that hold them."""

from clew.hallucination.labels.answers import LabelledAnswer
from clew.hallucination.labels.chat import ChatConfig, JudgeError
from clew.hallucination.labels.label import LabelResult, label_store
from clew.hallucination.labels.methods import Method, alias_score, rouge_l, token_f1
from clew.hallucination.labels.normalize import normalize_answer
from clew.hallucination.labels.scores import (
    MatchedScores,
    Scores,
    read_scores,
    refuse_other_answers,
    require_scores,
)

__all__ = [
    "ChatConfig",
    "JudgeError",
    "LabelResult",
    "LabelledAnswer",
    "MatchedScores",
    "Method",
    "Scores",
    "alias_score",
    "label_store",
    "normalize_answer",
    "read_scores",
    "refuse_other_answers",
    "require_scores",
    "rouge_l",
    "token_f1",
]
