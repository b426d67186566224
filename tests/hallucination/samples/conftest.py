"""One preprocessed folder per session."""

from pathlib import Path

import pytest

from clew.hallucination.samples.preprocess import preprocess_store
from tests.hallucination.samples.trace_stores import tiny_preprocess, write_scores
from tests.loading.conftest import folder, samples

__all__ = ["folder", "preprocessed", "samples", "scores_file"]


@pytest.fixture(scope="session")
def scores_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scores(tmp_path_factory.mktemp("scores") / "scores.csv", 70)


@pytest.fixture(scope="session")
def preprocessed(
    tmp_path_factory: pytest.TempPathFactory, compact_store: Path, scores_file: Path
) -> Path:
    """The 70 traces of the compact store as samples. Shared: do not modify."""
    out = tmp_path_factory.mktemp("samples") / "preprocessed"
    preprocess_store(tiny_preprocess(compact_store, scores_file, out))
    return out
