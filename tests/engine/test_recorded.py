"""A run whose first epoch was fitted without steps: `fit` continues from there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clew.base.errors import SettingsMismatchError
from clew.engine import FitResult, TrainConfig
from clew.engine.trainer import record_epoch
from tests.engine.learning import PLAIN, Samples, new_model, open_loader, train

ROW = {"train_loss": 1.0, "samples_per_second": 5.0, "seconds": 2.0}
TRAIN, VALIDATION = open_loader(Samples(200)), open_loader(Samples(80, seed=1))


def run(folder: Path, model: nn.Module, *, epochs: int, **changes: Any) -> FitResult:
    options: dict[str, Any] = {
        "config": TrainConfig(epochs=epochs + 1, lr=1e-2),
        "request": PLAIN,
        "settings": {"a": 1},
    }
    if not (folder / "last.safetensors").exists():
        with torch.no_grad():
            record_epoch(
                model,
                TRAIN,
                VALIDATION,
                ROW,
                begin=lambda: [one.zero_() for one in model.parameters()] and None,
                output_dir=folder,
                **options,
            )
    return train(folder, model=model, **options | changes)


def test_run_without_steps_keeps_the_recorded_weights(tmp_path: Path) -> None:
    result = run(tmp_path, model := new_model(seed=1), epochs=0)
    assert (result.best_epoch, len(result.history)) == (1, 1) and result.seconds >= 2
    for mine, theirs in zip(model.parameters(), new_model(seed=1).parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert (tmp_path / "log.csv").read_text().count("\n") == 2


def test_training_continues_from_what_the_recorded_epoch_leaves(tmp_path: Path) -> None:
    result = run(tmp_path, new_model(seed=1), epochs=2)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert result.history[0].keys() == result.history[1].keys()
    assert [row["step"] for row in result.history] == [0, 7, 14]
    again = run(tmp_path, new_model(seed=2), epochs=2)
    assert again == result


def test_recorded_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    run(tmp_path, new_model(), epochs=0)
    with pytest.raises(SettingsMismatchError, match="different settings"):
        run(tmp_path, new_model(), epochs=0, settings={"a": 2})
