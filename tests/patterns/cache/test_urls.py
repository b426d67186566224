"""The cache of decoded photos at a URL is the one that a folder gets."""

from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import TrainingStoppedError
from clew.base.progress import WorkAdvanced
from clew.base.urls import as_path
from clew.loading.buffers import BufferPool
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.cache.samples import ImageSamples
from clew.patterns.cache.store import LEDGER_NAME
from clew.storage.manifest import read_manifest
from clew.storage.mirror import open_folder, set_limit
from clew.storage.places import open_place
from clew.storage.uploading import numbers_with_pieces
from clew.storage.working_copy import scratch_root
from tests.events import pick
from tests.patterns.cache.pictures import cache, kinds, make_folder, make_photo, names

PHOTOS = 40

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a few photos, several record batches and two shards; a cache of shards of its own."""
    monkeypatch.setattr("clew.patterns.cache.store._SHARD_BYTES", 30 * 32 * 32 * 3)
    monkeypatch.setattr("clew.patterns.cache.store._BATCH_BYTES_AT_URL", 1 << 14)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "mirror"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "photos", PHOTOS)
    make_photo(folder / "cats" / "equal.png", 0)
    (folder / "dogs" / "broken.png").write_bytes(b"no photo")
    return folder


def pixels(cached: CachedPhotos) -> np.ndarray:
    labels = np.zeros(len(cached.rows), np.int64)
    samples = ImageSamples(cached.store, cached.rows, labels, place="disk")
    return samples.read_batch(np.arange(len(labels)), BufferPool())["image"].numpy()


def test_photos_cached_at_a_url_are_those_of_a_folder(
    photos: Path, s3_url: str, tmp_path: Path
) -> None:
    here, there = cache(photos, tmp_path / "cache"), cache(photos, as_path(s3_url))
    assert names(there) == names(here) and there.digests == here.digests
    assert kinds(there) == kinds(here) != {}
    assert len(read_manifest(there.store).shards) == 2
    np.testing.assert_array_equal(pixels(there), pixels(here))
    again: list = []
    cache(photos, as_path(s3_url), reporter=again.append)
    assert again == [] and list(scratch_root().iterdir()) == []


def test_a_stopped_and_damaged_cache_at_a_url_is_completed(photos: Path, s3_url: str) -> None:
    url, events = as_path(s3_url), []
    with pytest.raises(TrainingStoppedError):
        cache(photos, url, should_stop=lambda: True)
    store = url / "32px"
    assert numbers_with_pieces(store) == [0]
    cached = cache(photos, url, reporter=events.append)
    decoded = sum(event.count for event in pick(events, WorkAdvanced))
    assert 0 < decoded < PHOTOS + 2
    place = open_place(store)
    whole = place.read("batch_0000.arrow", 1 << 20).data
    place.replace("batch_0000.arrow", whole[: len(whole) // 2], None)
    place.delete("batch_0001.arrow", LEDGER_NAME)
    events.clear()
    again = cache(photos, url, reporter=events.append)
    assert 10 < sum(event.count for event in pick(events, WorkAdvanced)) < PHOTOS + 2
    assert again.digests == cached.digests and kinds(again) == kinds(cached)
    np.testing.assert_array_equal(pixels(again), pixels(cached))


def test_a_store_larger_than_the_cache_is_read_by_rows(
    photos: Path, s3_url: str, tmp_path: Path
) -> None:
    here, there = cache(photos, tmp_path / "cache"), cache(photos, as_path(s3_url))
    set_limit(open_folder(there.store).base, 1000)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(pixels(there), pixels(here))
    make_photo(photos / "cats" / "new.png", 777)
    grown = cache(photos, as_path(s3_url))
    assert len(grown.photos) == len(there.photos) + 1
    assert (pixels(grown) == pixels(cache(photos, tmp_path / "cache"))).all()
