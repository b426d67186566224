"""A run that was interrupted, at any moment and in any way, ends like an uninterrupted one."""

import csv
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event

from clew.base.errors import (
    SettingsMismatchError,
    StoreError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.engine import PlanRequest, TrainConfig
from tests.engine.children import kill_at_rename, start, tensors, wait, wait_until
from tests.engine.learning import PLAIN, Samples, new_model, open_loader, torch_loader, train

SHORT = TrainConfig(epochs=2, lr=1e-2, checkpoint_every_seconds=0)
FEW = PlanRequest(**{**vars(PLAIN), "batch_size": 16, "grad_accum": 2})


def short(folder: Path) -> Any:
    """The last step of an epoch has one batch instead of two: the loader is at its end there."""
    return train(folder, config=SHORT, train=open_loader(Samples(70)), request=FEW)


def assert_same_run(folder: Path, unbroken: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        assert tensors(folder / name) == tensors(unbroken / name)
    timeless = ("samples_per_second", "data_wait_share", "memory_bytes", "seconds")
    rows = [
        [{k: v for k, v in row.items() if k not in timeless} for row in read_log(one)]
        for one in (folder, unbroken)
    ]
    assert rows[0] == rows[1]


def read_log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_run_killed_at_every_write_gives_the_same_network(tmp_path: Path, before: bool) -> None:
    """Whichever file was about to be put in place, or had just been."""
    short(tmp_path / "unbroken")
    for number in range(1, 100):
        folder = tmp_path / f"{number}"
        child = start(
            lambda: kill_at_rename(number, before=before, run=lambda: short(folder))  # noqa: B023
        )
        if wait(child) == 0:
            break
        short(folder)
        assert_same_run(folder, tmp_path / "unbroken")
        assert not list(folder.glob("*.tmp")) and not (folder / "best.next.safetensors").exists()
    assert number > 9


@pytest.mark.slow
def test_run_asked_to_stop_resumes(tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, lr=1e-2)
    train(tmp_path / "unbroken", config=config)
    steps = iter(range(1000))
    for _ in range(3):
        stop_at = next(steps) + 8
        with pytest.raises(
            TrainingStoppedError, match="after step .* of 39; everything so far is saved"
        ):
            train(tmp_path / "run", config=config, should_stop=lambda n=stop_at: next(steps) > n)
    train(tmp_path / "run", config=config)
    assert_same_run(tmp_path / "run", tmp_path / "unbroken")


def stop_on_sigterm(folder: Path) -> None:
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    config = TrainConfig(epochs=100_000, lr=1e-2, patience=None)
    try:
        train(folder, config=config, should_stop=lambda: bool(got))
    except TrainingStoppedError:
        raise SystemExit(128 + got[0]) from None


@pytest.mark.slow
def test_signal_ends_the_run_cleanly(tmp_path: Path) -> None:
    child = start(stop_on_sigterm, tmp_path)
    wait_until(lambda: (tmp_path / "log.csv").exists() and len(read_log(tmp_path)) > 1, child)
    child.terminate()
    assert wait(child) == 143
    assert (tmp_path / "last.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "generator": torch.Generator()},
        {"shuffle": True, "num_workers": 1},
    ],
)
def test_loader_that_does_not_know_its_position_resumes(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Its first batches are read again and skipped."""

    def run(folder: Path, **more: Any) -> None:
        loader = torch_loader(Samples(100), **options)
        train(folder, train=loader, request=PLAIN, config=TrainConfig(epochs=2), **more)

    run(tmp_path / "unbroken")
    steps = iter(range(1000))
    with pytest.raises(TrainingStoppedError):
        run(tmp_path / "run", should_stop=lambda: next(steps) > 9)
    run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "unbroken")


@pytest.mark.slow
def test_logs_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    """What a killed run logged after its last checkpoint appears once."""
    steps = iter(range(1000))
    with pytest.raises(TrainingStoppedError):
        train(tmp_path, should_stop=lambda: next(steps) > 20)
    log = tmp_path / "log.csv"
    log.write_text(log.read_text() + log.read_text().splitlines()[1].replace("1,", "2,", 1) + "\n")
    train(tmp_path)
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3"]
    events = list((tmp_path / "tensorboard").iterdir())
    assert len(events) == 1
    assert [step for step, tag in scalars(events[0]) if tag == "val/auroc"] == [13, 26, 39]


def scalars(path: Path) -> list[tuple[int, str]]:
    """Steps and names in a TensorBoard file: length, checksum, event, checksum; and so on."""
    content, found, at = path.read_bytes(), [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + length])
        found += [(event.step, value.tag) for value in event.summary.value]
        at += 12 + length + 4
    return found


@pytest.mark.slow
def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    result = train(tmp_path)
    before = tensors(tmp_path / "last.safetensors")
    model = new_model(seed=99)
    assert train(tmp_path, model=model) == result
    assert tensors(tmp_path / "last.safetensors") == before
    best = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    assert best == tensors(tmp_path / "best.safetensors")


@pytest.mark.slow
def test_different_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    train(tmp_path, settings={"data": "a"})
    with pytest.raises(SettingsMismatchError, match="config.lr: was 0.01, is now 0.02"):
        train(tmp_path, config=TrainConfig(epochs=3, lr=2e-2), settings={"data": "a"})
    with pytest.raises(SettingsMismatchError, match="settings.data: was 'a', is now 'b'"):
        train(tmp_path, settings={"data": "b"})
    with pytest.raises(
        SettingsMismatchError, match=r"layers.3.weight: was \[1, 16\], is now \[3, 16\]"
    ):
        train(tmp_path, model=new_model(outputs=3), settings={"data": "a"})
    with pytest.raises(SettingsMismatchError, match=r"batch_size \* grad_accum: was 16, is now 32"):
        train(
            tmp_path,
            request=PlanRequest(**{**vars(PLAIN), "batch_size": 32}),
            settings={"data": "a"},
        )


@pytest.mark.slow
def test_effective_batch_may_be_split_differently_on_resume(tmp_path: Path) -> None:
    steps = iter(range(1000))
    with pytest.raises(TrainingStoppedError):
        train(tmp_path, should_stop=lambda: next(steps) > 20)
    request = PlanRequest(**{**vars(PLAIN), "batch_size": 4, "grad_accum": 4, "num_workers": 1})
    result = train(tmp_path, request=request)
    assert (result.plan.batch_size, result.plan.grad_accum, result.plan.num_workers) == (4, 4, 1)
    assert "resumed" in result.plan.reasons["batch_size"]
    assert result.history[-1]["step"] == 39


@pytest.mark.slow
def test_batch_that_the_plan_chose_may_be_requested_in_parts(tmp_path: Path) -> None:
    steps = iter(range(1000))
    with pytest.raises(TrainingStoppedError):
        train(tmp_path, request=PLAIN, should_stop=lambda: next(steps) > 4)
    result = train(tmp_path, request=FEW)
    assert (result.plan.batch_size, result.plan.grad_accum) == (16, 2)
    assert result.history[-1]["step"] == 21


def test_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "last.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(StoreError, match=r"last.safetensors\" cannot be read .* Delete it"):
        train(tmp_path)


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    child = start(stop_on_sigterm, tmp_path)
    wait_until(lambda: (tmp_path / "log.csv").exists(), child)
    with pytest.raises(StoreLockedError, match="another run is writing to"):
        train(tmp_path)
    child.terminate()
    wait(child)
