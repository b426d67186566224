"""A trained network, loaded from its best.safetensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.engine.folders import BEST
from clew.engine.model_files import Wanted, check_about, misfit, read_model
from clew.errors import InputError, StoreError
from clew.hallucination.detectors.registry import FORMS, NETWORKS
from clew.typed_json import Bounds, read_as

# The network's prefix inside the engine's Classifier.
_PREFIX = "network."
_WANTED: Wanted = {
    "settings.network": NETWORKS,
    "settings.network_config": dict,
    # A threshold below 0 calls every answer hallucinated.
    "best.threshold": Annotated[float, Bounds(least=-1, most=1)] | None,
    "best.metrics": dict[str, float | None],
}
# Where validation had no hallucinated answer to choose one by.
_USUAL_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True, repr=False)
class Detector:
    """A trained hallucination detector. `name` is its network's name, `config` its hyperparameters;
    `network` is in eval mode. An answer whose risk is above `threshold` counts as hallucinated;
    the threshold has the highest F1 on validation (0.5 if that is undefined). `metrics` are the
    validation metrics.
    """

    name: str
    network: nn.Module
    config: Any
    threshold: float
    metrics: dict[str, float | None]

    def __repr__(self) -> str:
        values = sum(one.numel() for one in self.network.parameters())
        auroc = self.metrics.get("auroc")
        reached = "" if auroc is None else f", validation AUROC {auroc:.3f}"
        return (
            f"Detector({self.name}: {values:,} parameters{reached}, threshold {self.threshold:.3f})"
        )

    @torch.no_grad()
    def score(self, batch: Any) -> Float[Tensor, " batch"]:
        """Predict the risk of each answer: the probability that it is hallucinated.

        Args:
            batch: A batch of samples on the network's device, of the kind that the network was
                trained on.

        Returns:
            Risks from 0 to 1, `[batch]`.

        Raises:
            InputError: The network does not read this kind of batch.
        """
        form = FORMS[NETWORKS[self.name].samples]
        if not form.is_batch(batch):
            raise InputError(
                f"{self.name} cannot read this kind of batch: open the samples with "
                f"{form.opened_with}."
            )
        answer = self.network(batch)
        logits = answer[0] if isinstance(answer, tuple) else answer
        return logits.float().sigmoid()


def _refuse_folder_of_networks(path: Path) -> None:
    """Raise StoreError for a folder that does not contain a network but several folders of them."""
    if (path / BEST).exists():
        return
    found = [str(path / name) for name in NETWORKS if (path / name / BEST).exists()]
    if found:
        raise StoreError(f'"{path}": give the folder of one network: {", ".join(found)}.')


def load_detector(path: str | Path, device: str | torch.device = "cpu") -> Detector:
    """Load a trained detector.

    Args:
        path: A best.safetensors that "clew train" wrote, or the folder that contains it.
        device: Where to put the network, such as "cuda".

    Returns:
        The detector, in eval mode.

    Raises:
        StoreError: The file is missing, damaged, or not a detector.
    """
    path = Path(path)
    _refuse_folder_of_networks(path)
    saved = read_model(path / BEST if path.is_dir() else path)
    check_about(
        saved.path,
        saved.about,
        _WANTED,
        what="a detector of this version of clew",
        advice='give a best.safetensors that "clew train" wrote',
    )
    settings, best = saved.about["settings"], saved.about["best"]
    kind = NETWORKS[settings["network"]]
    try:
        config = read_as(kind.config, settings["network_config"])
    except ValueError as error:
        raise misfit(saved.path, kind.name, error) from None
    network = saved.build(lambda: kind.build(config), name=kind.name, prefix=_PREFIX)
    threshold = best["threshold"]
    return Detector(
        name=kind.name,
        network=network.to(device).eval(),
        config=config,
        threshold=_USUAL_THRESHOLD if threshold is None else float(threshold),
        metrics=best["metrics"],
    )
