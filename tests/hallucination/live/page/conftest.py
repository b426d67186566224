"""The folders that the page shows: a store of the tiny model with labels and a comparison."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clew.hallucination.capture import LoadedModel
from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.live.page.files import PageFiles, TraceStore, open_page_files
from clew.hallucination.live.session import Session
from clew.hallucination.samples.making import PreprocessConfig, preprocess_store
from clew.progress import ignore_event
from tests.hallucination.answer_page.making import write_comparison, write_scores


@dataclass(frozen=True, kw_only=True)
class Folders:
    traces: Path
    scores: Path
    comparison: Path


@pytest.fixture(scope="session")
def folders(compact_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    place = tmp_path_factory.mktemp("page")
    scores = place / "scores.csv"
    write_scores(compact_store, scores)
    comparison = write_comparison(place / "comparison")
    (comparison / "report.html").write_text("<h1>A report</h1>", encoding="utf-8")
    return Folders(traces=compact_store, scores=scores, comparison=comparison)


@pytest.fixture(scope="session")
def page_files(folders: Folders) -> PageFiles:
    return open_page_files(folders.traces, folders.scores, (folders.comparison,))


@pytest.fixture(scope="session")
def trace_store(page_files: PageFiles) -> TraceStore:
    assert page_files.store is not None
    return page_files.store


@pytest.fixture(scope="session")
def detector_folder(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a comparison of two methods keeps."""
    place = tmp_path_factory.mktemp("detector")
    samples, out = place / "samples", place / "comparison"
    made = PreprocessConfig(
        store=folders.traces, scores_file=folders.scores, out=samples, workers=1
    )
    preprocess_store(made, ignore_event)
    methods = ("perplexity", "linear_probe")
    config = CompareConfig(train_on=(samples,), test_on=(samples,), out=out, methods=methods)
    return compare_methods(config, ignore_event).folder / "detector"


@pytest.fixture(scope="session")
def session(detector_folder: Path, loaded: LoadedModel) -> Iterator[Session]:
    with Session.open(detector_folder, model=loaded) as opened:
        yield opened
