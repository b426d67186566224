"""What a picture shows: one answer or two, the layer, and what they are compared with."""

from dataclasses import dataclass

from clew.hallucination.answer_page.answer import ShownAnswer
from clew.hallucination.answer_page.latent import Latent


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One answer, or two of them side by side, ready to be drawn."""

    store: str
    model: str | None
    answers: tuple[ShownAnswer, ...]
    layer: int
    layers: int
    latent: Latent | None
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        numbers = " and ".join(str(answer.number) for answer in self.answers)
        return f"Answer{'s' if len(self.answers) > 1 else ''} {numbers}"

    @property
    def origin(self) -> str:
        model = f", captured from {self.model}" if self.model else ""
        return f"{self.store}{model}"
