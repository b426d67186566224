"""Several processes under torchrun train the model that one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from clew.engine import HardwarePlan, PlanRequest, TrainConfig
from clew.engine.trainer import _refuse_other_machine
from clew.errors import InputError
from tests.engine.children import tensors
from tests.engine.learning import PLAIN, Samples, new_model, open_loader, train

ROOT = Path(__file__).parents[2]
CONFIG = TrainConfig(epochs=3, lr=1e-2, checkpoint_every_seconds=0)
REQUEST = PlanRequest(**{**vars(PLAIN), "batch_size": 16, "grad_accum": 2})


def torchrun(code: str, processes: int = 2) -> subprocess.Popen:
    """Real processes, as the user starts them."""
    script = f"""
import os, signal
import torch
torch.set_num_threads(1)
from pathlib import Path
from clew.engine import TrainConfig
from clew.errors import ClewError, TrainingStoppedError
from tests.engine.test_processes import *
from tests.engine.learning import *
{code}
"""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(
        [*command, "--standalone", "--no-python", sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def tell(line: str) -> None:
    """In one go: the processes write to the same pipe."""
    os.write(1, f"{line}\n".encode())


def end(run: subprocess.Popen) -> str:
    """What it printed; a run that does not end is killed."""
    try:
        return run.communicate(timeout=100)[0]
    except subprocess.TimeoutExpired:
        run.terminate()  # torchrun then ends its processes
        raise AssertionError(run.communicate()[0]) from None


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


TOGETHER = """
folder = Path({folder!r})
odd(folder / "two")

got, steps = [], iter(range(1000))
signal.signal(signal.SIGTERM, lambda number, _: got.append(number))

def signalled():
    if os.environ["RANK"] == "1" and next(steps) == 9:
        os.kill(os.getpid(), signal.SIGTERM)
    return bool(got)

try:
    odd(folder / "broken", should_stop=signalled)
except TrainingStoppedError as error:
    tell("STOPPED: " + str(error))
odd(folder / "broken")

try:
    train(folder / "refused", train=torch_loader(Samples(64)), request=PLAIN)
except ClewError as error:
    tell("REFUSED: " + str(error))
"""


@pytest.mark.slow
def test_two_processes_train_the_same_network_as_one(tmp_path: Path) -> None:
    odd(tmp_path / "one")
    run = torchrun(TOGETHER.format(folder=str(tmp_path)))
    output = end(run)
    assert run.returncode == 0, output
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
    stopped = [line for line in output.splitlines() if line.startswith("STOPPED")]
    assert len(stopped) == 2 and len(set(stopped)) == 1, output
    last = "last.safetensors"
    assert tensors(tmp_path / "broken" / last) == tensors(tmp_path / "two" / last)
    # Batches that every process would read in full are refused.
    assert output.count("REFUSED: 2 processes train together, but this DataLoader would") == 2


def test_run_of_two_processes_is_not_resumed_by_one() -> None:
    with pytest.raises(InputError, match="started with 2 processes, but now there are 1"):
        _refuse_other_machine(HardwarePlan(processes=2), PLAIN, 1)


def test_resumed_batch_must_divide_evenly_among_processes() -> None:
    """Otherwise each process would take fewer samples, and the results would differ."""
    request = PlanRequest(**{**vars(PLAIN), "batch_size": 3, "grad_accum": 4})
    with pytest.raises(InputError, match="batch_size is 3: it is not divisible by 2 processes"):
        _refuse_other_machine(HardwarePlan(processes=2), request, 2)
