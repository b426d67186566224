"""A tiny model whose answers end, a store of its answers, and a detector of every method."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.capture import ExtractResult, LoadedModel, extract, load_model
from clew.hallucination.detectors import Detector
from clew.hallucination.live.session import Session
from clew.hallucination.llm import embedded
from clew.hallucination.llm.embedded import convert_gguf
from tests.builders import write_questions
from tests.hallucination.live.making import ending_model, fit_detector, preprocess_tiny
from tests.stores import one_thread, tiny_config

FitDetector = Callable[[str], Detector]


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model, downloaded and converted into an empty cache once per test run, which
    the processes of xdist share."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def keep_and_convert(file: Path, folder: Path) -> None:
        os.link(file, root / "embedded.gguf")
        convert_gguf(file, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "convert_gguf", keep_and_convert)
        return embedded.embedded_model_folder(cache=root / "embedded")


@pytest.fixture(scope="session")
def embedded_file(embedded_folder: Path) -> Path:
    """The GGUF file that it was converted from."""
    return embedded_folder.parents[2] / "embedded.gguf"


@pytest.fixture(scope="session")
def live_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = ending_model(tmp_path_factory.mktemp("live") / "model")
    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="session")
def live_store(live_model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 traces with everything kept and three drawn answers each. Shared: do not modify."""
    folder = tmp_path_factory.mktemp("live_store")
    questions = write_questions(folder / "questions.jsonl", 48)
    changes = {"keep": "full", "draws": 3, "max_new_tokens": 10, "shard_size": 24, "cut": "none"}
    changes |= {"self_evaluation": True, "entailment": True}
    config = tiny_config(Path(live_model.name), questions, folder / "store", **changes)
    with one_thread():
        extract(config, loaded=live_model)
    return config.out


@pytest.fixture(scope="session")
def live_samples(live_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preprocess_tiny(live_store, tmp_path_factory.mktemp("live_samples") / "folder").out


@pytest.fixture(scope="session")
def fit(live_samples: Path) -> FitDetector:
    """Fits a method once."""
    return cache(lambda name: fit_detector(name, live_samples))


@pytest.fixture(scope="session")
def session(live_model: LoadedModel, fit: FitDetector) -> Iterator[Session]:
    """A session with the default method. Shared: close none of it."""
    with Session(live_model, fit("fusion"), max_rows=8) as session:
        yield session


@pytest.fixture
def capture(model_folder: Path, loaded: LoadedModel, questions_file: Path, tmp_path: Path) -> Any:
    """Runs an extraction into `tmp_path/name` with the tiny model."""

    def run(name: str = "new", model: LoadedModel = loaded, **changes: Any) -> ExtractResult:
        reporter = changes.pop("reporter", None)
        should_stop = changes.pop("should_stop", lambda: False)
        questions = changes.pop("questions", questions_file)
        config = tiny_config(model_folder, questions, tmp_path / name, **changes)
        with one_thread():
            return extract(config, reporter, should_stop, model)

    return run
