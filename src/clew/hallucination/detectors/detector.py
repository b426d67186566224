"""A trained network ready for use, from its best.safetensors alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.engine.checkpoint import read_weights
from clew.errors import InputError, StoreError
from clew.hallucination.detectors.registry import FORMS, NETWORKS

# The network's place inside the engine's Classifier.
_PREFIX = "network."


@dataclass(frozen=True, kw_only=True)
class Detector:
    """`threshold` is the probability from which on an answer is called made up: where F1 was
    greatest on validation. `metrics` are those of that validation."""

    name: str
    network: nn.Module
    config: Any
    threshold: float
    metrics: dict[str, float | None]

    @torch.no_grad()
    def score(self, batch: Any) -> Float[Tensor, " batch"]:
        """The probability that each answer is made up; the batch lies on the network's device.
        Raises InputError for a batch of other samples than the network reads."""
        form = FORMS[NETWORKS[self.name].samples]
        if not form.is_batch(batch):
            raise InputError(
                f"the batch is not of the samples that {self.name} reads: open them with "
                f"{form.opened_with}."
            )
        answer = self.network(batch)
        logits = answer[0] if isinstance(answer, tuple) else answer
        return logits.float().sigmoid()


def load_detector(path: str | Path, device: str | torch.device = "cpu") -> Detector:
    """Take a best.safetensors, or the folder that it is in. Raises StoreError when it is not that
    of a detector."""
    path = Path(path)
    path = path / "best.safetensors" if path.is_dir() else path
    tensors, about = read_weights(path)
    settings = about.get("settings", {})
    kind = NETWORKS.get(settings.get("network"))
    if kind is None or "best" not in about:
        raise StoreError(
            f'"{path}" holds no detector of this clew (its network is '
            f'{settings.get("network")!r}): give a best.safetensors that "clew train" wrote.'
        )
    config = kind.config(**settings["network_config"])
    network = kind.build(config)
    network.load_state_dict({name.removeprefix(_PREFIX): value for name, value in tensors.items()})
    return Detector(
        name=kind.name,
        network=network.to(device).eval(),
        config=config,
        threshold=about["best"]["threshold"],
        metrics=about["best"]["metrics"],
    )
