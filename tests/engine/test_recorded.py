"""A model that was fitted in another way has a folder like any finished run."""

from pathlib import Path

import pytest
import torch

from clew.base.errors import SettingsMismatchError
from clew.base.progress import Event
from clew.engine import EpochEnded, TrainConfig
from clew.engine.folders import BEST
from clew.engine.trainer import record_fit
from tests.engine.learning import PLAIN, new_model, train
from tests.events import pick

ROWS = [
    {
        "epoch": number,
        "step": 10 * number,
        "train_loss": 1.0,
        "val_loss": 1.0 / number,
        "val_auroc": 0.9,
        "samples_per_second": 5.0,
        "seconds": 2.0,
    }
    for number in (1, 2)
]
CONFIG = TrainConfig(epochs=2)


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, list[Event]]:
    events: list[Event] = []
    record_fit(
        new_model(seed=1),
        ROWS,
        best_epoch=2,
        config=CONFIG,
        request=PLAIN,
        output_dir=tmp_path,
        settings={"a": 1},
        reporter=events.append,
    )
    return tmp_path, events


def test_recorded_model_is_a_finished_run(recorded: tuple[Path, list[Event]]) -> None:
    folder, events = recorded
    again: list[Event] = []
    model = new_model(seed=2)
    options = {"model": model, "config": CONFIG, "request": PLAIN, "settings": {"a": 1}}
    result = train(folder, **options, reporter=again.append)
    assert (result.best_epoch, result.best_val["auroc"], result.seconds) == (2, 0.9, 4.0)
    for mine, theirs in zip(model.parameters(), new_model(seed=1).parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(pick(events, EpochEnded)) == 2 and not again
    assert (folder / "log.csv").read_text().count("\n") == 3


def test_recorded_model_is_not_resumed_with_other_settings(
    recorded: tuple[Path, list[Event]],
) -> None:
    folder, _ = recorded
    assert (folder / BEST).exists()
    with pytest.raises(SettingsMismatchError, match="different settings"):
        train(folder, model=new_model(), config=CONFIG, request=PLAIN, settings={"a": 2})
