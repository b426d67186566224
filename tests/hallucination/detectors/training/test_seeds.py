"""One network from several seeds: risks, resuming, and other stores."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.errors import InputError, TrainingStoppedError
from clew.base.progress import Event
from clew.datasets import PreprocessedLSTMMapDataset
from clew.engine import PlanRequest, TrainConfig
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.registry import NetworkSettings
from clew.hallucination.detectors.training.samples import PreprocessedData, score_samples
from clew.hallucination.detectors.training.settings import TrainRunConfig
from clew.hallucination.detectors.training.train import TrainedSeed, train_seeds
from tests.engine.children import start, tensors, wait, wait_until
from tests.hallucination.detectors.training.making import (
    PLAIN,
    small_act_vit,
    small_run,
    write_learnable,
)
from tests.hallucination.detectors.training.test_train import ended
from tests.stores import one_thread

pytestmark = pytest.mark.slow

EPOCHS = {"lstm": 4, "charm": 12, "act_vit": 4}
# One in seven of the samples has no answer, and CHARM then nothing to read.
REACHED = {"lstm": 0.9, "charm": 0.75, "act_vit": 0.9}
OWN = {"lstm": NetworkSettings(lstm_hidden=8), "charm": NetworkSettings(gnn_hidden=16)}


def run_of(name: str, data: Path, out: Path, **changes: Any) -> TrainRunConfig:
    options = {
        "networks": (name,),
        "network": OWN.get(name, NetworkSettings()),
        "train": TrainConfig(epochs=EPOCHS[name], lr=0.005 if name == "act_vit" else 0.01),
    }
    return small_run(data, out, **options | changes)


def train(config: TrainRunConfig, seeds: list[int], **extra: Any) -> list[TrainedSeed]:
    return train_seeds(
        config.networks[0],
        config.open_source(),
        config,
        config.out,
        seeds,
        overwrite=config.overwrite,
        **extra,
    )


@pytest.fixture(scope="module", params=["lstm", "charm", "act_vit"])
def seeded(
    request: pytest.FixtureRequest, learnable: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainRunConfig, list[TrainedSeed]]:
    """Two seeds of a network. Shared: do not modify."""
    config = run_of(request.param, learnable, tmp_path_factory.mktemp("seeded") / "networks")
    with one_thread():
        return config, train(config, [0, 7])


@pytest.fixture(scope="module", autouse=True)
def small_networks() -> Iterator[None]:
    with small_act_vit():
        yield


def labels(folder: Path, split: str) -> np.ndarray:
    return PreprocessedLSTMMapDataset(folder, split=split).index.labels


def auroc(truth: np.ndarray, scores: np.ndarray) -> float:
    hallucinated, correct = scores[truth > 0.5], scores[truth < 0.5]
    return float(
        (hallucinated[:, None] > correct).mean() + (hallucinated[:, None] == correct).mean() / 2
    )


def test_every_seed_scores_every_sample_in_the_order_of_the_data(
    seeded: tuple[TrainRunConfig, list[TrainedSeed]], learnable: Path
) -> None:
    config, seeds = seeded
    [name] = config.networks
    assert [of.seed for of in seeds] == [0, 7]
    for of in seeds:
        truth = labels(learnable, "test")
        assert auroc(truth, of.test) == pytest.approx(of.fitted.test["auroc"], abs=1e-3)
        assert auroc(labels(learnable, "validation"), of.validation) == pytest.approx(of.val_auroc)
        assert of.val_auroc > REACHED[name]
        assert of.score_seconds > 0
        folder = config.out / name / f"seed-{of.seed}"
        again = score_samples(folder, PreprocessedData(folder=learnable), "test", device="cpu")
        np.testing.assert_allclose(again, of.test, atol=1e-5)
    assert not np.allclose(seeds[0].test, seeds[1].test)


def test_second_run_only_scores(
    seeded: tuple[TrainRunConfig, list[TrainedSeed]],
) -> None:
    config, before = seeded
    events: list[Event] = []
    again = train(config, [0, 7], reporter=events.append)
    assert [is_new for _, is_new in ended(events)] == [False, False]
    for one, other in zip(before, again, strict=True):
        np.testing.assert_array_equal(one.test, other.test)
        assert one.fitted == other.fitted


def test_each_seed_is_a_detector(seeded: tuple[TrainRunConfig, list[TrainedSeed]]) -> None:
    config, [one, _] = seeded
    folder = config.out / config.networks[0] / "seed-0"
    detector = load_detector(folder)
    assert (detector.name, detector.threshold) == (config.networks[0], one.fitted.threshold)
    assert (folder / "log.csv").exists()
    with pytest.raises(InputError, match=f"{detector.name} cannot read this kind of batch: open"):
        detector.score({"label": one.test})


def test_resume_after_kill_gives_identical_seeds(learnable: Path, tmp_path: Path) -> None:
    """The first seed is kept; the second ends as in an uninterrupted run."""
    whole = TrainConfig(epochs=8, patience=None)
    config = run_of("lstm", learnable, tmp_path, train=whole, request=replace(PLAIN, batch_size=64))
    saving = replace(config, train=replace(whole, checkpoint_every_seconds=0))
    child = start(train, saving, [0, 1])
    log = tmp_path / "lstm" / "seed-1" / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3, child)
    os.kill(child.pid, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    events: list[Event] = []
    broken = train(config, [0, 1], reporter=events.append)
    assert [is_new for _, is_new in ended(events)] == [False, True]
    unbroken = train(replace(config, out=tmp_path / "unbroken"), [0, 1])
    best = Path("lstm") / "seed-1" / "best.safetensors"
    assert tensors(tmp_path / best) == tensors(tmp_path / "unbroken" / best)
    np.testing.assert_array_equal(broken[1].test, unbroken[1].test)


def test_all_seeds_use_the_plan_of_the_first(learnable: Path, tmp_path: Path) -> None:
    config = run_of("lstm", learnable, tmp_path, request=PlanRequest(device="cpu"))
    for _ in range(2):
        first, second = (of.fitted.plan for of in train(config, [0, 1]))
        assert first.calibration_seconds > 0 and second.calibration_seconds == 0
        assert first.choices == second.choices
        assert first.reasons == second.reasons


def test_training_can_be_stopped_between_seeds(learnable: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(TrainingStoppedError, match=r"before LSTM, seed 1; .* Run the same"):
        train(
            run_of("lstm", learnable, tmp_path),
            [0, 1],
            reporter=events.append,
            should_stop=lambda: bool(ended(events)),
        )
    assert len(ended(events)) == 1


def test_overwrite_trains_all_seeds_again(learnable: Path, tmp_path: Path) -> None:
    config = run_of("lstm", learnable, tmp_path)
    train(config, [0])
    other = replace(config, network=NetworkSettings(lstm_hidden=4), overwrite=True)
    events: list[Event] = []
    train(other, [0], reporter=events.append)
    assert [is_new for _, is_new in ended(events)] == [True]


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_invalid_seeds_are_rejected(learnable: Path, tmp_path: Path, seeds: list[int]) -> None:
    with pytest.raises(InputError, match=r"the seeds are \[.*: give one or more different seeds"):
        train(run_of("lstm", learnable, tmp_path / "out"), seeds)
    assert not (tmp_path / "out").exists()


def test_network_scores_other_questions(
    seeded: tuple[TrainRunConfig, list[TrainedSeed]], tmp_path: Path
) -> None:
    config, _ = seeded
    folder = config.out / config.networks[0] / "seed-0"
    other = write_learnable(tmp_path / "other", rows=60)
    scores = score_samples(folder, PreprocessedData(folder=other), "test")
    assert auroc(labels(other, "test"), scores) > REACHED[config.networks[0]] - 0.1


def test_samples_of_another_model_are_rejected(
    seeded: tuple[TrainRunConfig, list[TrainedSeed]], tmp_path: Path
) -> None:
    config, _ = seeded
    folder = config.out / config.networks[0] / "seed-0"
    wider = write_learnable(tmp_path / "wider", dim=12, features=6, attention_heads=4)
    with pytest.raises(InputError, match='was trained on samples with .*_dim .*wider" have'):
        score_samples(folder, PreprocessedData(folder=wider), "test")
