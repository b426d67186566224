"""A session of a tiny chat model with a real detector, and a server around it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.hallucination.capture import LoadedModel, load_model
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import Served, serving

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that has a chat template."""
    from tests.builders import tiny_loaded

    folder = tmp_path_factory.mktemp("chat") / "tiny"
    model, tokenizer = tiny_loaded(context=1024)
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat_model(chat_folder: Path) -> LoadedModel:
    return load_model(str(chat_folder), device="cpu")


@pytest.fixture(scope="session")
def detector_folder(
    tmp_path_factory: pytest.TempPathFactory,
    chat_folder: Path,
    chat_model: LoadedModel,
    questions_file: Path,
) -> Path:
    """A probe that a comparison has kept for the tiny chat model."""
    return keep_probe(chat_folder, chat_model, questions_file, tmp_path_factory.mktemp("made"))


def keep_probe(folder: Path, model: LoadedModel, questions_file: Path, made: Path) -> Path:
    """The folder of a detector for a tiny model."""
    from clew.base.progress import ignore_event
    from clew.hallucination.capture import extract
    from clew.hallucination.comparison import compare_methods
    from tests.hallucination.comparison.making import compare_config
    from tests.hallucination.live.making import preprocess_tiny
    from tests.stores import one_thread, tiny_config

    with one_thread():
        extract(tiny_config(folder, questions_file, made / "traces"), loaded=model)
        samples = preprocess_tiny(made / "traces", made / "samples").out
        config = compare_config(samples, made / "comparison", methods=("linear_probe",), seeds=1)
        compare_methods(config, ignore_event)
    return made / "comparison" / "detector"


@pytest.fixture(scope="session")
def session(detector_folder: Path, chat_model: LoadedModel) -> Iterator[Session]:
    with Session.open(detector_folder, model=chat_model) as opened:
        yield opened


@pytest.fixture(scope="session")
def narrow_session(detector_folder: Path, chat_model: LoadedModel) -> Iterator[Session]:
    """One answer at a time, and one that waits."""
    with Session.open(detector_folder, model=chat_model, max_rows=1, max_waiting=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def served(session: Session) -> Iterator[Served]:
    with serving(session) as opened:
        yield opened
