"""What a check of a model found on this machine, in the user's cache: later runs need not repeat
it."""

import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import platformdirs
import torch
import transformers

from clew.base.typed_json import read_as
from clew.hallucination.llm.device_map import is_spread, model_device
from clew.hallucination.llm.models import fingerprint
from clew.storage.reading import hash_text, read_json
from clew.storage.writing import replace_json
from clew.version import __version__

# Smaller models are checked in no time.
_FEWEST_PARAMETERS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Which ways of passing tokens gave the values of plain passes, and the difference."""

    graphs: bool
    packs: bool
    error: float


@dataclass(frozen=True)
class CheckMemory:
    """The file with what is known of a model on this machine, with these versions."""

    path: Path

    @classmethod
    def of_model(cls, model: Any, folder: Path | None = None) -> Self | None:
        """None for a model that is not worth it."""
        few = sum(one.numel() for one in model.parameters()) < _FEWEST_PARAMETERS
        if few or is_spread(model):
            return None
        device = model_device(model)
        on_gpu = device.type == "cuda"
        about = (
            *(fingerprint(model), str(next(model.parameters()).dtype), model.config.model_type),
            torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            torch.backends.cpu.get_cpu_capability(),
            *(__version__, torch.__version__, transformers.__version__),
        )
        folder = folder or Path(platformdirs.user_cache_dir("clew"), "checks")
        return cls(folder / f"{hash_text(' '.join(about))[:32]}.json")

    @property
    def basis(self) -> Path:
        """The file with the basis that was fitted last."""
        return self.path.with_suffix(".basis.arrow")

    def recall(self) -> Checked | None:
        try:
            return read_as(Checked, read_json(self.path))
        except (OSError, ValueError):  # none yet, or not readable: check again
            return None

    def keep(self, found: Checked) -> None:
        with suppress(OSError):  # a cache that cannot be written to only costs time
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_json(self.path, asdict(found))
