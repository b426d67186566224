"""The pretrained network: when it is trained, how, and what happens without its weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from clew.base.errors import InputError, SettingsMismatchError
from clew.base.progress import Event, Note, ignore_event
from clew.engine import EpochEnded
from clew.patterns.augment import AugmentConfig
from clew.patterns.networks import usual_sizes
from clew.patterns.networks.classifier import PatternClassifier
from clew.patterns.networks.lite0 import EfficientNetLite0, FoldableNorm, load_lite0
from clew.patterns.trained.model import PREFIX, load_classifier
from clew.patterns.training import PatternsConfig, Prepared, train, train_patterns
from clew.patterns.training.config import BODY_RATE, USUAL_MINUTES, fine_tuning_epochs
from clew.patterns.training.start import RunFolder, choose_network
from clew.storage import wheels
from clew.storage.reading import read_json
from tests.events import pick
from tests.patterns.training.making import small_run
from tests.stores import one_thread

pytestmark = pytest.mark.slow

GPU: Any = {"on_gpu": True, "reporter": ignore_event}


@pytest.fixture(scope="session")
def fine_tuned(
    photos: Path, tmp_path_factory: pytest.TempPathFactory, random_lite0_cache: Path
) -> Path:
    """The folder of a short fine-tuning of random weights. Shared: do not modify."""
    out = tmp_path_factory.mktemp("fine-tuned") / "out"
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr("platformdirs.user_cache_dir", lambda _: str(random_lite0_cache))
        train_patterns(small_run(photos, out, network="lite0", image_size=32, epochs=1))
    return out


@pytest.fixture(scope="session")
def on_features(
    photos: Path, tmp_path_factory: pytest.TempPathFactory, random_lite0_cache: Path
) -> Path:
    """The folder of a run on features of random weights. Shared: do not modify."""
    out = tmp_path_factory.mktemp("on-features") / "out"
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr("platformdirs.user_cache_dir", lambda _: str(random_lite0_cache))
        train_patterns(quick_run(photos, out))
    return out


def quick_run(data: Path, out: Path, **changes: Any) -> PatternsConfig:
    """Without a GPU, the defaults train on features; here for a second."""
    options = {"network": None, "image_size": 32, "epochs": None, "minutes": 0.02}
    return small_run(data, out, **options | changes)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a cache nor a package index."""

    def refuse(*_: object) -> Path:
        raise InputError("no connection")

    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "cache"))
    monkeypatch.setattr(wheels, "_download", refuse)


@pytest.mark.parametrize("made", ["fine_tuned", "on_features"])
def test_trained_lite0_is_an_ordinary_model(
    made: str, photos: Path, request: pytest.FixtureRequest
) -> None:
    model = load_classifier(request.getfixturevalue(made), device="cpu")
    assert isinstance(model.network, EfficientNetLite0)
    [prediction, *_] = model.predict(photos)
    assert prediction.label in model.classes


@pytest.mark.parametrize("made", ["fine_tuned", "on_features"])
def test_batch_norms_of_a_loaded_model_are_folded_into_its_convolutions(
    made: str, request: pytest.FixtureRequest
) -> None:
    """They would take 40% of the time of a prediction on a CPU."""
    folder = request.getfixturevalue(made)
    model = load_classifier(folder, device="cpu")
    trained = EfficientNetLite0(len(model.classes)).eval()
    weights = load_file(folder / "best.safetensors")
    trained.load_state_dict({n.removeprefix(PREFIX): w for n, w in weights.items()}, strict=False)
    images = np.random.default_rng(0).integers(0, 256, (20, *(model.image_size,) * 2, 3), np.uint8)
    assert all(one.is_folded for one in model.network.modules() if isinstance(one, FoldableNorm))
    found, expected = model.outputs(images), replace(model, network=trained).outputs(images)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
    np.testing.assert_allclose(found.features, expected.features, atol=1e-4)


@pytest.mark.usefixtures("random_lite0")
def test_network_trained_on_crops_also_looks_at_the_enlarged_middle(
    on_features: Path, photos: Path, tmp_path: Path
) -> None:
    assert not load_classifier(on_features, device="cpu").looks_closer
    augment = AugmentConfig(ops=0, flip=False, crop=0.5)
    train_patterns(quick_run(photos, tmp_path / "out", augment=augment))
    model = load_classifier(tmp_path / "out", device="cpu")
    assert (model.image_size, model.looks_closer) == (32, True)
    closer = np.full((1, 32, 32, 3), 200, np.uint8)
    whole = np.random.default_rng(0).integers(0, 256, closer.shape, dtype=np.uint8)
    whole[:, 2:30, 2:30] = 200  # the middle has one color, however much it is enlarged
    alone = replace(model, looks_closer=False, temperature=1.0)
    expected = (alone.probabilities(whole) + alone.probabilities(closer)) / 2
    found = replace(model, temperature=1.0).probabilities(whole)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(model.logits(whole), model.outputs(whole).logits, atol=1e-5)


def test_fine_tuned_run_is_resumed_without_the_pretrained_weights(
    fine_tuned: Path, photos: Path, no_index: None
) -> None:
    del no_index
    config = small_run(photos, fine_tuned, network=None, image_size=32, epochs=1)
    assert train_patterns(config)["pretrained"] is True


def test_run_on_features_is_finished_and_repeated_for_free(
    on_features: Path, photos: Path, no_index: None
) -> None:
    del no_index
    results = read_json(on_features / "results.json")
    assert (results["network"], results["pretrained"]) == ("lite0", True)
    events: list[Event] = []
    assert train_patterns(quick_run(photos, on_features), events.append) == results
    assert not pick(events, EpochEnded)
    [prepared] = pick(events, Prepared)
    assert prepared.method.value > 0  # the expected time
    with pytest.raises(SettingsMismatchError, match="minutes"):
        train_patterns(quick_run(photos, on_features, minutes=7))


@pytest.mark.usefixtures("random_lite0")
def test_run_on_features_can_be_started_from(
    on_features: Path, photos: Path, tmp_path: Path
) -> None:
    config = quick_run(photos, tmp_path / "out", start_from=on_features)
    results = train_patterns(replace(config, image_size=None))
    assert results["started_from"] == str(on_features) and results["image_size"] == 32


@pytest.mark.usefixtures("random_lite0")
def test_epochs_or_a_gpu_train_the_whole_network(tmp_path: Path) -> None:
    usual = quick_run(tmp_path, tmp_path / "out", minutes=None)
    assert choose(usual, on_gpu=False).minutes == USUAL_MINUTES
    assert choose(replace(usual, minutes=2), on_gpu=False).minutes == 2
    assert choose(usual, on_gpu=True).minutes is None
    assert choose(replace(usual, epochs=3), on_gpu=False).minutes is None
    assert choose(replace(usual, network="tiny"), on_gpu=False).minutes is None


@pytest.mark.usefixtures("random_lite0")
def test_minutes_beside_epochs_are_said_not_to_be_used(tmp_path: Path) -> None:
    events: list[Event] = []
    config = replace(quick_run(tmp_path, tmp_path / "out"), epochs=3, minutes=2)
    choose(config, on_gpu=False, reporter=events.append)
    [note] = events
    assert str(note) == "`minutes` is not used: the number of `epochs` is given"


def test_body_learns_more_slowly_than_the_head(random_lite0_cache: Path) -> None:
    network = load_lite0(3, random_lite0_cache)
    model = PatternClassifier(network, classes=3, body_rate=BODY_RATE)
    rates = {name: model.learning_rate_scale(name) for name, _ in model.named_parameters()}
    heads = {name for name, rate in rates.items() if rate == 1}
    assert heads == {"network._fc.weight", "network._fc.bias"}
    assert set(rates.values()) == {1.0, BODY_RATE}


def choose(config: Any, **changes: Any) -> Any:
    folder = RunFolder(config.out, overwrite=config.overwrite)
    return choose_network(config, None, folder, **GPU | changes)


@pytest.mark.usefixtures("random_lite0")
def test_pretrained_network_is_the_default(tmp_path: Path) -> None:
    usual = small_run(tmp_path, tmp_path / "out", network=None)
    chosen = choose(usual)
    assert (chosen.name, chosen.pretrained, chosen.is_fine_tuned) == ("lite0", True, True)
    chosen = choose(replace(usual, from_scratch=True))
    assert (chosen.name, chosen.pretrained, chosen.is_fine_tuned) == ("standard", False, False)
    chosen = choose(replace(usual, network="lite0", from_scratch=True))
    assert (chosen.name, chosen.pretrained, chosen.is_fine_tuned) == ("lite0", False, False)


@pytest.mark.usefixtures("no_index")
def test_without_the_weights_training_starts_from_scratch_and_says_so(tmp_path: Path) -> None:
    events: list[Event] = []
    usual = small_run(tmp_path, tmp_path / "out", network=None)
    assert choose(usual, reporter=events.append).name == "standard"
    [note] = pick(events, Note)
    assert str(note) == "training from scratch: no connection"
    with pytest.raises(InputError, match="no connection"):  # it was asked for
        choose(replace(usual, network="lite0"))


def test_run_keeps_the_network_that_it_was_started_with(trained: Path, photos: Path) -> None:
    chosen = choose(small_run(photos, trained, network=None))
    assert (chosen.name, chosen.reason) == ("tiny", "as when the run was started")


def test_photos_of_small_sets_are_seen_more_often() -> None:
    assert [fine_tuning_epochs(count) for count in (10, 1_600, 3_200, 60_000)] == [100, 40, 20, 20]


def test_pretrained_networks_are_fine_tuned_in_small_batches(tmp_path: Path) -> None:
    config = small_run(tmp_path, tmp_path / "out")
    open_size = replace(config, request=replace(config.request, batch_size=None))
    sizes = [
        open_size.request_for(count, is_fine_tuned=fine).batch_size
        for count, fine in ((10, True), (3_000, True), (60_000, True), (3_000, False))
    ]
    assert sizes == [10, 32, 32, None]
    reasons = open_size.request_for(10, is_fine_tuned=True).reasons
    assert reasons == {"batch_size": "to fine-tune a pretrained network on 10 training photos"}
    assert config.request_for(3_000, is_fine_tuned=True).batch_size == 16


@pytest.mark.parametrize(
    "other",
    [{"pretrained": True}, {"start_from": Path("earlier")}],
    ids=lambda one: next(iter(one)),
)
def test_contradicting_weights_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="`from_scratch` and .* contradict"):
        small_run(tmp_path, tmp_path / "out", from_scratch=True, **other)


def test_crops_are_for_pretrained_networks_and_off_without_augmentation(tmp_path: Path) -> None:
    plain = small_run(tmp_path, tmp_path / "out")
    usual = replace(plain, augment=AugmentConfig())
    assert usual.augment_for(flip=True, is_fine_tuned=True).is_cropping
    assert not usual.augment_for(flip=True, is_fine_tuned=False).is_cropping
    assert not plain.augment_for(flip=True, is_fine_tuned=True).is_cropping


def test_small_photos_are_enlarged_more_where_that_is_affordable() -> None:
    assert usual_sizes("lite0", 3_000, on_gpu=True) == (224, 224)
    assert usual_sizes("lite0", 60_000, on_gpu=True) == (128, 224)
    assert usual_sizes("lite0", 3_000, on_features=True) == (192, 224)
    assert usual_sizes("lite0", 60_000, on_features=True) == (128, 224)
    assert usual_sizes("lite0", 3_000) == (128, 224)
    assert usual_sizes("tiny", 3_000, on_gpu=True) == (32, 128)


def test_validation_photos_choose_the_augmentation_and_a_resumed_run_keeps_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = train._decide  # on a CPU, nothing is tried by itself
    monkeypatch.setattr(train, "_decide", lambda *given: replace(decide(*given), tries=True))
    events: list[Event] = []
    run = small_run(photos, tmp_path / "out", augment=AugmentConfig(flip=True))
    results = train_patterns(run, events.append)
    [note] = [str(one) for one in pick(events, Note) if str(one).startswith("augmentation")]
    is_lighter = "random crops and mirroring alone" in note
    assert results["augment"]["ops"] == (0 if is_lighter else 2)
    assert results["augment"]["mixup"] == (0 if is_lighter else 0.2)
    events.clear()
    assert train_patterns(run, events.append)["augment"] == results["augment"]
    assert not [one for one in pick(events, Note) if str(one).startswith("augmentation")]
