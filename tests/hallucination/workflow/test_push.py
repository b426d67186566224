"""`clew push` and detectors at hf://, through a hub on loopback."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import clew
from clew.base.errors import InputError, StoreError
from clew.base.progress import ignore_event
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.detector_folder import FILES, save_detector
from clew.hallucination.grounded.folder import ADAPTER, READER_JSON
from clew.hallucination.hub import HUB_FILES, fetch_detector
from clew.hallucination.live.feedback import FEEDBACK_FILE
from tests.cli.running import run
from tests.events import notes
from tests.hallucination.conftest import FitDetector
from tests.hub_server import FakeHub, open_hub

pytestmark = pytest.mark.slow
__all__ = ["run"]
NAME = "ann/probe"
ROWS = [{"question": f"Who is {i}?", "answer": f"The capital of {i}"} for i in range(4)]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with open_hub(tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def folder(fit: FitDetector, tmp_path: Path) -> Path:
    """A detector with what is not to leave the machine."""
    folder = save_detector(fit("linear_probe"), tmp_path / "detector")
    for name in ("known.safetensors", FEEDBACK_FILE, "promise.html"):
        (folder / name).write_text("private")
    return folder


@pytest.fixture
def risks(live_model: LoadedModel) -> Callable[..., list[float | None]]:
    def score(detector: Any) -> list[float | None]:
        found = clew.score(
            questions=ROWS, detector=detector, model=live_model, reporter=ignore_event
        )
        return [row["risk"] for row in found.rows]

    return score


@pytest.mark.usefixtures("hub")
def test_pushed_detector_gives_the_same_risks(
    folder: Path, risks: Callable[..., list[float | None]]
) -> None:
    pushed = clew.push(folder, NAME)
    assert pushed.name == f"hf://{NAME}@{pushed.revision}"
    assert risks(f"hf://{NAME}") == risks(pushed.name) == risks(folder)
    assert risks(Path(f"hf://{NAME}")) == risks(clew.load_detector(pushed.name))
    told = clew.inspect(f"hf://{NAME}")
    assert isinstance(told, Detector) and told.name == "linear_probe"


def test_known_answers_and_feedback_stay_unless_asked_for(hub: FakeHub, folder: Path) -> None:
    pushed = clew.push(folder, NAME)
    assert pushed.excluded == [FEEDBACK_FILE, "known.safetensors", "promise.html"]
    there = hub.repositories[NAME]
    assert there.private and not pushed.public
    assert {*there.commits[pushed.revision]} == {".gitattributes", *pushed.files}
    with_them = clew.push(folder, NAME, known_answers=True, feedback=True)
    assert there.commits[with_them.revision][FEEDBACK_FILE] == b"private"
    assert with_them.excluded == ["promise.html"]
    again = clew.push(folder, NAME)
    assert {*there.commits[again.revision]} == {".gitattributes", *pushed.files}


def test_card_has_what_a_reader_looks_for(hub: FakeHub, folder: Path) -> None:
    pushed = clew.push(folder, NAME, license="mit")
    card = hub.repositories[NAME].commits[pushed.revision]["README.md"].decode()
    _, about, text = card.split("---\n", 2)
    assert yaml.safe_load(about)["library_name"] == "clew"
    assert yaml.safe_load(about)["license"] == "mit"
    for wanted in ("## Use", "## Training data", "## Results", "## Calibration", "## Limits"):
        assert wanted in text
    assert f'clew.serve("hf://{NAME}")' in text and "threshold" in text


@pytest.mark.usefixtures("hub")
def test_command_pushes_and_tells_what_stays(run: Any, folder: Path) -> None:
    pushed = run("push", folder, NAME)
    assert "pushed (private): README.md, detector.json, detector.safetensors" in pushed.out
    assert "not pushed: feedback.jsonl, known.safetensors, promise.html" in pushed.out
    assert f"detector: hf://{NAME}@" in pushed.out
    assert "detector: linear_probe" in run("inspect", f"hf://{NAME}").out
    missing = run("inspect", "hf://ann/none")
    assert missing.code == 2 and missing.err.count("\n") == 1


def test_revision_is_pinned(hub: FakeHub, folder: Path, fit: FitDetector) -> None:
    first = clew.push(folder, NAME)
    save_detector(fit("perplexity"), folder)
    second = clew.push(folder, NAME)
    hub.repositories[NAME].tags["v1"] = first.revision
    found = {one: clew.load_detector(f"hf://{NAME}{one}").name for one in ("", "@v1")}
    assert found == {"": "perplexity", "@v1": "linear_probe"}
    assert clew.load_detector(first.name).name == "linear_probe"
    assert clew.load_detector(second.name).name == "perplexity"
    with pytest.raises(InputError, match=r'it has no revision "v2": give a commit, a tag'):
        clew.load_detector(f"hf://{NAME}@v2")


def test_fetched_revision_is_used_offline(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = clew.push(folder, NAME)
    with pytest.raises(InputError, match=r"it is not on this machine, and .* connect to the Hub"):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        clew.load_detector(f"hf://{NAME}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    clew.load_detector(f"hf://{NAME}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told: list[str] = []
    asked = len(hub.requests)
    found = fetch_detector(f"hf://{NAME}", lambda event: told.extend(notes([event])))
    assert found.name == pushed.revision and pushed.revision in told[0]
    assert clew.load_detector(pushed.name).name == "linear_probe"
    assert len(hub.requests) == asked


def test_reader_is_pushed_and_checks_alike(hub: FakeHub, reader_folder: Path) -> None:
    pushed = clew.push(reader_folder, "ann/reader", public=True)
    assert not hub.repositories["ann/reader"].private
    texts: dict[str, Any] = {"source": "Items return in 30 days.", "answer": "Within 60 days."}
    ours = clew.check(**texts, reader=reader_folder, reporter=ignore_event)
    theirs = clew.check(**texts, reader=pushed.name, reporter=ignore_event)
    assert ours.risk == theirs.risk
    scored = clew.score(questions=[texts], detector=pushed.name, reporter=ignore_event)
    assert scored.rows[0]["risk"] is not None
    with pytest.raises(InputError, match="stays as it is: give a folder for yours with `out`"):
        clew.calibrate(pushed.name, labeled="mine.jsonl")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("token", ["hf_wrong", None])
def test_wrong_token_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    clew.push(folder, NAME)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    else:
        monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match=r"status 401.*: log in with .hf auth login., or set HF"):
        clew.load_detector(f"hf://{NAME}")
    with pytest.raises(InputError, match=r"status 401.*: log in with .hf auth login., or set HF"):
        clew.push(folder, "ann/other")


@pytest.mark.usefixtures("hub")
def test_missing_repository_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"hf://ann/none.: there is no such repository, or you"):
        clew.load_detector("hf://ann/none")


def test_cut_download_is_no_detector(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the attempts
    clew.push(folder, NAME)
    hub.cut = "detector.safetensors"
    with pytest.raises(InputError, match="the connection to the Hub failed .*: try again"):
        clew.load_detector(f"hf://{NAME}")
    hub.cut = ""
    assert clew.load_detector(f"hf://{NAME}").name == "linear_probe"


def test_only_files_of_a_detector_are_fetched(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    pushed = clew.push(folder, NAME)
    repository = hub.repositories[NAME]
    files = repository.commits[pushed.revision]
    hostile = {"../../evil.json": b"x", "model.pkl": b"x", "sub/detector.json": b"{}"}
    repository.commit({**files, **hostile})
    assert clew.load_detector(f"hf://{NAME}").name == "linear_probe"
    names = {path.name for path in tmp_path.rglob("*") if path.is_symlink()}
    assert names == {"detector.json", "detector.safetensors"}
    assert not any("evil" in one or "pkl" in one for one in hub.requests)


def test_changed_file_and_large_file_are_refused(hub: FakeHub, folder: Path) -> None:
    pushed = clew.push(folder, NAME)
    repository = hub.repositories[NAME]
    files = repository.commits[pushed.revision]
    repository.listed = {name: 1 << 40 for name in files}
    with pytest.raises(InputError, match=r"detector.json has 1.1 TB, and at most 67.1 MB are fe"):
        clew.load_detector(f"hf://{NAME}")
    repository.listed = None
    about = json.loads(files["detector.json"])
    repository.commit({**files, "detector.json": json.dumps({**about, "threshold": 0.0}).encode()})
    with pytest.raises(StoreError, match="changed after it was written"):
        clew.load_detector(f"hf://{NAME}")
    repository.commit({"README.md": b""})
    with pytest.raises(InputError, match="it contains no detector"):
        clew.load_detector(f"hf://{NAME}")


def test_nothing_else_is_overwritten_or_made_public(hub: FakeHub, folder: Path) -> None:
    clew.push(folder, NAME, public=True)
    with pytest.raises(InputError, match="it is public: push there with `public=True`"):
        clew.push(folder, NAME)
    clew.push(folder, "ann/model")
    hub.repositories["ann/model"].commit({"README.md": b"mine", "model.safetensors": b""})
    with pytest.raises(InputError, match="it contains something other than a detector"):
        clew.push(folder, "ann/model")


@pytest.mark.parametrize(
    "name", ["probe", "ann/../probe", "ann/probe@", "ann/probe@../x", "ann/a b", "ann--x/probe"]
)
def test_names_that_are_none_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match='write "owner/name"'):
        clew.load_detector(f"hf://{name}")
    with pytest.raises(InputError, match='write "owner/name"'):
        clew.push(folder, name)


def test_every_file_of_a_detector_can_be_fetched() -> None:
    assert {*HUB_FILES} == {*FILES, FEEDBACK_FILE, READER_JSON, ADAPTER}
