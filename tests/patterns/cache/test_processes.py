"""Many photos are decoded in processes; nothing in the cache says so."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from clew.patterns.cache import build
from clew.patterns.photos import Photo, find_classes, opening
from clew.patterns.photos.decode import DecodingProcesses, Squares, read_squares
from tests.patterns.cache.pictures import SIZE, cache, make_folder
from tests.stores import assert_same_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a faulty file."""
    root = make_folder(tmp_path_factory.mktemp("some") / "photos", 40)
    (root / "cats" / "cut.png").write_bytes((root / "cats" / "0000.png").read_bytes()[:900])
    return root


@pytest.fixture(scope="module")
def photos(folder: Path) -> list[Photo]:
    return list(find_classes(folder).photos)


@pytest.fixture(scope="module")
def processes() -> Iterator[DecodingProcesses]:
    with DecodingProcesses(1) as started:
        yield started


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def assert_equal(found: Squares, expected: Squares) -> None:
    assert (found.faults, found.digests) == (expected.faults, expected.digests)
    assert np.array_equal(found.sizes, expected.sizes)
    usable = [place for place, digest in enumerate(expected.digests) if digest]
    assert np.array_equal(found.images[usable], expected.images[usable])


@pytest.mark.slow
def test_cache_is_the_same_with_processes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads, before = cache(folder, tmp_path / "threads"), children()
    monkeypatch.setattr(build, "_MANY_PHOTOS", 1)
    monkeypatch.setattr(build, "_FEW_WORKERS", 1)
    in_processes = cache(folder, tmp_path / "processes")
    assert_same_store(in_processes.store, in_threads.store)
    assert in_processes.faults == in_threads.faults
    assert children() == before, "the processes have ended"


def test_process_gives_what_this_one_does(
    processes: DecodingProcesses, photos: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_squares(photos, SIZE)
    assert list(expected.faults) == [photos.index(p) for p in photos if "cut" in p.name]
    monkeypatch.delattr("clew.patterns.photos.decode.read_photo")  # nothing is decoded here
    assert_equal(processes.read_squares(photos, SIZE), expected)


def test_photos_of_a_killed_process_are_decoded_here(photos: list[Photo]) -> None:
    expected, before = read_squares(photos, SIZE), children()
    with DecodingProcesses(1) as started:
        started.read_squares(photos[:1], SIZE)
        for process in children() - before:
            process.kill()
        for _ in range(2):
            assert_equal(started.read_squares(photos, SIZE), expected)


def test_large_photos_are_decoded_one_at_a_time_by_the_main_process(
    photos: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes that decode one each would take many times its memory."""
    expected = read_squares(photos, SIZE)
    monkeypatch.setattr(opening, "_LARGE_BYTES", 1)
    postponed = read_squares(photos, SIZE, take_turns=False)
    assert len(postponed.postponed()) == len(photos)
    for place in postponed.postponed():
        postponed.read(place, photos[place], SIZE)
    assert_equal(postponed, expected)
