"""A classifier is trained into a URL, resumed from there, and used from there."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clew.patterns
from clew.base.errors import InputError, TrainingStoppedError
from clew.base.urls import as_path
from clew.patterns.report.page import write_report
from clew.patterns.trained.model import load_classifier
from clew.patterns.training import train_patterns
from clew.storage.mirror import read_limit
from clew.storage.places import open_place
from clew.storage.working_copy import scratch_root
from tests.hallucination.capture.processes import ClewProcess
from tests.patterns.training.making import small_run
from tests.stores import one_thread
from tests.workspace import inside

KEY = b"secret-of-the-tests"

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "mirror"))


def assert_same_model(url: Path, expected: Path) -> None:
    there, here = load_classifier(url, "cpu"), load_classifier(expected, "cpu")
    assert there.folder == url
    for name, value in here.network.state_dict().items():
        np.testing.assert_array_equal(value, there.network.state_dict()[name])


def test_a_classifier_at_a_url_is_resumed_and_used_there(
    photos: Path, trained: Path, s3_url: str, tmp_path: Path
) -> None:
    url = as_path(s3_url)
    config = small_run(photos, url, epochs=8)
    with one_thread():
        with pytest.raises(TrainingStoppedError):
            train_patterns(config, should_stop=lambda: bool(open_place(url).names("last")))
        results = train_patterns(config)
    assert_same_model(url, trained)
    assert write_report(url) == url / "report.html"
    with inside(tmp_path):
        found = clew.patterns.identify(photos / "azul", model=s3_url, device="cpu")
        assert found.counts["photos"] == 14 and found.folder.parts[0] == "identified"
        checked = clew.patterns.evaluate(photos, model=s3_url, device="cpu")
    assert checked.path == url / "evaluated" / photos.name
    assert checked.raw["model"] == s3_url and results["classes"] == list(checked.classes)
    started = train_patterns(
        replace(config, out=tmp_path / "next", start_from=url, epochs=1, network=None)
    )
    assert started["started_from"] == s3_url
    place = open_place(url)
    assert {"results.json", "report.html", "log.csv", "splits.csv"} < {*place.names()}
    assert not any(KEY in place.read(name, 1 << 24).data for name in place.names())
    assert list(scratch_root().iterdir()) == []


@pytest.mark.parametrize("cache_bytes", [10**6, 1000])
def test_photos_at_a_url_are_read_through_the_cache_that_was_chosen(
    photos: Path, trained: Path, s3_url: str, tmp_path: Path, cache_bytes: int
) -> None:
    url, cache_dir = as_path(s3_url), tmp_path / "chosen"
    chosen: dict = {"cache": "disk", "cache_dir": cache_dir, "cache_size": cache_bytes}
    with one_thread():
        train_patterns(small_run(photos, url, epochs=8, **chosen))
    assert_same_model(url, trained)
    assert read_limit(cache_dir / "clew-stores") == cache_bytes
    shards = [path.stat().st_size for path in cache_dir.rglob("batch_*.arrow")]
    assert bool(shards) == (cache_bytes == 10**6) and sum(shards) <= cache_bytes
    assert not (tmp_path / "mirror").exists()


def test_a_url_without_a_model_is_refused(s3_url: str, photos: Path) -> None:
    with pytest.raises(InputError, match=f'"{s3_url}" contains no trained model'):
        clew.patterns.identify(photos, model=s3_url)
    with pytest.raises(InputError, match="cache_size"):
        clew.patterns.train(photos, out=s3_url, cache_size="much")
    with pytest.raises(InputError, match=f'are both "{s3_url}"'):
        train_patterns(small_run(photos, as_path(s3_url), start_from=as_path(s3_url)))


@pytest.mark.slow
def test_a_killed_training_at_a_url_is_resumed_and_exported(
    photos: Path, s3_url: str, tmp_path: Path
) -> None:
    url = as_path(s3_url)
    command = ["patterns", "train", "--data", str(photos), "--out", s3_url, "--network", "tiny"]
    settings = ("--image-size", "16", "--epochs", "8", "--device", "cpu", "--batch-size", "16")
    command += [*settings, "--no-augment", "--lr", "0.02", "--num-workers", "0", "--threads", "1"]
    cache_dir = tmp_path / "chosen"
    command += ["--cache", "disk", "--cache-dir", str(cache_dir), "--cache-size", "5MB"]
    with ClewProcess(command, tmp_path / "first.txt") as first:
        assert first.wait_until(lambda: bool(open_place(url).names("last"))), first.output
        first.send(signal.SIGKILL)
        first.wait()
    with ClewProcess(command, tmp_path / "second.txt") as second:
        assert second.wait() == 0, second.output
        assert f"report: {s3_url}/report.html" in second.output
    assert len(load_classifier(url, "cpu").classes) == 3
    assert read_limit(cache_dir / "clew-stores") == 5 * 10**6 and [
        *cache_dir.rglob("batch_*.arrow")
    ]
    with ClewProcess(["patterns", "export", "--model", s3_url], tmp_path / "third.txt") as export:
        assert export.wait() == 0, export.output
        assert f"{s3_url}/model.onnx" in export.output
    assert open_place(url).stat("model.onnx") is not None
