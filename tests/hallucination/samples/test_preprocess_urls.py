"""Samples at a URL are those in a folder, byte for byte, and a run there resumes."""

from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.base.urls import as_path
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.traces.schema import BASIS_NAME
from clew.storage.manifest import read_manifest, start_manifest, update_manifest
from clew.storage.place import Place
from clew.storage.places import open_place
from tests.hallucination.samples.test_preprocess_resume import assert_same_samples
from tests.hallucination.samples.trace_stores import tiny_preprocess
from tests.object_server import upload

pytestmark = pytest.mark.slow

KINDS = ("sequences", "graphs", "answers")


def read_all(place: Place) -> dict[str, bytes]:
    names = [name for name in place.names() if not name.startswith(".")]
    return {name: place.read(name, 1 << 24).data for name in names}


def read_folder(where: Path) -> dict[str, dict[str, bytes]]:
    place = open_place(where)
    return {"": read_all(place), **{kind: read_all(place.child(kind)) for kind in KINDS}}


def forget_first_shard(store: Path) -> None:
    update_manifest(store, lambda manifest: replace(manifest, shards=manifest.shards[1:]))


def test_samples_at_a_url_equal_those_in_a_folder(
    s3_url: str, compact_store: Path, scores_file: Path, preprocessed: Path
) -> None:
    out = as_path(s3_url)
    for kind in KINDS:  # started at the same time
        begun = read_manifest(preprocessed / kind)
        empty = replace(begun, shards=(), settings={**begun.settings, "sources": []}, skipped=())
        start_manifest(out / kind, empty)
    config = tiny_preprocess(compact_store, scores_file, out)
    assert preprocess_store(config).made == 70
    expected = read_folder(preprocessed)
    assert read_folder(out) == expected
    assert BASIS_NAME in expected[""]
    assert preprocess_store(config).made == 0
    for kind in KINDS:
        forget_first_shard(out / kind)
    assert preprocess_store(config).made == 20
    assert read_folder(out) == expected


def test_traces_at_a_url_are_read_through_the_cache_that_was_chosen(
    s3_url: str, tmp_path: Path, compact_store: Path, scores_file: Path, preprocessed: Path
) -> None:
    upload(compact_store, s3_url)
    sizes = {path.name: path.stat().st_size for path in compact_store.iterdir()}
    shards = [size for name, size in sizes.items() if name.startswith("batch_")]
    room = sum(sizes.values()) - sum(shards) + max(shards) + 20_000
    out, cache_dir = tmp_path / "samples", tmp_path / "chosen"
    config = tiny_preprocess(as_path(s3_url), scores_file, out, workers=1)
    preprocess_store(replace(config, cache_dir=cache_dir, cache_size=room))
    assert_same_samples(out, preprocessed)
    used = sum(path.stat().st_size for path in cache_dir.rglob("*") if path.is_file())
    assert 0 < used <= room < sum(shards) and [*cache_dir.rglob("batch_*.arrow")]


def test_samples_are_not_written_into_a_store_at_a_url(
    s3_url: str, compact_store: Path, scores_file: Path
) -> None:
    start_manifest(as_path(s3_url), read_manifest(compact_store))
    with pytest.raises(InputError, match="this is a store"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, as_path(s3_url)))
