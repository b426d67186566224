"""What many tests share: a tiny model, its questions, and stores captured once per session."""

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pictures import choose_pictures

# Before any library reads them: no test uses the network, or a proxy for its own servers, and tiny
# models are fastest on one thread, where two test processes share two cores. Only the tests that
# are about a GPU see it (`make test` runs them afterwards): the others give the same results
# everywhere, and may fork.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_PROXY"] = "127.0.0.1"
if not os.environ.get("CLEW_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Started in the background of a script, which ignores Ctrl-C: some tests send it to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a process wrote outlives its kill before it has reached the disk, and the tests wait for no
# disk; that a file is synced before it replaces another is tested with a disk of their own.
os.fsync = os.fstat
# Until all test files are loaded: it would go through the same modules again and again.
gc.disable()

if TYPE_CHECKING:  # the process that only distributes the tests need not load the libraries
    from collections.abc import Iterator

    from clew.hallucination.capture import LoadedModel
    from tests.object_server import ObjectServer
    from tests.pages.driving import Browser, Chromium


def pytest_collection_finish() -> None:
    """One kind of rounding for all tests."""
    from clew.base.cpu import leave_slow_kernels

    leave_slow_kernels()
    gc.enable()


# Sweeps, and what takes long to start or to export: they are part of `make test-all` only.
_SWEEPS = re.compile(
    r"^(cluster|fuzz)/|/test_(faults|damaged|join|urls|torchrun|wrong_input|wheels)\.py|kill|hostile"
    r"|^test_(docs|original_page|examples|imports)\.py|memory_(stays|does_not_grow)"
    r"|^patterns/(trained/test_(onnx|program)|serving/test_(demo|process))\.py"
    r"|patterns/test_export\.py|service/test_process\.py|cli/test_converted\.py"
    r"|comparison/(test_(networks|ready)|report/test_ugly)\.py|corrupted_bytes|true_auroc"
    r"|inherit_nothing|is_served_alone|takes_no_settings|stored_answers_get_their_risks"
    r"|workers_with_another_batch|any_server_in_one_command|two_processes|processes_agree"
    r"|flipped_bytes|loads_only_what_it_needs|folder_that_is_removed|draws_any_text|an_ordinary_model"
    r"|patterns/test_flow\.py|test_seeds\.py|preprocess_urls\.py|network_trained_on_crops"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the sweeps, and whatever needs a browser."""
    here = Path(__file__).parent
    for item in items:
        name = f"{item.path.relative_to(here).as_posix()}::{item.name}"
        needs_browser = {"browser", "chromium"} & {*getattr(item, "fixturenames", ())}
        if needs_browser or _SWEEPS.search(name):
            item.add_marker("sweep")


_frozen_modules = 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The libraries that were imported are skipped by each later collection of garbage: training
    asks for one per network. Its curves are drawn for tests that ask for it."""
    global _frozen_modules
    choose_pictures(real="real_pictures" in getattr(item, "fixturenames", ()))
    if len(sys.modules) > _frozen_modules + 100:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@pytest.fixture
def real_pictures() -> None:
    """matplotlib renders, as it does for users. See `pytest_runtest_setup`."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.builders import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def reader_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader of the tiny model, which is not trained: it marks about half of the tokens."""
    from tests.hallucination.grounded.test_reader import make_reader

    folder = tmp_path_factory.mktemp("reader") / "mine"
    make_reader(model_folder).save(folder)
    return folder


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> "LoadedModel":
    """The same model in memory, so that a capture need not load it."""
    from clew.hallucination.capture import load_model

    return load_model(str(model_folder), device="cpu")


@pytest.fixture(scope="session")
def questions_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.builders import write_questions

    return write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 70)


@pytest.fixture(scope="session")
def compact_store(
    tmp_path_factory: pytest.TempPathFactory,
    model_folder: Path,
    loaded: "LoadedModel",
    questions_file: Path,
) -> Path:
    """70 traces in four shards. Shared: do not modify."""
    out = tmp_path_factory.mktemp("compact") / "store"
    return _extract(loaded, model_folder, questions_file, out)


@pytest.fixture(scope="session")
def full_store(
    tmp_path_factory: pytest.TempPathFactory,
    model_folder: Path,
    loaded: "LoadedModel",
    questions_file: Path,
) -> Path:
    """12 traces with every state and map, in three shards. Shared: do not modify."""
    out = tmp_path_factory.mktemp("full") / "store"
    changes = {"num_samples": 12, "shard_size": 5, "keep": "full"}
    return _extract(loaded, model_folder, questions_file, out, **changes)


def _extract(
    loaded: "LoadedModel", model: Path, questions: Path, out: Path, **changes: Any
) -> Path:
    from clew.hallucination.capture import extract
    from tests.stores import one_thread, tiny_config

    with one_thread():
        extract(tiny_config(model, questions, out, **changes), loaded=loaded)
    return out


@pytest.fixture
def store(compact_store: Path, tmp_path: Path) -> Path:
    """A copy of the compact store, to damage or to resume."""
    return Path(shutil.copytree(compact_store, tmp_path / "store"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test, and of the processes that it starts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the documentation assumes it, made once."""
    from tests.workspace import make_workspace

    return make_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="session")
def object_server() -> "Iterator[ObjectServer]":
    """A real S3 server on loopback; the environment of the whole session points to it."""
    from tests.object_server import ObjectServer

    server = ObjectServer()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.stop()
    server.remove_cached()


@pytest.fixture
def s3_url(object_server: "ObjectServer") -> str:
    """`s3://bucket/prefix`, empty, on that server."""
    return object_server.new_url()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chromium]":
    """A real browser, started once: that takes a second."""
    from tests.pages.driving import start_chromium

    with start_chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def browser(chromium: "Chromium") -> "Iterator[Browser]":
    """A tab of it, with storage of its own."""
    with chromium.open_tab() as tab:
        yield tab
