"""A checkpoint that somebody edited is resumed, or refused as documented."""

import random
import shutil
from pathlib import Path

import pytest

from clew.base.errors import ClewError, StoreError, TrainingStoppedError
from clew.engine.checkpoint import read_checkpoint
from clew.engine.folders import BEST, LAST
from tests.engine.hostile_models import about_edits, byte_edits, replaced, tensor_edits, with_about
from tests.engine.learning import train
from tests.events import Later


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(TrainingStoppedError):
        train(folder, should_stop=Later(20))
    return folder


def resumes(stopped: Path, folder: Path, edited: bytes) -> bool:
    """Whether the run resumes (True), or is refused as documented (False)."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(stopped, folder)
    (folder / LAST).write_bytes(edited)
    try:
        train(folder, should_stop=Later(1))
    except TrainingStoppedError:
        return True
    except ClewError as error:
        assert len(str(error)) < 5000
        return False
    return True


@pytest.mark.slow
def test_edited_checkpoint_is_resumed_or_refused(stopped: Path, tmp_path: Path) -> None:
    data = (stopped / LAST).read_bytes()
    read_checkpoint(stopped / LAST)
    edits = [*byte_edits(data), *tensor_edits(data), *about_edits(data)]
    chosen = random.Random(0).sample(edits, 40)
    outcomes = [resumes(stopped, tmp_path / "run", edited) for _, edited in chosen]
    assert outcomes.count(False) > 10


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        (("plan", "batch_size"), "16", "plan.batch_size is '16'"),
        (("request",), None, "request is None"),
        (("scaler",), [1], r"scaler is \[1\]"),
        (("settings",), 5, "settings is 5"),
    ],
)
def test_error_names_the_entry_of_a_checkpoint(
    stopped: Path, tmp_path: Path, entry: tuple[str, ...], value: object, message: str
) -> None:
    path = tmp_path / LAST
    data = (stopped / LAST).read_bytes()
    path.write_bytes(with_about(data, lambda old: replaced(old, entry, value)))
    with pytest.raises(StoreError, match=f"not a checkpoint .*{message}.*delete it to train again"):
        read_checkpoint(path)


def test_other_file_in_place_of_the_best_weights_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / BEST).write_bytes((tmp_path / "run" / LAST).read_bytes())
    with pytest.raises(StoreError, match="belong to a different network"):
        train(tmp_path / "run")
