"""A run whose folder is at a URL: written there as on a disk, resumed from any machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clew.base.errors import SettingsMismatchError, StoreLockedError, TrainingStoppedError
from clew.base.urls import as_path
from clew.engine import TrainConfig
from clew.engine.folders import BEST, LAST, LOG, NEXT_BEST, RESULT, TENSORBOARD
from clew.storage.lock import lone_lease
from clew.storage.place import ChangedError
from clew.storage.places import open_place
from clew.storage.working_copy import working_copy
from tests.engine.children import tensors
from tests.engine.learning import train

if TYPE_CHECKING:
    from tests.object_server import ObjectServer


def stop_after(steps: int) -> dict[str, Any]:
    left = iter(range(steps))
    return {"should_stop": lambda: next(left, None) is None}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(folder)
    return folder


def fetched(url: str, name: str, folder: Path) -> Path:
    open_place(url).fetch(name, folder / name)
    return folder / name


def test_a_run_at_a_url_resumes_and_ends_with_the_weights_of_one_on_disk(
    on_disk: Path, s3_url: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingStoppedError):
        train(s3_url, **stop_after(20))
    resumed = train(s3_url)
    for name in (LAST, BEST):
        assert tensors(fetched(s3_url, name, tmp_path)) == tensors(on_disk / name)
    place = open_place(s3_url)
    assert len(fetched(s3_url, LOG, tmp_path).read_text().splitlines()) == 4
    assert len(place.child(TENSORBOARD).names()) == 1  # those of the stopped run are deleted
    assert NEXT_BEST not in place.names() and place.child(".work").names() == []
    # A finished run is read back, and other settings are refused by their URL.
    assert train(s3_url).test == resumed.test
    with pytest.raises(SettingsMismatchError, match=f'the run in "{s3_url}" was started with'):
        train(s3_url, config=TrainConfig(epochs=4))


def test_a_url_that_another_run_writes_to_is_refused(s3_url: str) -> None:
    with lone_lease(as_path(s3_url)), pytest.raises(StoreLockedError, match="process is writing"):
        train(s3_url)
    assert open_place(s3_url).names() == []


def test_a_run_without_the_right_to_delete_ends_as_any_other(
    on_disk: Path, s3_url: str, tmp_path: Path, object_server: "ObjectServer"
) -> None:
    with object_server.refusing("DELETE", "403 Forbidden", "AccessDenied"):
        with pytest.raises(TrainingStoppedError):
            train(s3_url, **stop_after(20))
        train(s3_url)
    assert tensors(fetched(s3_url, BEST, tmp_path)) == tensors(on_disk / BEST)


def test_what_another_process_wrote_is_not_overwritten(s3_url: str) -> None:
    place = open_place(s3_url)
    with working_copy(as_path(s3_url)) as folder:
        assert not (folder / RESULT).exists()
        place.create(RESULT, b"theirs")
        with pytest.raises(ChangedError, match=f"{RESULT} in {s3_url} was created by another"):
            (folder / RESULT).write_bytes(b"ours")
            (folder / RESULT).publish()
        assert (folder / RESULT).exists() and (folder / RESULT).read_bytes() == b"theirs"
    assert not folder.is_dir()
