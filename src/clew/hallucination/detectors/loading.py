"""Load a detector: a folder that `clew compare` or `clew train` kept, or the best.safetensors of a
trained network."""

from pathlib import Path

import torch

from clew.base.errors import StoreError
from clew.base.typed_json import read_as
from clew.base.urls import as_path
from clew.engine.folders import BEST
from clew.engine.model_files import Wanted, check_about, misfit, read_model
from clew.engine.state import Threshold
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.kept import DETECTOR_JSON, read_detector
from clew.hallucination.detectors.registry import NETWORKS
from clew.storage.working_copy import working_copy

# The folder of the detector that a comparison or a training keeps.
KEPT = "detector"
# The network's prefix inside the engine's Classifier.
_PREFIX = "network."
_WANTED: Wanted = {
    "settings.network": NETWORKS,
    "settings.network_config": dict,
    "best.threshold": Threshold | None,
    "best.metrics": dict[str, float | None],
}
# Where validation had no hallucinated answer to choose one by.
_USUAL_THRESHOLD = 0.5


def load_detector(path: str | Path, device: str | torch.device = "cpu") -> Detector:
    """Load a hallucination detector.

    Args:
        path: The folder "detector" that "clew compare" or "clew train" wrote (or a comparison that
            contains it), or a best.safetensors of "clew train" or its folder: a network alone,
            without calibration. Also at a URL.
        device: Where to put it, such as "cuda".

    Returns:
        The detector, ready to score.

    Raises:
        StoreError: The folder or file is missing, damaged, or not a detector.
    """
    with working_copy(as_path(path)) as here:
        return _load(here, device)


def _load(path: Path, device: str | torch.device) -> Detector:
    kept = find_folder(path)
    if kept is not None:
        return read_detector(kept, device)
    if path.is_dir():
        _refuse_without_network(path)
    return _load_network(path / BEST if path.is_dir() else path, device)


def find_folder(path: Path) -> Path | None:
    """The folder of the kept detector that `path` means; None if it means a network alone."""
    if path.name == DETECTOR_JSON:
        path = path.parent
    if (path / BEST).exists():
        return None
    folders = (path, path / KEPT)
    return next((folder for folder in folders if (folder / DETECTOR_JSON).exists()), None)


def _load_network(path: Path, device: str | torch.device) -> Detector:
    saved = read_model(path)
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
        title=kind.title,
        network=network.to(device).eval(),
        config=config,
        threshold=_USUAL_THRESHOLD if threshold is None else float(threshold),
        metrics=best["metrics"],
    )


def _refuse_without_network(path: Path) -> None:
    """Raise StoreError for a folder that does not contain a network, but perhaps several folders of
    them."""
    if (path / BEST).exists():
        return
    found = [str(path / name) for name in NETWORKS if (path / name / BEST).exists()]
    if found:
        raise StoreError(f'"{path}": give the folder of one network: {", ".join(found)}.')
    raise StoreError(
        f'there is no detector in "{path}": give a folder with a {DETECTOR_JSON}, which "clew '
        f'compare" or "clew train" writes, or with the {BEST} of a network.'
    )
