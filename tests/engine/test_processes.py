"""Several processes under torchrun train the model that one process trains."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clew.base.errors import ClewError, InputError, TrainingStoppedError
from clew.engine import HardwarePlan, PlanRequest, TrainConfig
from clew.engine.trainer import _refuse_other_machine
from tests.engine.children import tensors, torchrun
from tests.engine.learning import PLAIN, Samples, new_model, open_loader, torch_loader, train

CONFIG = TrainConfig(epochs=3, lr=1e-2, checkpoint_every_seconds=0)
REQUEST = PlanRequest(**{**vars(PLAIN), "batch_size": 16, "grad_accum": 2})


def odd(folder: Path, **changes: Any) -> Any:
    """The last batch has three samples, which two processes share unevenly."""
    return train(
        folder,
        model=new_model(dropout=0.0),  # processes draw different random numbers
        train=open_loader(Samples(211)),
        config=CONFIG,
        request=REQUEST,
        **changes,
    )


def together(folder: Path, output: Path) -> None:
    """In each of two processes: trains; is stopped and resumes; tries a loader of PyTorch."""
    torch.set_num_threads(1)
    odd(folder / "two")
    got: list[int] = []
    steps = iter(range(1000))
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))

    def signalled() -> bool:
        if os.environ["RANK"] == "1" and next(steps) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(got)

    with output.with_suffix("." + os.environ["RANK"]).open("w") as lines:
        try:
            odd(folder / "broken", should_stop=signalled)
        except TrainingStoppedError as error:
            print("STOPPED:", error, file=lines)
        odd(folder / "broken")
        try:
            train(folder / "refused", train=torch_loader(Samples(64)), request=PLAIN)
        except ClewError as error:
            print("REFUSED:", error, file=lines)


@pytest.mark.slow
def test_two_processes_train_the_same_network_as_one(tmp_path: Path) -> None:
    odd(tmp_path / "one")
    assert torchrun(together, tmp_path, tmp_path / "said") == 0
    said = [(tmp_path / f"said.{rank}").read_text().splitlines() for rank in (0, 1)]
    one, two = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("one", "two"))
    assert two["plan"]["processes"] == 2
    for name in ("auroc", "accuracy", "f1", "loss"):
        assert two["test"][name] == pytest.approx(one["test"][name], abs=1e-4)
        assert two["best_val"][name] == pytest.approx(one["best_val"][name], abs=1e-4)
    assert [row["train_loss"] for row in two["history"]] == pytest.approx(
        [row["train_loss"] for row in one["history"]], abs=1e-5
    )
    weights = [load_file(tmp_path / name / "last.safetensors") for name in ("one", "two")]
    for name, value in weights[0].items():
        if name.startswith("model/"):
            assert value.allclose(weights[1][name], atol=1e-5), name
    # A signal to one of them stops both after the same step; resumed, it is the same run.
    assert said[0] == said[1]
    assert said[0][0].startswith("STOPPED")
    last = "last.safetensors"
    assert tensors(tmp_path / "broken" / last) == tensors(tmp_path / "two" / last)
    # Batches that every process would read in full are refused.
    assert said[0][1].startswith("REFUSED: 2 processes train together, but this DataLoader would")


def test_run_of_two_processes_is_not_resumed_by_one() -> None:
    with pytest.raises(InputError, match="started with 2 processes, but now there are 1"):
        _refuse_other_machine(HardwarePlan(processes=2), PLAIN, 1)


def test_resumed_batch_must_divide_evenly_among_processes() -> None:
    """Otherwise each process would take fewer samples, and the results would differ."""
    request = PlanRequest(**{**vars(PLAIN), "batch_size": 3, "grad_accum": 4})
    with pytest.raises(InputError, match="batch_size is 3: it is not divisible by 2 processes"):
        _refuse_other_machine(HardwarePlan(processes=2), request, 2)
