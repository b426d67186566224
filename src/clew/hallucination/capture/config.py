"""What the user asks of a capture, checked once."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from clew.errors import InputError
from clew.hallucination.capture.embedded import EMBEDDED_NAME
from clew.hallucination.capture.models import Quantize
from clew.hallucination.capture.prompts import require_placeholder
from clew.hallucination.capture.stopping import Cut
from clew.hallucination.traces.loader import DEFAULT_TRACES_DIR
from clew.hallucination.traces.schema import Keep
from clew.storage import Part


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """The settings of `clew extract`; the command's options have the same names."""

    model: str = EMBEDDED_NAME
    questions: str = "facts"
    out: Path = Path(DEFAULT_TRACES_DIR)
    num_samples: int | None = None
    batch_size: int = 500
    generation_batch: int | None = None
    max_new_tokens: int = 32
    num_beams: int = 1
    prompt: str | None = None
    chat: bool | None = None
    cut: Cut = "sentence"
    keep: Keep = "compact"
    node_dim: int = 64
    edges_per_token: int = 16
    dtype: str = "auto"
    device: str = "auto"
    quantize: Quantize | None = None
    samples: int = 0
    sample_temperature: float = 1.0
    part: Part = field(default_factory=Part)

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_new_tokens", "num_beams", "node_dim", "edges_per_token"):
            self._require_positive(name, getattr(self, name))
        for name in ("num_samples", "generation_batch"):
            if getattr(self, name) is not None:
                self._require_positive(name, getattr(self, name))
        if self.samples < 0:
            raise InputError(f"--samples {self.samples} makes no sense: use 0 or more.")
        if not 0 < self.sample_temperature < math.inf:
            raise InputError(
                f"--sample-temperature {self.sample_temperature:g} makes no sense: use a number "
                f"above 0; 1 draws answers as likely as the model finds them."
            )
        if self.prompt is not None:
            require_placeholder(self.prompt)
        self._require_one_of("cut", self.cut, ("sentence", "line", "none"))
        self._require_one_of("keep", self.keep, ("compact", "full"))

    def _require_positive(self, name: str, value: int) -> None:
        if value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} makes no sense: use 1 or more.")

    def _require_one_of(self, name: str, value: str, choices: tuple[str, ...]) -> None:
        if value not in choices:
            raise InputError(f'--{name} "{value}" is not known: use {" or ".join(choices)}.')
