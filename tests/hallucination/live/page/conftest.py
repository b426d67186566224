"""The folders that the page shows: a store of the tiny model with labels and a comparison."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clew.base.progress import ignore_event
from clew.hallucination.capture import LoadedModel, extract, load_model
from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.live.page.stored import BrowsedStore, PageFiles, open_page_files
from clew.hallucination.live.session import Session
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.source import PreprocessConfig
from tests.builders import tiny_loaded
from tests.hallucination.answer_page.making import write_comparison, write_scores
from tests.stores import one_thread, tiny_config

REPORT = '<link rel="icon" href="data:,"><h1>A report</h1>'


@dataclass(frozen=True, kw_only=True)
class Folders:
    traces: Path
    scores: Path
    comparison: Path


@pytest.fixture(scope="session")
def ending_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny model that often ends its answers, so that they can be checked."""
    folder = tmp_path_factory.mktemp("ending") / "tiny"
    model, tokenizer = tiny_loaded()
    model.lm_head.weight.data[tokenizer.eos_token_id] *= 4
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="session")
def folders(
    ending_model: LoadedModel, questions_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Folders:
    place = tmp_path_factory.mktemp("page")
    traces, scores = place / "traces", place / "scores.csv"
    config = tiny_config(Path(ending_model.name), questions_file, traces, max_new_tokens=12)
    with one_thread():
        extract(config, loaded=ending_model)
    write_scores(traces, scores)
    comparison = write_comparison(place / "comparison")
    (comparison / "report.html").write_text(REPORT, encoding="utf-8")
    return Folders(traces=traces, scores=scores, comparison=comparison)


@pytest.fixture(scope="session")
def page_files(folders: Folders) -> PageFiles:
    return open_page_files(folders.traces, folders.scores, (folders.comparison,))


@pytest.fixture(scope="session")
def trace_store(page_files: PageFiles) -> BrowsedStore:
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
    config = CompareConfig(
        train_on=(samples,), test_on=(samples,), out=out, methods=methods, keep_at_chance=True
    )
    return compare_methods(config, ignore_event).folder / "detector"


@pytest.fixture(scope="session")
def session(detector_folder: Path, ending_model: LoadedModel) -> Iterator[Session]:
    with Session.open(detector_folder, model=ending_model) as opened:
        yield opened
