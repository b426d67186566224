"""Pictures of captured answers: token probabilities, attention, hidden states, risk."""

from clew.hallucination.answer_page.picture import Picture, ShownAnswer, Verdict
from clew.hallucination.answer_page.run import ShowConfig, ShowResult, show_answer

__all__ = [
    "Picture",
    "ShowConfig",
    "ShowResult",
    "ShownAnswer",
    "Verdict",
    "show_answer",
]
