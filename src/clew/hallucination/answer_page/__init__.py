"""Pictures of captured answers: attention, the way through the layers, how sure the model was."""

from clew.hallucination.answer_page.picture import Picture, ShownAnswer
from clew.hallucination.answer_page.run import ShowConfig, ShowResult, show_answer

__all__ = ["Picture", "ShowConfig", "ShowResult", "ShownAnswer", "show_answer"]
