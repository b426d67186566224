"""Files of results, notes and progress that somebody edited give the documented error, whatever
stands in them; what is only remembered is forgotten."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from clew.base.errors import ClewError, StoreError
from clew.engine.plan import HardwarePlan
from clew.engine.state import FitResult, RunState
from clew.engine.tracking import _Note
from clew.hallucination.comparison.trial import SavedScores
from clew.hallucination.detectors.probes.method import Outcome
from clew.hallucination.detectors.training.train import ResultsFile
from clew.pages.numbers import as_number
from clew.patterns.identification.results import read_identified, read_settings
from clew.patterns.library.journal import Journal, write_listing
from clew.patterns.library.pattern_set import PatternSet, _summarize_run
from clew.patterns.review.journal import DecisionJournal
from clew.patterns.trained.model import read_results as read_finished
from clew.storage.reading import read_json
from tests.engine.hostile_models import ODD_VALUES, paths_of, replaced
from tests.stores import flip_byte

TRAINED = {
    "test_accuracy": 0.9,
    "test_accuracy_ci": [0.8, 0.95],
    "test_photos": 10,
    "classes": ["a", "b"],
    "per_class": [{"class": "a", "recall": 1.0, "test": 5}, {"class": "b", "recall": None}],
    "confusion": [[5, 0], [1, 4]],
    "best_epoch": 3,
    "epochs_run": 4,
    "seconds": 1.5,
    "images_per_second": 100.0,
    "data": {"folder": "photos", "photos": 30},
}
IDENTIFIED = {
    "made_by": "clew patterns identify",
    "settings": {"folder": "photos", "classes": ["a"]},
    "photos": [
        {
            "name": "a",
            "path": "/a",
            "best": [{"class": "a", "probability": 0.9}],
            "doubtful": False,
        },
        {
            "name": "b",
            "path": "/b",
            "best": [],
            "doubtful": False,
            "fault": {"kind": "x", "reason": "y"},
        },
    ],
}
REVIEW = {
    "format": "clew-review",
    "version": 1,
    "decisions": [
        {
            "name": "a",
            "path": "/a",
            "bytes": 3,
            "modified_ns": 5,
            "digest": "d",
            "action": "skipped",
        }
    ],
}
DECISION = {"number": 1, "action": "skipped", "step": "done", "source": "/a", "digest": "d"}
RUNS = {"runs": [{"model": "lstm"}], "data": {"train": {"correct": 3}}, "settings": {}}
SET = {"format": "clew patterns", "version": 1, "name": "a", "created": "now"}


def _read_runs(path: Path) -> object:
    file = ResultsFile(path.parent)
    file.find("lstm")
    return file.refuse_other_data({"train": {"correct": 4}}, ["lstm"])


def _open_old_review(path: Path) -> object:
    path.with_suffix(".jsonl").unlink(missing_ok=True)
    return DecisionJournal(path.with_suffix(".jsonl"))


def _summarize(path: Path) -> object:
    (path.parent / "best.safetensors").touch()
    return _summarize_run(path.parent)


READERS: dict[str, tuple[str, Any, Callable[[Path], object]]] = {
    "finished": ("results.json", TRAINED, lambda path: read_finished(path.parent, complete=True)),
    "summary": ("results.json", TRAINED, _summarize),
    "identified": ("identified.json", IDENTIFIED, read_identified),
    "identified settings": ("identified.json", IDENTIFIED, read_settings),
    "review": ("review.json", REVIEW, _open_old_review),
    "decision": ("review.jsonl", DECISION, DecisionJournal),
    "detectors": ("results.json", RUNS, _read_runs),
    "set": ("set.json", SET, lambda path: PatternSet.at(path.parent).created()),
    "tracking": (
        "tracking.json",
        {"wandb": {"run_id": "a", "epochs": 3}},
        lambda p: _Note(p, "wandb"),
    ),
}


def edits_of(content: Any) -> Iterator[Any]:
    """Every entry missing, and replaced by every odd value."""
    for at in paths_of(content):
        for odd in (..., *ODD_VALUES.values()):
            yield replaced(content, at, odd)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_edited_file_is_read_or_refused_as_documented(tmp_path: Path, name: str) -> None:
    file, content, read = READERS[name]
    path = tmp_path / file
    path.write_text(json.dumps(content))
    read(path)
    for one in (*edits_of(content), *ODD_VALUES.values()):
        path.write_text(json.dumps(one))
        _tolerate_only_clew_errors(read, path)
    for raw in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"):
        path.write_bytes(raw)
        _tolerate_only_clew_errors(read, path)
    path.unlink()
    os.mkfifo(path)
    _tolerate_only_clew_errors(read, path)


def _tolerate_only_clew_errors(read: Callable[[Path], object], path: Path) -> None:
    try:
        read(path)
    except ClewError as error:
        assert len(str(error)) < 2000


@pytest.mark.slow
def test_edited_scores_are_refused(tmp_path: Path) -> None:
    saved = SavedScores(tmp_path / "methods")
    seed = Outcome(
        validation=np.array([0.1, 0.2]),
        tests={"a": np.array([0.3])},
        parameters=5,
        chosen={"C": 1.0},
        by_layer=None,
        train_seconds=1.0,
        ms_per_answer=0.1,
    )
    saved.add("linear", {"seeds": 1}, [seed])
    [read] = saved.find("linear", {"seeds": 1}) or []
    assert read.tests["a"].tolist() == [0.3] and read.chosen == {"C": 1.0}
    path = tmp_path / "methods" / "linear.json"
    scores = path.with_suffix(".arrow")
    whole = scores.read_bytes()
    flip_byte(scores, whole.index(np.float64(0.3).tobytes()))
    with pytest.raises(StoreError, match="a checksum does not match"):
        saved.find("linear", {"seeds": 1})
    scores.write_bytes(whole)
    content = read_json(path)
    for edited in edits_of(content):
        path.write_text(json.dumps(edited))
        _tolerate_only_clew_errors(lambda _: saved.find("linear", {"seeds": 1}), path)
    path.write_text(json.dumps(content))
    saved.add("other", {}, [Outcome(**{**vars(seed), "validation": np.array([np.nan, 1.0])})])
    with pytest.raises(StoreError, match="NaN or infinity.*delete other.json"):
        saved.find("other", {})


@pytest.mark.slow
def test_state_of_a_run_round_trips_and_edits_are_value_errors() -> None:
    row = {"epoch": 1, "step": 2, "samples_per_second": 3.0, "data_wait_share": 0.1, "seconds": 9.0}
    state = RunState(total_steps=10, history=[row])
    state.consider({"auroc": 0.5, "loss": None}, 0.5, "auroc")
    saved = json.loads(json.dumps(asdict(state)))
    assert RunState.from_dict(saved) == state
    result = FitResult.of_run(state, HardwarePlan(), nn.Linear(2, 1), test=None).to_dict()
    for read, content in ((RunState.from_dict, saved), (FitResult.from_dict, result)):
        content = json.loads(json.dumps(content))
        for edited in edits_of(content):
            try:
                read(edited)
            except ValueError as error:
                assert len(str(error)) < 1000


def test_edited_lines_of_a_journal_are_forgotten(tmp_path: Path) -> None:
    good = {"photo": "a/b.jpg", "bytes": 3, "modified_ns": 5, "digest": "d"}
    source = {"source": "/x.jpg", "label": "a", "bytes": 3, "modified_ns": 5, "result": "added"}
    lines = [
        replaced(one, at, odd)
        for one in (good, source)
        for at in paths_of(one)
        for odd in ODD_VALUES.values()
    ]
    outside = [{**good, "photo": "../../etc/passwd"}, {**good, "photo": "/etc/passwd"}]
    text = "\n".join(map(json.dumps, [good, source, *outside, *lines, *ODD_VALUES.values()]))
    (tmp_path / "photos.jsonl").write_text(f"{text}\n")
    journal = Journal(tmp_path)
    assert {"a/b.jpg"} <= journal.pictures.keys() and "/etc/passwd" not in journal.pictures
    assert asdict(journal.sources["/x.jpg"])["result"] in ("added", "")
    write_listing(tmp_path, journal)


def test_integer_too_large_for_a_float_is_shown_as_missing() -> None:
    assert as_number(10**400) is None and as_number(3) == 3.0
