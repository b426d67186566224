"""Decisions about findings, over the page's real server: what happens to the photos."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clew.base.errors import InputError
from clew.patterns.cleaning.findings import CleanPlace, Findings
from clew.patterns.cleaning.session import (
    Cleaning,
    open_cleaning,
    undo_changes,
)
from clew.patterns.library.importing import import_photos
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review.review import open_page
from tests.patterns.cleaning.making import list_files, make_finding, make_findings, write_set
from tests.patterns.review.test_app import fetch

pytestmark = pytest.mark.slow

LABEL = make_finding("temple/0.png", suggestion="flower")
TWICE = make_finding("temple/1.png", "duplicate", other="temple/2.png", other_digest="two")
ODD = make_finding("temple/0.png", "outlier")


@pytest.fixture
def place(tmp_path: Path) -> CleanPlace:
    return CleanPlace.of_folder(write_set(tmp_path / "photos", per_class=3))


@pytest.fixture
def findings(place: CleanPlace) -> Findings:
    return make_findings(place.data, LABEL, TWICE, ODD)


@pytest.fixture
def cleaning(place: CleanPlace, findings: Findings) -> Iterator[Cleaning]:
    with open_cleaning(place, findings) as opened:
        yield opened


@contextmanager
def serve(cleaning: Cleaning) -> Iterator[str]:
    with open_page(cleaning) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server.address
        finally:
            server.stop()
            thread.join(timeout=60)


def answer(address: str, **body: Any) -> tuple[int, dict[str, Any]]:
    status, content, _ = fetch(f"{address}answer", {"question": 0, **body})
    return status, json.loads(content)


def test_relabeled_photo_moves_into_the_other_class(cleaning: Cleaning) -> None:
    cleaning.relabel(0, "flower")
    assert list_files(cleaning.data)[:4] == [f"flower/{one}.png" for one in ("0-2", "0", "1", "2")]
    assert not cleaning.is_open(0) and not cleaning.is_open(2)  # the outlier was the same photo
    cleaning.undo()
    assert cleaning.is_open(0) and cleaning.is_open(2) and (cleaning.data / LABEL.name).is_file()
    assert cleaning.counts() == {"relabeled": 0, "moved": 0, "removed": 0, "kept": 0}


def test_new_class_may_be_named(cleaning: Cleaning) -> None:
    cleaning.relabel(0, "pagoda")
    assert (cleaning.data / "pagoda/0.png").is_file() and "pagoda" in cleaning.classes
    with pytest.raises(InputError, match="cannot be the name of a class"):
        cleaning.relabel(1, "../../etc")


def test_kept_photos_are_not_asked_about_again(findings: Findings, cleaning: Cleaning) -> None:
    cleaning.keep(0)
    again = Cleaning(
        findings, cleaning.decisions, next_call=cleaning.next_call, again_call=cleaning.again_call
    )
    assert [finding.kind for finding in again.findings] == ["duplicate", "outlier"]
    left = findings.without({change.key for change in cleaning.decisions.journal})
    assert len(left) == 2 and "1 finding not listed" in left.notes[0]


def test_photo_moves_to_another_split(tmp_path: Path) -> None:
    data = tmp_path / "photos"
    for split in ("train", "test"):
        write_set(data / split, per_class=2)
    twice = make_finding("train/temple/1.png", "leak", other="test/temple/1.png", other_digest="2")
    place = CleanPlace.of_folder(data)
    with open_cleaning(place, make_findings(data, twice, split_folders=True)) as cleaning:
        cleaning.move(0, "test")
        assert (data / "test/temple/1-2.png").is_file() and not (data / twice.name).exists()
        cleaning.undo()
        cleaning.relabel(0, "flower")
        assert (data / "train/flower/1-2.png").is_file()


def test_page_shows_photos_and_carries_out_decisions(cleaning: Cleaning) -> None:
    with serve(cleaning) as address:
        state = json.loads(fetch(f"{address}state")[1])
        assert [one["open"] for one in state["kinds"]] == [1, 0, 1, 0, 1, 0]
        assert state["findings"]["label"][0]["suggestion"] == "flower"
        for path in ("photos/1/0", "photos/1/1", "thumbnails/0/0"):
            status, content, _ = fetch(address + path)
            assert status == 200 and Image.open(io.BytesIO(content)).format == "JPEG"
        for path in ("photos/0/1", "photos/9/0", "photos/0/2", "other/0/0", "changes.jsonl"):
            assert fetch(address + path)[0] in (404, 422)
        for name in ("", "page.css", "page.js", "review.css", "review.js", "search.js"):
            assert fetch(address + name)[0] == 200
        assert fetch(f"{address}report")[0] == 404
        (cleaning.decisions.journal.path.with_name("report.html")).write_text("<script>1</script>")
        assert fetch(f"{address}report")[2]["Content-Security-Policy"].startswith("sandbox")
        status, state = answer(address, action="remove", finding=1, other=True)
        assert status == 200 and state["counts"]["removed"] == 1
    assert list_files(cleaning.decisions.removed) == ["temple/2.png"]


def test_two_browsers_decide_each_finding_once(cleaning: Cleaning) -> None:
    with serve(cleaning) as address:
        assert answer(address, action="keep", finding=0)[0] == 200
        status, state = answer(address, action="remove", finding=0)
        assert status == 409 and "The page was out of date" in state["error"]
        # The second browser's page still shows the state before: it may decide something else.
        assert answer(address, action="keep", finding=1)[0] == 200
        assert answer(address, action="undo")[0] == 409
        status, state = answer(address, question=2, action="undo")
        assert status == 200 and state["place"] == 1
    assert (cleaning.data / LABEL.name).is_file()


@pytest.mark.parametrize(
    "body",
    [
        {"action": "relabel", "finding": 0, "label": ""},
        {"action": "relabel", "finding": 0, "label": "temple"},
        {"action": "remove", "finding": 0, "other": True},
        {"action": "move", "finding": 0, "label": "test"},
        {"action": "undo"},
    ],
)
def test_impossible_decisions_change_nothing(cleaning: Cleaning, body: dict[str, Any]) -> None:
    before = list_files(cleaning.data)
    with serve(cleaning) as address:
        status, state = answer(address, **body)
    assert status == 400 and state["error"] and list_files(cleaning.data) == before


def test_changes_are_undone_without_the_page(place: CleanPlace, findings: Findings) -> None:
    with open_cleaning(place, findings) as cleaning:
        cleaning.remove(0)
        cleaning.keep(1)
    assert [change.action for change in undo_changes(place, 5).undone] == ["keep", "remove"]
    assert (place.data / LABEL.name).is_file()
    with pytest.raises(InputError, match="nothing to undo"):
        undo_changes(place, 1)


def test_removed_photo_of_a_set_is_not_imported_again(tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", per_class=3)
    animals = PatternSet.create("animals", tmp_path / "patterns")
    import_photos(animals, [source])
    findings = make_findings(animals.photos, LABEL, make_finding("flower/1.png"))
    place = CleanPlace.of_set(animals)
    with open_cleaning(place, findings) as cleaning:
        cleaning.remove(0)
        cleaning.relabel(1, "temple")
    kinds = {one.photo or one.source: one.kind for one in import_photos(animals, [source]).results}
    assert kinds[str(source / "temple/0.png")] == "removed"
    assert kinds[str(source / "flower/1.png")] == "contradiction"
    assert not (animals.photos / "temple/0.png").exists()
    undo_changes(place, 2)
    assert {one.result for one in import_photos(animals, [source]).results} == {"already there"}


def test_set_learns_of_a_removal_that_a_kill_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_set(tmp_path / "source", per_class=3)
    animals = PatternSet.create("animals", tmp_path / "patterns")
    import_photos(animals, [source])
    place, findings = CleanPlace.of_set(animals), make_findings(animals.photos, LABEL)

    def die(*_: object) -> None:
        raise SystemExit

    with pytest.raises(SystemExit), open_cleaning(place, findings) as cleaning:
        monkeypatch.setattr(PatternSet, "note_move", die)
        cleaning.remove(0)
    monkeypatch.undo()
    with open_cleaning(place, findings) as cleaning:
        assert [change.action for change in cleaning.decisions.journal] == ["remove"]
    assert "removed" in {one.kind for one in import_photos(animals, [source]).results}
    assert not (animals.photos / "temple/0.png").exists()
