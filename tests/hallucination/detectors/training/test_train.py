"""Networks trained one after another: the output folder, and resuming."""

import json
import os
import re
import shutil
import signal
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from clew.base.errors import (
    InputError,
    SettingsMismatchError,
    StoreError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.base.progress import Event
from clew.engine import HardwarePlan, TrainConfig
from clew.hallucination.detectors.registry import NETWORKS, NetworkSettings
from clew.hallucination.detectors.training.settings import LossSettings, NetworkEnded
from clew.hallucination.detectors.training.train import Task, plan_models, train_detectors
from tests.engine.children import start, tensors, wait, wait_until
from tests.events import Later, pick
from tests.hallucination.detectors.training.making import PLAIN, SMALL, small_run, write_learnable
from tests.stores import edit_json_file

pytestmark = pytest.mark.slow

ONLY_LSTM = {"networks": ("lstm",), "train": TrainConfig(epochs=1)}


def ended(events: list[Event]) -> list[tuple[str, bool]]:
    """Which networks were finished, and whether they were trained now or earlier."""
    return [(event.run["model"], event.is_new) for event in pick(events, NetworkEnded)]


def read_results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def test_all_networks_learn(trained: Path) -> None:
    runs = read_results(trained)["runs"]
    assert [run["model"] for run in runs] == ["lstm", "gnn_det", "gvae"]
    for run in runs:
        assert run["test_auroc"] > 0.9, run["model"]
        assert run["best_val_auroc"] > 0.9
        assert run["test_f1"] > 0.75 and run["test_accuracy"] > 0.75


def test_results_record_their_settings(trained: Path, learnable: Path) -> None:
    results = read_results(trained)
    assert results["versions"].keys() > {"clew", "python", "torch"}
    assert (
        sum(sum(results["data"][name].values()) for name in ("train", "validation", "test")) == 240
    )
    assert results["settings"]["train"] == json.loads(
        json.dumps(asdict(TrainConfig(epochs=4, lr=0.01)))
    )
    for run in results["runs"]:
        assert 0 < run["threshold"] < 1
        assert run["epochs_run"] == 4 and 1 <= run["best_epoch"] <= 4
        assert run["seed"] == 0
        assert all(run[name] > 0 for name in ("seconds", "samples_per_second", "parameters"))
        assert 0 <= run["data_wait_share"] <= 1 and run["peak_memory_bytes"] > 1e6
        assert HardwarePlan.from_dict(run["plan"]).batch_size == 16
        config = NETWORKS[run["model"]].config(**run["config"])
        assert config.lstm_hidden == 8 and config.input_dim == 8
    assert str(learnable) not in json.dumps(results["data"])  # samples may be moved


@pytest.mark.parametrize("name", ["lstm", "gnn_det", "gvae"])
def test_each_network_has_a_folder(trained: Path, name: str) -> None:
    found = {path.name for path in (trained / name).iterdir()}
    wanted = {"best.safetensors", "last.safetensors", "log.csv", "plan.json", "tensorboard"}
    assert found >= wanted | {"curves.png", "result.json"}
    assert not list(trained.rglob("*.part")) and not list(trained.rglob("*.tmp"))


def test_second_run_trains_nothing(trained: Path, learnable: Path) -> None:
    before = (trained / "results.json").read_bytes()
    events: list[Event] = []
    runs = train_detectors(small_run(learnable, trained), events.append)
    assert ended(events) == [("lstm", False), ("gnn_det", False), ("gvae", False)]
    assert (trained / "results.json").read_bytes() == before
    assert runs == json.loads(before)["runs"]


def test_networks_can_be_added_to_existing_ones(learnable: Path, tmp_path: Path) -> None:
    for name in ("gvae", "lstm"):
        train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM | {"networks": (name,)}))
    assert [run["model"] for run in read_results(tmp_path)["runs"]] == ["lstm", "gvae"]


def test_resume_after_kill_gives_identical_results(learnable: Path, tmp_path: Path) -> None:
    """The first network's result is kept; the second ends as in an uninterrupted run."""
    networks, whole = ("lstm", "gnn_det"), TrainConfig(epochs=12, patience=None)
    options = {"networks": networks, "request": replace(PLAIN, batch_size=64), "train": whole}
    config = small_run(learnable, tmp_path / "killed", **options)
    saving = replace(config, train=replace(whole, checkpoint_every_seconds=0))
    child = start(train_detectors, saving)
    log = config.out / "gnn_det" / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3, child)
    os.kill(child.pid, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    assert [run["model"] for run in read_results(config.out)["runs"]] == ["lstm"]
    events: list[Event] = []
    train_detectors(config, events.append)
    assert ended(events) == [("lstm", False), ("gnn_det", True)]
    unbroken = small_run(learnable, tmp_path / "unbroken", **options | {"networks": networks[1:]})
    train_detectors(unbroken)
    best = Path("gnn_det") / "best.safetensors"
    assert tensors(config.out / best) == tensors(unbroken.out / best)


def test_training_can_be_stopped_between_networks(learnable: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(TrainingStoppedError, match="before GNN-det"):
        train_detectors(small_run(learnable, tmp_path), events.append, lambda: bool(ended(events)))
    assert [run["model"] for run in read_results(tmp_path)["runs"]] == ["lstm"]


def test_each_network_is_freed_before_the_next(
    learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[weakref.ref] = []
    build = Task.build

    def build_watched(task: Task) -> Any:
        assert all(network() is None for network in built)
        network = build(task)
        built.append(weakref.ref(network))
        return network

    monkeypatch.setattr(Task, "build", build_watched)
    train_detectors(small_run(learnable, tmp_path, train=TrainConfig(epochs=1)))
    assert len(built) == 3


def test_other_settings_are_rejected_with_both_values(trained: Path, learnable: Path) -> None:
    with pytest.raises(SettingsMismatchError, match="lstm_hidden: was 8, is now 16"):
        wider = NetworkSettings(lstm_hidden=16, num_lstm_layers=1)
        train_detectors(small_run(learnable, trained, network=wider))
    with pytest.raises(SettingsMismatchError, match="positive_weight: was None, is now "):
        weighted = LossSettings(class_weights=True)
        train_detectors(small_run(learnable, trained, loss=weighted))


def test_results_file_never_mixes_samples(learnable: Path, tmp_path: Path) -> None:
    other = write_learnable(tmp_path / "other", rows=70)
    out = tmp_path / "out"
    train_detectors(small_run(learnable, out, **ONLY_LSTM))
    with pytest.raises(
        SettingsMismatchError, match=r"results of lstm on different samples: train 16\d"
    ):
        train_detectors(small_run(other, out, networks=("gvae",)))
    with pytest.raises(SettingsMismatchError, match="on different samples"):
        train_detectors(small_run(other, out, networks=("gvae",), overwrite=True))
    train_detectors(small_run(other, out, **ONLY_LSTM, overwrite=True))
    assert read_results(out)["data"]["train"] != {}


def test_samples_with_other_values_are_rejected(learnable: Path, tmp_path: Path) -> None:
    """The same questions and labels, captured again: not the samples that the run started with."""
    out = tmp_path / "out"
    with pytest.raises(TrainingStoppedError):
        train_detectors(small_run(learnable, out, **ONLY_LSTM), should_stop=Later(3))
    copy = Path(shutil.copytree(learnable, tmp_path / "copy"))
    manifest = copy / "sequences" / "manifest.json"
    known = re.compile('"sha256": "[^"]*')
    edit_json_file(manifest, lambda text: known.sub(f'"sha256": "{"0" * 64}', text, count=1))
    with pytest.raises(SettingsMismatchError, match=r"settings\.data\.values: "):
        train_detectors(small_run(copy, out, **ONLY_LSTM))


def test_overwrite_starts_over_and_keeps_other_files(learnable: Path, tmp_path: Path) -> None:
    train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    (tmp_path / "lstm" / "notes.txt").write_text("mine")
    wider = NetworkSettings(lstm_hidden=16)
    config = small_run(learnable, tmp_path, **ONLY_LSTM, network=wider, overwrite=True)
    events: list[Event] = []
    train_detectors(config, events.append)
    assert ended(events) == [("lstm", True)]
    assert read_results(tmp_path)["runs"][0]["config"]["lstm_hidden"] == 16
    assert (tmp_path / "lstm" / "notes.txt").read_text() == "mine"


def test_overwrite_does_not_touch_a_running_training(learnable: Path, tmp_path: Path) -> None:
    train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "lstm").glob("[!.]*")}
    with (
        FileLock(tmp_path / "lstm" / ".lock"),
        pytest.raises(StoreLockedError, match="another run is writing to"),
    ):
        train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM, overwrite=True))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "lstm").glob("[!.]*")} == before
    assert [run["model"] for run in read_results(tmp_path)["runs"]] == ["lstm"]


def test_network_without_its_checkpoint_is_trained_again(learnable: Path, tmp_path: Path) -> None:
    """As the error about a damaged one advises; the old result must not be used for the new run."""
    train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    (tmp_path / "lstm" / "last.safetensors").unlink()
    longer = small_run(learnable, tmp_path, **ONLY_LSTM | {"train": TrainConfig(epochs=2)})
    with pytest.raises(TrainingStoppedError):
        train_detectors(longer, should_stop=Later(3))
    events: list[Event] = []
    train_detectors(longer, events.append)
    assert ended(events) == [("lstm", True)]
    assert read_results(tmp_path)["runs"][0]["epochs_run"] == 2


def test_malformed_results_file_is_named(learnable: Path, tmp_path: Path) -> None:
    train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(StoreError, match=r"results\.json.* cannot be read .*delete it"):
        train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    (tmp_path / "results.json").unlink()
    train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM))
    assert [run["model"] for run in read_results(tmp_path)["runs"]] == ["lstm"]


@pytest.mark.parametrize(
    ("loss", "name", "value"),
    [
        (LossSettings(focal=True), "focal_gamma", 2.0),
        (LossSettings(label_smoothing=0.1), "label_smoothing", 0.1),
        (LossSettings(class_weights=True), "positive_weight", pytest.approx(2.0, abs=0.1)),
    ],
)
def test_loss_settings_are_applied(
    learnable: Path, tmp_path: Path, loss: LossSettings, name: str, value: float
) -> None:
    """One in three is hallucinated."""
    [run] = train_detectors(small_run(learnable, tmp_path, **ONLY_LSTM, loss=loss))
    assert run["loss"][name] == value


def test_plans_can_be_made_without_training(learnable: Path, tmp_path: Path) -> None:
    plans = plan_models(small_run(learnable, tmp_path / "out", networks=tuple(NETWORKS)))
    assert plans.keys() == NETWORKS.keys()
    assert all(plan.batch_size == 16 for plan in plans.values())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"networks": ()}, "no network to train: give at least one of `run_lstm=True`, "),
        ({"networks": ("cnn",)}, 'unknown network "cnn": choose from: lstm, gnn_det, gvae'),
        (
            {**ONLY_LSTM, "network": NetworkSettings(latent_dim=4)},
            "latent_dim is 4: this is a setting of gvae, .* or add `run_gvae=True`",
        ),
        (
            {"data_pattern": "traces"},
            'preprocessed_dir is ".*": `data_pattern=.* too',
        ),
        (
            {"scores_file": Path("s.csv")},
            r'scores_file is "s\.csv": it only applies to `data_pattern`',
        ),
        ({"score_threshold": 0.3}, r"score_threshold is 0\.3: it only applies to `data_pattern`"),
        ({"preprocessed_dir": None, "data_pattern": "traces"}, "Give their scores as well"),
    ],
)
def test_invalid_settings_are_rejected(
    learnable: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        small_run(learnable, tmp_path, **changes)


def test_settings_are_passed_to_the_networks_that_have_them(
    learnable: Path, tmp_path: Path
) -> None:
    settings = NetworkSettings(**{**vars(SMALL), "latent_dim": 3, "kl_weight": 0.5})
    config = small_run(
        learnable, tmp_path, network=settings, train=TrainConfig(epochs=1), request=PLAIN
    )
    lstm, _, gvae = train_detectors(config)
    assert "latent_dim" not in lstm["config"]
    assert (gvae["config"]["latent_dim"], gvae["config"]["kl_weight"]) == (3, 0.5)
