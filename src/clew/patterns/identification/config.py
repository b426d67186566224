"""What is identified, with which model, and where the results go."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.engine.planning.hardware import look_at_machine
from clew.errors import InputError

_MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class IdentifyConfig:
    """`photos` is a folder or one photo. Photos whose likeliest class has a probability below
    `threshold` are doubtful. `thumbnails` is how many photos the page and the contact sheets show.
    `copy_to` gets copies of the photos, a folder a class."""

    photos: Path
    model: Path
    output_dir: Path
    top_k: int = 3
    threshold: float = 0.6
    copy_to: Path | None = None
    thumbnails: int = 500
    batch_size: int = 64
    workers: int = field(default_factory=lambda: min(_MOST_WORKERS, look_at_machine().cores))
    device: str | None = None

    def __post_init__(self) -> None:
        check_top_k(self.top_k)
        check_threshold(self.threshold)
        if self.thumbnails < 0:
            raise InputError("give 0 or more.", setting="thumbnails", value=self.thumbnails)

    def as_settings(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """What identified.json says of how it was made."""
        return {
            "folder": str(self.photos.resolve()),
            "model": str(self.model.resolve()),
            "threshold": self.threshold,
            "top_k": min(self.top_k, len(classes)),
            "copied_to": self.copy_to and str(self.copy_to.resolve()),
            "classes": list(classes),
        }


def check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise InputError(
            "give 1 or more: so many classes are told of a photo.", setting="top_k", value=top_k
        )


def check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise InputError(
            "it must lie between 0 and 1. Photos whose likeliest class is less probable than that "
            "are doubtful.",
            setting="threshold",
            value=threshold,
        )
