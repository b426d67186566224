"""Datasets at URLs give what the same datasets on disk give."""

import threading
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from clew.base.errors import InputError, StoreError
from clew.datasets import (
    Loader,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from clew.storage.mirror import open_folder
from clew.storage.places import open_place
from tests.loading.reading import assert_same_batches, flat, places_of
from tests.object_server import ObjectServer, upload


@pytest.fixture(scope="module")
def url(samples: Path, object_server: ObjectServer) -> str:
    return upload(samples, object_server.new_url())


@pytest.fixture
def roomy(url: str, tmp_path: Path) -> dict[str, Any]:
    return {"preprocessed_dir": url, "cache_dir": tmp_path / "cache", "cache_size": "1GB"}


@pytest.fixture
def tight(samples: Path, url: str, tmp_path: Path) -> dict[str, Any]:
    """A cache for the small files and three of the largest shards: each store has five."""
    largest = max(path.stat().st_size for path in samples.glob("*/*.arrow"))
    small = open_folder(url, cache_dir=tmp_path / "cache")
    size = 3 * largest + sum(path.stat().st_size for path in small.rglob("*") if path.is_file())
    return {"preprocessed_dir": url, "cache_dir": tmp_path / "cache", "cache_size": size}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("cache", ["roomy", "tight"])
@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNMapDataset])
def test_batches_are_those_of_the_folder(
    samples: Path, request: pytest.FixtureRequest, cache: str, shuffle: bool, kind: Any
) -> None:
    extra = {"with_sequence": True, "flat": True} if kind is PreprocessedGNNMapDataset else {}
    given = request.getfixturevalue(cache)
    there = Loader(kind(**given, **extra), 8, shuffle=shuffle)
    here = Loader(kind(samples, **extra), 8, shuffle=shuffle)
    for _ in range(2):
        assert_same_batches(list(there), list(here))
    files = [path for path in given["cache_dir"].rglob("*") if path.is_file()]
    limit = given["cache_size"] if cache == "tight" else 10**9
    assert sum(path.stat().st_size for path in files) <= limit


def test_an_epoch_larger_than_the_cache_can_be_resumed(
    samples: Path, tight: dict[str, Any]
) -> None:
    whole = places_of(Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True, seed=3))
    first = Loader(PreprocessedLSTMDataset(**tight), 8, shuffle=True, seed=3)
    begun = [batch["index"].tolist() for _, batch in zip(range(5), first, strict=False)]
    second = Loader(PreprocessedLSTMDataset(**tight), 8, shuffle=True, seed=3)
    second.load_state_dict(first.state_dict())
    assert begun + places_of(second) == whole


@pytest.mark.parametrize("cache", ["roomy", "tight"])
def test_streams_have_the_same_order(
    samples: Path, request: pytest.FixtureRequest, cache: str
) -> None:
    there = PreprocessedLSTMDataset(**request.getfixturevalue(cache), shuffle_buffer_size=20)
    here = PreprocessedLSTMDataset(samples, shuffle_buffer_size=20)
    assert [sample["index"] for sample in there] == [sample["index"] for sample in here]


@pytest.mark.parametrize("cache", ["roomy", "tight"])
def test_samples_are_read_by_index(
    samples: Path, request: pytest.FixtureRequest, cache: str
) -> None:
    there = PreprocessedLSTMMapDataset(**request.getfixturevalue(cache))
    here = PreprocessedLSTMMapDataset(samples)
    for index in (100, 3, 55, -1):
        assert_same_batches([there[index]], [here[index]])


def test_rows_alone_are_fetched_from_a_store_larger_than_the_cache(
    samples: Path, tight: dict[str, Any], object_server: ObjectServer
) -> None:
    tight["cache_size"] = sum(path.stat().st_size for path in samples.glob("sequences/*.arrow")) - 1
    loader = Loader(PreprocessedLSTMDataset(**tight), 8, shuffle=True)
    list(loader)
    assert not [path for path in tight["cache_dir"].rglob("batch_*.arrow")]
    before = len(object_server.requests)
    list(loader)
    assert {path.rpartition("/")[2] for _, path in object_server.requests[before:]} == {
        f"batch_{number:04d}.arrow" for number in range(5)
    }


def test_forked_workers_of_pytorch_read_urls(
    samples: Path, roomy: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def places(**given: Any) -> list[int]:
        dataset = PreprocessedLSTMDataset(**given, batch_size=8)
        loader = DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")
        return flat(places_of(loader))

    assert places(**roomy) == places(preprocessed_dir=samples)
    assert "Warning" not in capfd.readouterr().err  # of the processes that read for them


def test_an_epoch_survives_a_server_that_is_gone_for_a_while(
    samples: Path, roomy: dict[str, Any], object_server: ObjectServer
) -> None:
    loader = Loader(PreprocessedLSTMDataset(**roomy), 8)
    port = object_server.port
    object_server.stop()
    restart = threading.Timer(1, object_server.start, (port,))
    restart.start()
    try:
        assert places_of(loader) == places_of(Loader(PreprocessedLSTMDataset(samples), 8))
    finally:
        restart.join()


def test_a_damaged_shard_ends_an_epoch_with_its_name(
    samples: Path, tmp_path: Path, object_server: ObjectServer
) -> None:
    url = upload(samples, object_server.new_url())
    folder = open_folder(url, cache_dir=tmp_path / "cache")
    content = bytearray((samples / "sequences/batch_0003.arrow").read_bytes())
    content[-2000] ^= 1
    open_place(f"{url}/sequences").replace("batch_0003.arrow", bytes(content), None)
    with pytest.raises(StoreError, match=rf"batch_0003.arrow in {url}/sequences has changed"):
        list(Loader(PreprocessedLSTMDataset(folder), 8))


def test_a_loader_can_shuffle_shard_by_shard(samples: Path, tight: dict[str, Any]) -> None:
    there = Loader(PreprocessedLSTMDataset(**tight), 8, shuffle=True, shuffle_buffer_size=20)
    here = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True, shuffle_buffer_size=20)
    whole = places_of(here)
    begun = [batch["index"].tolist() for _, batch in zip(range(5), there, strict=False)]
    again = Loader(PreprocessedLSTMDataset(**tight), 8, shuffle=True, shuffle_buffer_size=20)
    again.load_state_dict(there.state_dict())
    assert begun + places_of(again) == whole
    assert sorted(flat(whole)) == list(range(105))
    with pytest.raises(InputError, match="shuffle_buffer_size=None"):
        again.load_state_dict(
            Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True).state_dict()
        )
