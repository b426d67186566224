"""Training on features: the network has the weights of its best epoch, and a kill loses nothing of
the features and at most one epoch of fine-tuning."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clew.base.errors import StoreError, TrainingStoppedError
from clew.base.progress import Event, Note, Reporter, WorkAdvanced, WorkStarted
from clew.engine import EpochEnded, FitResult, PlanRequest, TrainConfig, TrainingStarted
from clew.engine.folders import LAST
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.fitting import FeaturePlan, fit_on_features, plan_features
from clew.patterns.networks.classifier import PatternClassifier, normalize
from clew.patterns.networks.lite0 import (
    DepthwiseConvolution,
    EfficientNetLite0,
    freeze,
    load_lite0,
)
from tests.events import pick
from tests.patterns.cache.pictures import cache, make_folder

PHOTOS = 24
LABELS = np.arange(PHOTOS) % 2
SPLITS = np.array([0, 0, 0, 0, 1, 2] * 4)
AUGMENT = AugmentConfig(flip=True)
CPU = PlanRequest(device="cpu", batch_size=32)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("random_lite0")]


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


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is: one augmented view, three epochs."""
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_EPOCHS", 3)
    monkeypatch.setattr("clew.patterns.features.fitting._MOST_VIEWS", 1)


def fit(
    cached: CachedPhotos,
    network: EfficientNetLite0,
    folder: Path,
    *,
    minutes: float = 1e-9,
    augment: AugmentConfig = AUGMENT,
    reporter: Reporter = lambda _: None,
    **changes: Any,
) -> FitResult:
    """Maps are kept in `folder`, and the run in the folder `out` or beside them."""
    options: dict[str, Any] = {
        "plan": FeaturePlan(
            minutes=minutes, seconds=1.0, reason="", threads=2, training_seconds=60 * minutes
        ),
        "output_dir": changes.pop("out", folder.with_name(f"{folder.name} run")),
        "labels": LABELS,
        "should_stop": lambda: False,
    } | changes
    model = PatternClassifier(network, classes=2, augment=augment)
    return fit_on_features(
        model,
        cached,
        splits=SPLITS,
        folder=folder,
        augment=augment,
        config=TrainConfig(monitor="accuracy"),
        request=CPU,
        settings={"run": 1},
        reporter=reporter,
        **options,
    )


def random_images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)


def test_last_blocks_compute_what_the_network_does() -> None:
    network, images = load_lite0(classes=3).eval(), random_images()
    with torch.no_grad():
        for name, value in network.named_buffers():  # as after some training
            if name.endswith("running_var"):
                value.uniform_(0.5, 2)
        pixels = normalize(images, network)
        expected = network(pixels)
        maps = freeze(network, products=True).maps_to_tune(pixels)
        network.train_last_blocks()
        torch.testing.assert_close(
            network.classify(network.embed_maps(maps)), expected, rtol=1e-3, atol=1e-3
        )
        again = EfficientNetLite0(classes=3).eval()
        again.load_state_dict(network.state_dict())
        torch.testing.assert_close(again(pixels), expected, rtol=1e-3, atol=1e-3)


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


@pytest.mark.usefixtures("briefly")
def test_training_leaves_a_classifier_of_the_training_photos(
    cached: CachedPhotos, tmp_path: Path
) -> None:
    network, events = load_lite0(classes=2).eval(), list[Event]()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fitted = fit(cached, network, tmp_path / "features", minutes=60, reporter=events.append)
    assert [row["epoch"] for row in fitted.history] == [1, 2, 3, 4]
    assert 1 <= fitted.best_epoch <= 4
    assert "on the photos and 1 augmented view of each for 3 epochs" in str(pick(events, Note)[-1])
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


@pytest.mark.usefixtures("one_thread", "briefly")
def test_fine_tuning_killed_after_an_epoch_gives_the_same_weights(
    cached: CachedPhotos, tmp_path: Path
) -> None:
    folder, out, events = tmp_path / "f", tmp_path / "killed", list[Event]()
    child = os.fork()
    if child == 0:
        try:
            network, reporter = load_lite0(classes=2), kill_in_second_epoch()
            fit(cached, network, folder, minutes=60, out=out, reporter=reporter)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    networks = [load_lite0(classes=2), load_lite0(classes=2)]
    resumed, whole = (
        fit(cached, network, folder, minutes=60, out=place, reporter=events.append)
        for network, place in zip(networks, (out, tmp_path / "whole"), strict=True)
    )
    assert [one.done_steps for one in pick(events, TrainingStarted)] == [1, 0]
    assert resumed.best_epoch == whole.best_epoch
    for name, value in networks[0].state_dict().items():
        assert value.equal(networks[1].state_dict()[name]), name
    (out / LAST).write_bytes((out / LAST).read_bytes()[:-1])
    with pytest.raises(StoreError, match="damaged"):
        fit(cached, load_lite0(classes=2), folder, out=out)


def kill_in_second_epoch() -> Reporter:
    """After the first epoch of fine-tuning, which is saved."""
    epochs: list[Event] = []

    def report(event: Event) -> None:
        if epochs and not isinstance(event, EpochEnded):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(event, EpochEnded):
            epochs.append(event)
        if len(epochs) > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return report


@pytest.mark.usefixtures("one_thread", "briefly")
def test_fine_tuning_mixes_photos_as_asked_for(cached: CachedPhotos, tmp_path: Path) -> None:
    losses = []
    for place, mixup in enumerate((0.0, 0.0, 1.0)):
        network, augment = load_lite0(classes=2), replace(AUGMENT, mixup=mixup)
        fitted = fit(
            cached,
            network,
            tmp_path / "features",
            minutes=60,
            augment=augment,
            out=tmp_path / str(place),
        )
        losses.append(fitted.history[-1]["train_loss"])
    assert losses[0] == losses[1] != losses[2]


def test_evaluation_and_what_was_spent_are_part_of_the_time() -> None:
    plan = plan_features(100, 64, minutes=5, threads=2, spent_seconds=20)
    assert 0 < plan.training_seconds < 280
    assert plan.seconds == pytest.approx(280)
    short = plan_features(100, 64, minutes=0.1, threads=2, spent_seconds=20)
    assert short.training_seconds == pytest.approx(3)


def test_classes_with_few_photos_are_named(cached: CachedPhotos, tmp_path: Path) -> None:
    few = np.where(np.arange(PHOTOS) < 4, 0, 1)
    plan = plan_features(PHOTOS, cached.size, minutes=1e-9, threads=1)
    assert "24 photos" in plan.reason and "give more `minutes`" in plan.reason
    events: list[Event] = []
    fitted = fit(
        cached,
        load_lite0(classes=2),
        tmp_path / "f",
        plan=plan,
        labels=few,
        reporter=events.append,
    )
    notes = [str(note) for note in pick(events, Note)]
    assert 'fewer than 5 training photos: "cats" (4)' in notes[0]
    assert "no time to fine-tune" in notes[1]
    assert len(fitted.history) == 1
