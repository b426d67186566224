"""Features of photos: computed once, aligned with the photos, and the same after a kill."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clew.base.cpu import fast_convolutions
from clew.base.errors import TrainingStoppedError
from clew.base.progress import Event, WorkAdvanced, ignore_event
from clew.base.urls import as_path
from clew.patterns.augment import AugmentConfig
from clew.patterns.features.compute import (
    PhotoFeatures,
    compute_features,
    compute_maps,
    pooled_stages,
)
from clew.patterns.features.store import FORMS, PhotoSource, Views
from clew.patterns.networks.lite0 import load_lite0
from clew.storage.mirror import open_folder
from tests.patterns.cache.pictures import cache, make_folder, make_photo

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("random_lite0")]


def equal(first: PhotoFeatures, second: PhotoFeatures) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(vars(first).values(), vars(second).values(), strict=True)
    )


class Counter:
    """Counts the images that the network looks at, and stops after some."""

    def __init__(self, stop_after: int = 10**6) -> None:
        self.images, self._stop_after = 0, stop_after

    def __call__(self, event: Event, /) -> None:
        self.images += event.count if isinstance(event, WorkAdvanced) else 0

    def should_stop(self) -> bool:
        return self.images >= self._stop_after


@pytest.mark.parametrize("form", FORMS)
def test_frozen_network_has_the_features_of_the_network(form: str) -> None:
    network = load_lite0(classes=1).eval()
    images = torch.randint(0, 256, (2, 45, 45, 3), dtype=torch.uint8)
    pixels = (images / 127.5 - 1).permute(0, 3, 1, 2)
    with fast_convolutions(), torch.no_grad():
        expected = [found.mean((2, 3)) for found in network.stages(pixels)]
        pooled = pooled_stages(network, form)(images)  # type: ignore[arg-type]
    for found, wanted in zip(pooled, (expected[-1], torch.cat(expected[:-1], 1)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("at_url", [False, True])
def test_stopped_features_resume_with_the_same_bits(
    tmp_path: Path, request: pytest.FixtureRequest, at_url: bool
) -> None:
    folder = as_path(request.getfixturevalue("s3_url")) if at_url else tmp_path / "resumed"
    cached = cache(make_folder(tmp_path / "photos", 22), tmp_path / "cache")
    whole = compute_features(cached, tmp_path / "whole", threads=2)
    stopped = Counter(stop_after=8)
    with pytest.raises(TrainingStoppedError, match="8 of 22"):
        compute_features(
            cached,
            folder,
            reporter=stopped,
            should_stop=stopped.should_stop,
        )
    rest = Counter()
    resumed = compute_features(cached, folder, threads=1, reporter=rest)
    assert rest.images == 22 - 8
    assert equal(resumed, whole)


def test_features_larger_than_the_cache_are_read_from_their_url(
    tmp_path: Path, s3_url: str
) -> None:
    folder, url = make_folder(tmp_path / "photos", 3), as_path(s3_url)
    here = compute_features(cache(folder, tmp_path / "images"), tmp_path / "features")
    open_folder(url, cache_dir=tmp_path / "small", cache_size=1000)
    cached = cache(folder, url, cache_dir=tmp_path / "small")
    assert equal(compute_features(cached, url / "features"), here)
    assert not [*tmp_path.rglob("small/**/batch_*.arrow")]


def test_only_new_photos_are_looked_at_and_rows_follow_the_photos(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 5)
    before = compute_features(cache(folder, tmp_path / "cache"), tmp_path / "features")
    make_photo(folder / "cats" / "0000_new.png", 99)
    cached, counter = cache(folder, tmp_path / "cache"), Counter()
    after = compute_features(cached, tmp_path / "features", reporter=counter)
    assert counter.images == 1
    old = [place for place, photo in enumerate(cached.photos) if "new" not in photo.name]
    assert np.array_equal(after.embedding[old], before.embedding)
    alone = compute_features(cached, tmp_path / "again", threads=1)
    assert equal(alone, after)


def test_features_have_one_row_per_photo(tmp_path: Path) -> None:
    cached = cache(make_folder(tmp_path / "photos", 3), tmp_path / "cache")
    found = compute_features(cached, tmp_path / "features")
    assert found.embedding.shape == (3, 1280)
    assert found.stages.shape == (3, 24 + 40 + 112 + 320)


def test_every_view_has_a_map_of_its_own(tmp_path: Path) -> None:
    cached = cache(make_folder(tmp_path / "photos", 3), tmp_path / "cache")
    source = PhotoSource(cached=cached, size=cached.size, views=Views(AugmentConfig(flip=True)))
    keys = [(digest, view) for view in range(3) for digest in cached.digests]
    maps = compute_maps(
        load_lite0(classes=1),
        source,
        tmp_path / "features",
        keys,
        threads=1,
        reporter=ignore_event,
        should_stop=lambda: False,
    )
    plain, first, second = maps.split(3)
    assert not first.equal(plain) and not first.equal(second)


def test_view_follows_from_the_photo_and_its_number() -> None:
    photo = torch.randint(0, 256, (1, 20, 20, 3), dtype=torch.uint8)
    keys = [("digest", view) for view in (0, 1, 1, 2)]
    views = Views(AugmentConfig(flip=True)).make(photo.expand(4, -1, -1, -1), keys)
    assert views[0].equal(photo[0])
    assert views[1].equal(views[2])
    assert not views[1].equal(views[0]) and not views[1].equal(views[3])
