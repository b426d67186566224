"""Training on features: the network has the weights of its best epoch, and a kill loses nothing of
the features and at most one epoch of fine-tuning."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clew.base.errors import StoreError, TrainingStoppedError
from clew.base.progress import Event, Reporter, WorkAdvanced, WorkStarted
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.fitting import (
    FeaturePlan,
    FittedOnFeatures,
    TuningFile,
    fit_on_features,
    plan_features,
)
from clew.patterns.features.frozen import FIRST_BLOCK, FrozenLite0, LastBlocks
from clew.patterns.networks.classifier import normalize
from clew.patterns.networks.lite0 import DepthwiseConvolution, EfficientNetLite0, load_lite0
from tests.events import pick
from tests.patterns.cache.pictures import cache, make_folder

PHOTOS = 24
LABELS = np.arange(PHOTOS) % 2
SPLITS = np.array([0, 0, 0, 0, 1, 2] * 4)
AUGMENT = AugmentConfig(flip=True)

pytestmark = pytest.mark.usefixtures("random_lite0")


@pytest.fixture
def cached(tmp_path: Path) -> CachedPhotos:
    found = cache(make_folder(tmp_path / "photos", PHOTOS), tmp_path / "cache")
    order = np.argsort([int(Path(photo.name).stem) for photo in found.photos])
    return replace(
        found,
        photos=tuple(found.photos[place] for place in order),
        rows=found.rows[order],
        digests=[found.digests[place] for place in order],
    )


def fit(
    cached: CachedPhotos,
    network: EfficientNetLite0,
    folder: Path,
    *,
    minutes: float = 1e-9,
    augment: AugmentConfig = AUGMENT,
    **options: object,
) -> FittedOnFeatures:
    plan = FeaturePlan(minutes=minutes, seconds=1.0, reason="", threads=2)
    return fit_on_features(
        network, cached, LABELS, SPLITS, folder, plan=plan, augment=augment, **options
    )  # type: ignore[arg-type]


def random_images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)


def test_last_blocks_compute_what_the_network_does() -> None:
    network, images = load_lite0(classes=3).eval(), random_images()
    blocks = LastBlocks(network).eval()
    with torch.no_grad():
        for one in blocks.parameters():
            one.add_(0.01 * torch.randn_like(one))
        maps = FrozenLite0(network, "products").maps_before(images, FIRST_BLOCK)
        expected = blocks(maps.clone())
        blocks.write_into(network)
        found = network(normalize(images, network))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [3, 5])
def test_gradient_through_a_depthwise_convolution_is_that_of_pytorch(size: int) -> None:
    kernel, images = torch.randn(4, 1, size, size), torch.randn(2, 4, 6, 6)
    gradients = []
    for convolve in (
        lambda x, k: DepthwiseConvolution.apply(x, k, 1),
        lambda x, k: F.conv2d(x, k, None, 1, size // 2, 1, 4),
    ):
        given = images.clone().requires_grad_()
        convolve(given, kernel).pow(3).sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


def test_training_leaves_a_classifier_of_the_training_photos(
    cached: CachedPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_EPOCHS", 3)
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_VIEWS", 1)
    network = load_lite0(classes=2).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fitted = fit(cached, network, tmp_path / "features", minutes=60)
    assert [row["epoch"] for row in fitted.history] == [1, 2, 3, 4]
    assert 1 <= fitted.best_epoch <= 4
    assert "on the photos and 1 augmented view of each for 3 epochs" in fitted.notes[-1]
    changed = {
        name for name, value in network.state_dict().items() if not value.equal(before[name])
    }
    assert "_fc.weight" in changed
    assert not [name for name in changed if name.startswith(("_conv_stem", "_blocks.11."))]


def test_features_of_a_stopped_training_are_kept(cached: CachedPhotos, tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(TrainingStoppedError, match="computing features: 8 of"):
        fit(
            cached,
            load_lite0(classes=2),
            tmp_path / "features",
            reporter=events.append,
            should_stop=lambda: bool(pick(events, WorkAdvanced)),
        )
    again: list[Event] = []
    fit(cached, load_lite0(classes=2), tmp_path / "features", reporter=again.append)
    assert pick(again, WorkStarted)[0].done == 8


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A forked process has none of PyTorch's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_fine_tuning_killed_after_an_epoch_gives_the_same_weights(
    cached: CachedPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_EPOCHS", 3)
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_VIEWS", 1)
    file, events = TuningFile(tmp_path / "tuning.safetensors", {"run": 1}), list[Event]()
    child = os.fork()
    if child == 0:
        try:
            network, reporter = load_lite0(classes=2), kill_in_second_epoch()
            fit(cached, network, tmp_path / "f", minutes=60, file=file, reporter=reporter)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    networks = [load_lite0(classes=2), load_lite0(classes=2)]
    resumed, whole = (
        fit(cached, network, tmp_path / "f", minutes=60, file=one, reporter=events.append)
        for network, one in zip(networks, (file, None), strict=True)
    )
    assert [one.done for one in pick(events, WorkStarted)] == [1, 0]
    assert resumed.best_epoch == whole.best_epoch and resumed.notes == whole.notes
    for name, value in networks[0].state_dict().items():
        assert value.equal(networks[1].state_dict()[name]), name
    other = TuningFile(file.path, {"run": 2})
    assert file.read() is not None and other.read() is None
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="damaged"):
        file.read()


def kill_in_second_epoch() -> Reporter:
    """Fine-tuning has one step per epoch here."""
    steps: list[Event] = []

    def report(event: Event) -> None:
        if steps or (isinstance(event, WorkStarted) and event.noun == "steps"):
            steps.append(event)
        if len(pick(steps, WorkAdvanced)) > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return report


@pytest.mark.usefixtures("one_thread")
def test_fine_tuning_mixes_photos_as_asked_for(
    cached: CachedPhotos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_EPOCHS", 2)
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_VIEWS", 1)
    losses = []
    for mixup in (0.0, 0.0, 1.0):
        network, augment = load_lite0(classes=2), replace(AUGMENT, mixup=mixup)
        fitted = fit(cached, network, tmp_path / "features", minutes=60, augment=augment)
        losses.append(fitted.history[-1]["train_loss"])
    assert losses[0] == losses[1] != losses[2]


def test_evaluation_and_what_was_spent_are_part_of_the_time() -> None:
    plan = plan_features(100, 64, minutes=5, threads=2, spent_seconds=20)
    assert plan.evaluating_seconds > 0
    assert plan.training_seconds + plan.evaluating_seconds == pytest.approx(280)
    assert plan.seconds == pytest.approx(280)
    short = replace(plan, minutes=0.1)
    assert short.training_seconds == pytest.approx(3)


def test_classes_with_few_photos_are_named(cached: CachedPhotos, tmp_path: Path) -> None:
    few = np.where(np.arange(PHOTOS) < 4, 0, 1)
    plan = plan_features(PHOTOS, cached.size, minutes=1e-9, threads=1)
    assert "24 photos" in plan.reason and "give more `minutes`" in plan.reason
    network = load_lite0(classes=2)
    fitted = fit_on_features(
        network, cached, few, SPLITS, tmp_path / "f", plan=plan, augment=AUGMENT
    )
    assert 'fewer than 5 training photos: "cats" (4)' in fitted.notes[0]
    assert "no time to fine-tune" in fitted.notes[1]
    assert len(fitted.history) == 1
