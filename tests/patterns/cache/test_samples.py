"""Batches are the same from memory, disk and device, and no photo is opened."""

import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, StoreError
from clew.engine import LoadSettings
from clew.loading.buffers import BufferPool
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.cache.samples import ImageSamples, Place, open_images
from tests.patterns.cache.pictures import SIZE, cache, make_folder, make_photo, pixels_of
from tests.stores import write_store

PLACES: tuple[Place, ...] = ("ram", "disk", "gpu")
PHOTOS = 50


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> CachedPhotos:
    """The photos themselves are deleted: no epoch can open them."""
    root = tmp_path_factory.mktemp("samples")
    found = cache(make_folder(root / "photos", PHOTOS), root / "cache")
    shutil.rmtree(root / "photos")
    return found


@pytest.fixture(scope="module")
def samples(cached: CachedPhotos) -> dict[Place, ImageSamples]:
    """Every third photo from the last to the first; its class is its number."""
    chosen = np.arange(PHOTOS)[::-3]
    labels = np.array([int(cached.photos[place].path.stem) for place in chosen])
    make = partial(ImageSamples, cached.store, cached.rows[chosen], labels, device="cpu")
    return {place: make(place=place) for place in PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_each_epoch_gives_every_image_once_with_its_class(
    samples: dict[Place, ImageSamples], place: Place
) -> None:
    settings = LoadSettings(batch_size=4, num_workers=2, shuffle=True, seed=3)
    loader = open_images(settings, samples[place])
    orders = []
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch["image"].shape[1:] == (SIZE, SIZE, 3)
            assert (batch["image"].dtype, batch["label"].dtype) == (torch.uint8, torch.int64)
            for image, label, index in zip(*batch.values(), strict=True):
                assert np.array_equal(image.numpy(), pixels_of(int(label)))
                assert samples["disk"].labels[index] == label
                seen.append(int(index))
        orders.append(seen)
        assert sorted(seen) == list(range(len(samples[place])))
    assert orders[0] != orders[1]


def test_all_places_give_the_same_batches_in_the_same_order(
    samples: dict[Place, ImageSamples],
) -> None:
    settings = LoadSettings(batch_size=5, num_workers=1, shuffle=True, seed=7)
    for batches in zip(*(open_images(settings, samples[place]) for place in PLACES), strict=True):
        for name in ("image", "label", "index"):
            assert all(torch.equal(batch[name], batches[0][name]) for batch in batches)


@pytest.mark.parametrize(("size", "sizes"), [(2, [2] * 8), (3, [3] * 5 + [2]), (64, [17])])
def test_incomplete_batch_is_skipped_if_it_is_a_small_part_of_an_epoch(
    samples: dict[Place, ImageSamples], size: int, sizes: list[int]
) -> None:
    settings = LoadSettings(batch_size=size, num_workers=1, shuffle=True, seed=3)
    loader = open_images(settings, samples["ram"], drop_last=True)
    epochs = [list(loader) for _ in range(3)]
    assert [[len(batch["image"]) for batch in epoch] for epoch in epochs] == [sizes] * 3
    seen = {int(index) for epoch in epochs for batch in epoch for index in batch["index"]}
    assert len(seen) == len(samples["ram"])


@pytest.mark.parametrize("place", PLACES)
def test_empty_batch_and_empty_split_work(cached: CachedPhotos, place: Place) -> None:
    nothing = np.zeros(0, np.int64)
    samples = ImageSamples(cached.store, nothing, nothing, place=place, device="cpu")
    assert len(samples) == 0
    assert samples.read_batch(nothing, BufferPool())["image"].shape == (0, SIZE, SIZE, 3)


def test_kept_batch_is_never_overwritten(samples: dict[Place, ImageSamples]) -> None:
    for place in ("ram", "disk"):
        kept = list(open_images(LoadSettings(batch_size=3, num_workers=2), samples[place]))
        for batch in kept:
            for image, label in zip(batch["image"], batch["label"], strict=True):
                assert np.array_equal(image.numpy(), pixels_of(int(label)))


@pytest.mark.parametrize("place", PLACES)
def test_samples_can_be_sent_to_other_processes(
    samples: dict[Place, ImageSamples], place: Place
) -> None:
    there = pickle.loads(pickle.dumps(samples[place]))
    mine, other = (s.read_batch(np.arange(3), BufferPool()) for s in (samples[place], there))
    assert torch.equal(mine["image"], other["image"])


def test_invalid_input_is_refused(cached: CachedPhotos, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="50 rows, but 2 labels"):
        ImageSamples(cached.store, cached.rows, np.zeros(2, np.int64), place="ram")
    with pytest.raises(StoreError, match="no manifest"):
        ImageSamples(cached.store.parent, cached.rows, cached.rows, place="ram")
    with pytest.raises(StoreError, match="no column|holds samples, not photos"):
        ImageSamples(write_store(tmp_path / "other"), cached.rows, cached.rows, place="ram")


def test_photos_added_during_a_run_do_not_affect_it(tmp_path: Path) -> None:
    """The test photos are read at the very end, perhaps hours later."""
    folder = make_folder(tmp_path / "photos", 8)
    cached = cache(folder, tmp_path / "cache")
    numbers = np.array([int(photo.path.stem) for photo in cached.photos])
    samples = ImageSamples(cached.store, cached.rows, numbers, place="disk")
    make_photo(folder / "cats" / "new.png", 500)
    assert len(cache(folder, tmp_path / "cache").photos) == 9
    batch = samples.read_batch(np.arange(8), BufferPool())
    for image, label in zip(batch["image"], batch["label"], strict=True):
        assert np.array_equal(image.numpy(), pixels_of(int(label)))


def test_shard_truncated_during_training_is_reported(tmp_path: Path) -> None:
    cached = cache(make_folder(tmp_path / "photos", 8), tmp_path / "cache")
    samples = ImageSamples(cached.store, cached.rows, cached.rows, place="disk")
    shard = cached.store / "batch_0000.arrow"
    shard.write_bytes(shard.read_bytes()[:5000])
    with pytest.raises(StoreError, match=r"batch_0000.arrow.*was truncated.*Repair the store"):
        samples.read_batch(np.arange(8), BufferPool())


@pytest.mark.slow
def test_memory_stays_flat_while_photos_are_cached_and_read_from_disk(tmp_path: Path) -> None:
    """120 MB of images; the process grows by a few buffers."""
    photos, size = 800, 224
    make_folder(tmp_path / "photos", photos)
    child = Path(__file__).with_name("flat_memory.py")
    command = [sys.executable, child, tmp_path / "photos", tmp_path / "cache", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, read = map(int, done.stdout.split())
    assert read == 2 * photos * size * size * 3
    assert grown < 60e6
