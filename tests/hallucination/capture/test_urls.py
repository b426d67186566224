"""A capture into a store at a URL makes what it makes in a folder."""

import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import SettingsMismatchError, StoreError, StoreLockedError
from clew.base.urls import as_path
from clew.hallucination.capture import LoadedModel, extract
from clew.storage.leases import WORK_FOLDER
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import read_manifest, start_manifest
from clew.storage.place import AccessDeniedError
from clew.storage.places import open_place
from clew.storage.uploading import numbers_with_pieces
from tests.hallucination.capture.processes import ClewProcess
from tests.hallucination.capture.test_join import SETTINGS
from tests.object_server import ObjectServer
from tests.stores import after_one_batch, one_thread, tiny_config


@pytest.fixture
def started(s3_url: str, compact_store: Path) -> Path:
    """A URL where the same store as in the folder was started, at the same time."""
    url = as_path(s3_url)
    start_manifest(url, replace(read_manifest(compact_store), shards=(), files={}))
    return url


def files_at(store: Path) -> dict[str, bytes]:
    place = open_place(store)
    names = (name for name in place.names() if not name.startswith("."))
    return {name: place.read(name, 1 << 24).data for name in names}


def test_a_capture_at_a_url_equals_that_in_a_folder(
    started: Path,
    compact_store: Path,
    loaded: LoadedModel,
    model_folder: Path,
    questions_file: Path,
) -> None:
    config = tiny_config(model_folder, questions_file, started)
    with one_thread():
        stopped = extract(config, should_stop=after_one_batch(), loaded=loaded)
        assert not stopped.finished
        result = extract(config, loaded=loaded)
    assert result.finished
    assert result.traces_made == 70 - stopped.traces_made
    assert files_at(started) == files_at(compact_store)
    assert open_place(started).child(WORK_FOLDER).names() == []


@pytest.mark.slow
def test_resume_after_a_kill_gives_the_same_store(
    started: Path, compact_store: Path, model_folder: Path, questions_file: Path, tmp_path: Path
) -> None:
    where = ("--model", str(model_folder), "--questions", str(questions_file))
    command = ["extract", *where, "--out", str(started), *SETTINGS]
    with ClewProcess(command, tmp_path / "first.txt") as first:
        assert first.wait_until(lambda: numbers_with_pieces(started) != []), first.output
        first.send(signal.SIGKILL)
        first.wait()
    with ClewProcess(command, tmp_path / "second.txt") as second:
        assert second.wait() == 0, second.output
        assert "traces recovered from an interrupted run" in second.output
    found = files_at(started)
    assert str(started).encode() in found.pop("run.toml")
    assert found == files_at(compact_store)
    assert numbers_with_pieces(started) == []


def test_another_capture_into_the_same_url_is_refused(
    started: Path, loaded: LoadedModel, model_folder: Path, questions_file: Path
) -> None:
    other = tiny_config(model_folder, questions_file, started, max_new_tokens=5)
    with pytest.raises(SettingsMismatchError, match=f'"{started}"(.|\n)*max_new_tokens'):
        extract(other, loaded=loaded)
    with (
        writer_lock(started, Part()),
        pytest.raises(StoreLockedError, match="another process is writing"),
    ):
        extract(tiny_config(model_folder, questions_file, started), loaded=loaded)


def test_a_prefix_with_other_objects_is_refused(
    s3_url: str, loaded: LoadedModel, model_folder: Path, questions_file: Path
) -> None:
    open_place(s3_url).create("holiday.jpg", b"")
    with pytest.raises(StoreError, match="neither empty nor a clew store"):
        extract(tiny_config(model_folder, questions_file, as_path(s3_url)), loaded=loaded)


def test_credentials_that_expire_in_a_run_cost_nothing_that_was_made(
    started: Path,
    object_server: ObjectServer,
    loaded: LoadedModel,
    model_folder: Path,
    questions_file: Path,
) -> None:
    config = tiny_config(model_folder, questions_file, started)
    before = len(object_server.requests)

    def expire() -> bool:
        if any(path.endswith(".part") for _, path in object_server.requests[before:]):
            object_server.refuse = lambda *_: ("400 Bad Request", "ExpiredToken")
        return False

    try:
        with one_thread(), pytest.raises(AccessDeniedError, match="credentials have expired"):
            extract(config, should_stop=expire, loaded=loaded)
    finally:
        object_server.refuse = None
    # Its leases could not be deleted either, but end with its process, which here lives on.
    leases = open_place(started).child(WORK_FOLDER)
    leases.delete(*leases.names())
    with one_thread():
        assert extract(config, loaded=loaded).traces_made < 70


def test_a_capture_survives_a_server_that_is_gone_for_a_while(
    started: Path,
    compact_store: Path,
    object_server: ObjectServer,
    loaded: LoadedModel,
    model_folder: Path,
    questions_file: Path,
    scratch: Path,
) -> None:
    config = tiny_config(model_folder, questions_file, started)
    back: list[threading.Timer] = []

    def go_away() -> bool:
        """Once, after the first batch of answers."""
        if not back:
            object_server.stop()
            back.append(threading.Timer(1, object_server.start, (object_server.port,)))
            back[0].start()
        return False

    try:
        with one_thread():
            assert extract(config, should_stop=go_away, loaded=loaded).finished
    finally:
        back[0].join()
    assert files_at(started) == files_at(compact_store)
    assert [path for path in scratch.rglob("*") if path.is_file()] == []


def test_a_capture_without_permission_to_delete_finishes(
    started: Path,
    compact_store: Path,
    object_server: ObjectServer,
    loaded: LoadedModel,
    model_folder: Path,
    questions_file: Path,
) -> None:
    config = tiny_config(model_folder, questions_file, started)
    with one_thread(), object_server.refusing("DELETE", "403 Forbidden", "AccessDenied"):
        assert extract(config, loaded=loaded).finished
    assert files_at(started) == files_at(compact_store)
