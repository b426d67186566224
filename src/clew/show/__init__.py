"""Pictures of captured answers: attention, the way through the layers, how sure the model was."""

from clew.show.answer import ShownAnswer
from clew.show.picture import Picture
from clew.show.run import ShowConfig, ShowResult, show_answer

__all__ = ["Picture", "ShowConfig", "ShowResult", "ShownAnswer", "show_answer"]
