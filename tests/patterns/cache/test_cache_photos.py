"""Photos are decoded once; changes in the folder are noticed, and nothing else is read."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import StoreError, StoreLockedError, TrainingStoppedError
from clew.loading.buffers import BufferPool
from clew.patterns.cache.build import CachedPhotos, cache_photos
from clew.patterns.cache.samples import ImageSamples
from clew.patterns.cache.store import ImageStore
from clew.patterns.photos import decode, find_classes
from clew.patterns.photos.decode import read_photo
from clew.storage.manifest import read_manifest
from clew.storage.verify import verify_store
from tests.patterns.cache.pictures import (
    SIZE,
    cache,
    kinds,
    make_folder,
    make_photo,
    names,
    pixels_of,
    set_date,
)

pytestmark = pytest.mark.slow


class Decoded:
    """Counts the files that are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        monkeypatch.setattr(decode, "read_photo", self._read)

    def _read(self, path: Path, size: int, *, take_turns: bool) -> object:
        self.names.append(path.name)
        return read_photo(path, size, take_turns=take_turns)

    def take(self) -> list[str]:
        taken, self.names = sorted(self.names), []
        return taken


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return Decoded(monkeypatch)


def images_of(cached: CachedPhotos) -> np.ndarray:
    labels = np.zeros(len(cached.rows), np.int64)
    samples = ImageSamples(cached.store, cached.rows, labels, place="disk")
    return samples.read_batch(np.arange(len(samples)), BufferPool())["image"].numpy().copy()


def test_every_photo_has_its_image_and_its_size(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "fotos de año 📷", 70)
    make_photo(folder / "cats" / "wide.png", 1000, side=64)
    cached = cache(folder, tmp_path / "cache")
    assert names(cached) == sorted(names(cached))
    assert len(cached.photos) == 71
    assert not cached.faults
    for photo, image, digest, sides in zip(
        cached.photos, images_of(cached), cached.digests, cached.sizes, strict=True
    ):
        assert re.fullmatch("[0-9a-f]{32}", digest)
        if photo.path.stem == "wide":
            assert sides.tolist() == [64, 64]
        else:
            assert sides.tolist() == [SIZE, SIZE]
            assert np.array_equal(image, pixels_of(int(photo.path.stem)))


def test_cache_passes_clew_verify(tmp_path: Path) -> None:
    cached = cache(make_folder(tmp_path / "photos", 5), tmp_path / "cache")
    assert verify_store(cached.store) == []
    manifest = read_manifest(cached.store)
    assert (manifest.kind, manifest.rows, manifest.settings["size"]) == ("photos", 5, SIZE)


def test_second_call_opens_no_photo(tmp_path: Path, decoded: Decoded) -> None:
    folder = make_folder(tmp_path / "photos", 40)
    first = cache(folder, tmp_path / "cache")
    assert len(decoded.take()) == 40
    second = cache(folder, tmp_path / "cache")
    assert decoded.take() == []
    assert (second.digests, second.rows.tolist()) == (first.digests, first.rows.tolist())


def test_only_added_and_changed_photos_are_read(tmp_path: Path, decoded: Decoded) -> None:
    folder = make_folder(tmp_path / "photos", 10)
    cache(folder, tmp_path / "cache")
    decoded.take()
    make_photo(folder / "cats" / "new.png", 500)
    set_date(make_photo(folder / "dogs" / "0003.png", 600), 10**9)
    cached = cache(folder, tmp_path / "cache")
    assert decoded.take() == ["0003.png", "new.png"]
    by_name = dict(zip(names(cached), images_of(cached), strict=True))
    assert np.array_equal(by_name["cats/new.png"], pixels_of(500))
    assert np.array_equal(by_name["dogs/0003.png"], pixels_of(600))
    assert len(cached.photos) == 11
    assert len(read_manifest(cached.store).shards) == 1, "small additions make no new files"


def test_removed_photo_is_excluded_and_not_decoded_again_when_it_returns(
    tmp_path: Path, decoded: Decoded
) -> None:
    folder = make_folder(tmp_path / "photos", 6)
    cache(folder, tmp_path / "cache")
    decoded.take()
    (folder / "cats" / "0002.png").rename(tmp_path / "aside.png")
    assert "cats/0002.png" not in names(cache(folder, tmp_path / "cache"))
    (tmp_path / "aside.png").rename(folder / "cats" / "0002.png")
    assert "cats/0002.png" in names(cache(folder, tmp_path / "cache"))
    assert decoded.take() == []


def test_moved_photo_is_opened_once_and_not_stored_again(tmp_path: Path, decoded: Decoded) -> None:
    folder = make_folder(tmp_path / "photos", 6)
    before = cache(folder, tmp_path / "cache")
    decoded.take()
    (folder / "cats" / "0002.png").rename(folder / "dogs" / "moved.png")
    after = cache(folder, tmp_path / "cache")
    assert decoded.take() == ["moved.png"]
    assert read_manifest(after.store).rows == 6
    assert sorted(after.digests) == sorted(before.digests)
    moved = names(after).index("dogs/moved.png")
    assert np.array_equal(images_of(after)[moved], pixels_of(2))
    cache(folder, tmp_path / "cache")
    assert decoded.take() == []


def test_one_of_several_identical_images_is_used(tmp_path: Path, decoded: Decoded) -> None:
    folder = make_folder(tmp_path / "photos", 4)
    shutil.copy(folder / "cats" / "0002.png", folder / "cats" / "copy.png")
    make_photo(folder / "cats" / "other format.bmp", 2)
    for _ in range(2):
        cached = cache(folder, tmp_path / "cache")
        assert kinds(cached) == dict.fromkeys(
            ("cats/copy.png", "cats/other format.bmp"), "duplicate"
        )
        assert '"cats/0002.png"' in cached.faults[0].reason
        assert len(cached.photos) == 4
    assert len(decoded.take()) == 6


def test_copy_in_the_test_folder_is_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a/1", "train/a/2", "train/b/3", "test/a/4", "test/b/5")):
        make_photo(tmp_path / "photos" / f"{name}.png", number)
    shutil.copy(tmp_path / "photos/test/a/4.png", tmp_path / "photos/train/a/4.png")
    cached = cache(tmp_path / "photos", tmp_path / "cache")
    assert kinds(cached) == {"train/a/4.png": "duplicate"}


def test_image_in_two_classes_is_used_in_neither(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 4)
    shutil.copy(folder / "cats" / "0002.png", folder / "dogs" / "x.png")
    shutil.copy(folder / "cats" / "0002.png", folder / "dogs" / "y.png")
    cached = cache(folder, tmp_path / "cache")
    excluded = ("cats/0002.png", "dogs/x.png", "dogs/y.png")
    assert kinds(cached) == dict.fromkeys(excluded, "contradiction")
    assert cached.faults[0].reason == (
        'the same image is in several classes: "cats/0002.png", "dogs/x.png" and 1 more; keep '
        "it only in the correct one"
    )
    assert len(cached.photos) == 3


def test_faulty_photos_are_named_and_not_retried_until_they_change(
    tmp_path: Path, decoded: Decoded
) -> None:
    folder = make_folder(tmp_path / "photos", 4)
    cut = folder / "cats" / "cut.png"
    cut.write_bytes((folder / "cats" / "0000.png").read_bytes()[:900])
    (folder / "cats" / "empty.jpg").touch()
    (folder / "dogs" / "text.png").write_text("no picture")
    make_photo(folder / "dogs" / "tiny.png", 7, side=4)
    expected = {
        "cats/cut.png": "truncated",
        "cats/empty.jpg": "empty",
        "dogs/text.png": "not an image",
        "dogs/tiny.png": "tiny",
    }
    first = cache(folder, tmp_path / "cache")
    assert kinds(first) == expected
    decoded.take()
    assert cache(folder, tmp_path / "cache").faults == first.faults
    assert decoded.take() == []
    make_photo(cut, 50)
    mended = cache(folder, tmp_path / "cache")
    assert decoded.take() == ["cut.png"]
    assert "cats/cut.png" in names(mended)


def test_unreadable_file_is_retried(tmp_path: Path, decoded: Decoded) -> None:
    """Permission to read it changes nothing that the cache could see."""
    folder = make_folder(tmp_path / "photos", 4)
    found = find_classes(folder)
    gone = folder / "cats" / "0002.png"
    gone.rename(tmp_path / "aside.png")
    os.symlink(tmp_path / "nowhere", gone)
    cached = cache_photos(found, tmp_path / "cache", SIZE, workers=1)
    assert kinds(cached) == {"cats/0002.png": "unreadable"}
    gone.unlink()
    (tmp_path / "aside.png").rename(gone)
    decoded.take()
    assert not cache_photos(found, tmp_path / "cache", SIZE, workers=1).faults
    assert decoded.take() == ["0002.png"]


def test_temporary_fault_is_reported_and_retried(tmp_path: Path, decoded: Decoded) -> None:
    found = find_classes(make_folder(tmp_path / "photos", 4))
    busy = replace(found.photos[0], path=tmp_path)
    found = replace(found, photos=(busy, *found.photos[1:]))
    for _ in range(2):
        cached = cache_photos(found, tmp_path / "cache", SIZE, workers=1)
        assert kinds(cached) == {busy.name: "unreadable"}
        assert tmp_path.name in decoded.take()


def test_each_size_has_its_own_store(tmp_path: Path) -> None:
    folder = find_classes(make_folder(tmp_path / "photos", 3))
    stores = {cache_photos(folder, tmp_path / "c", size, workers=1).store for size in (32, 64)}
    assert {store.name for store in stores} == {"32px", "64px"}
    assert all(read_manifest(store).rows == 3 for store in stores)


def test_folder_with_another_kind_of_store_is_left_alone(tmp_path: Path) -> None:
    folder = find_classes(make_folder(tmp_path / "photos", 3))
    store = cache_photos(folder, tmp_path / "c", 32, workers=1).store
    store.rename(tmp_path / "c" / "64px")
    with pytest.raises(StoreError, match="contains photos of size 32.* not photos of size 64"):
        cache_photos(folder, tmp_path / "c", 64, workers=1)


def test_stopped_caching_keeps_what_it_has(tmp_path: Path, decoded: Decoded) -> None:
    folder = make_folder(tmp_path / "photos", 400)
    with pytest.raises(TrainingStoppedError, match="32 of 400 were read and saved"):
        cache(folder, tmp_path / "cache", should_stop=lambda: True)
    decoded.take()
    assert len(cache(folder, tmp_path / "cache").photos) == 400
    assert len(decoded.take()) == 400 - 32


def test_second_writer_is_refused_but_readers_are_not(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 3)
    store = ImageStore(cache(folder, tmp_path / "cache").store, SIZE)
    with store.locked():
        (store.path / "batch_0001.arrow.part").touch()
        assert len(cache(folder, tmp_path / "cache").photos) == 3
        make_photo(folder / "cats" / "new.png", 100)
        with pytest.raises(StoreLockedError, match=r"process \d+ on .*32px.*Wait until it"):
            cache(folder, tmp_path / "cache")
