from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.capture import ExtractResult, LoadedModel, extract
from tests.stores import one_thread, tiny_config


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
