"""Dataset folders and the Hugging Face Hub, also when it is unreachable."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import Question, load_questions
from tests.hallucination.questions.loading import write_trivia_qa


def test_saved_dataset_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"question": "a", "answer": ["x"]}, {"question": "b"}])
    rows.save_to_disk(tmp_path / "alone")
    datasets.DatasetDict(test=rows.select([1]), train=rows).save_to_disk(tmp_path / "both")
    alone = load_questions(str(tmp_path / "alone"), 1)
    both = load_questions(str(tmp_path / "both"))
    test = load_questions(f"{tmp_path / 'both'}:test")
    assert (alone.name, both.name, test.name) == ("alone", "both:train", "both:test")
    assert alone.questions == [Question(id="alone_0", question="a", answers=("x",))]
    assert [question.question for question in both.questions] == ["a", "b"]
    assert [question.question for question in test.questions] == ["b"]
    with pytest.raises(InputError, match='no split "dev": use one of test, train'):
        load_questions(f"{tmp_path / 'both'}:dev")


@pytest.mark.slow
def test_folder_of_files_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "quiz"
    folder.mkdir()
    for split, question in (("train", "a"), ("test", "b")):
        table = pa.Table.from_pylist([{"question": question, "answer": ["x"], "page": "long"}])
        pq.write_table(table, folder / f"{split}-00000.parquet")
    train, test = load_questions(str(folder)), load_questions(f"{folder}:default:test")
    assert (train.name, test.name) == ("quiz:train", "quiz:test")
    assert train.questions == [Question(id="quiz_0", question="a", answers=("x",))]
    assert test.questions[0].question == "b"


def test_folder_without_data_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a dataset .*: give a file in it"):
        load_questions(str(tmp_path))


def test_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as caught:
        load_questions("mandarjoshi/trivia_qa:rc.nocontext:train", 10)
    message = str(caught.value)
    assert message.startswith('dataset "mandarjoshi/trivia_qa:rc.nocontext:train" could not be')
    assert "HF_HUB_OFFLINE" in message
    assert "local file" in message


class _Hub:
    """A fake of the Hub, which tests cannot reach: endless rows and a revision."""

    class config:
        name = "rc.nocontext"

    def __init__(self, revision: str) -> None:
        self.hash = revision

    def as_streaming_dataset(self) -> dict[str, Any]:
        from datasets import IterableDataset

        def rows() -> Any:
            number = 0
            while True:
                yield {"question_id": f"tc_{number}", "question": "who?", "answer": {"value": "x"}}
                number += 1

        return {"validation": IterableDataset.from_generator(rows), "test": None}


def move_hub(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Point the Hub to a local port and turn offline mode off."""
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def answering_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub that responds but serves nothing."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        move_hub(monkeypatch, server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub that is down: its port is bound, but nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        move_hub(monkeypatch, taken.getsockname()[1])
        yield


@pytest.mark.usefixtures("answering_hub")
def test_hub_dataset_is_read_only_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: _Hub("abc"))
    loaded = load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 3)
    assert loaded.name == "mandarjoshi/trivia_qa:rc.nocontext:validation"
    assert [question.id for question in loaded.questions] == ["tc_0", "tc_1", "tc_2"]
    assert load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 5).sha256 == loaded.sha256
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: _Hub("def"))
    assert load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 3).sha256 != loaded.sha256


@pytest.mark.slow
@pytest.mark.usefixtures("silent_hub")
def test_unreachable_hub_fails_fast_without_retries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *names: asked.append(names[0]))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(InputError, match=r"could not be loaded .*\(.*refused\): check"):
        load_questions("rajpurkar/SquadV2", 3)
    assert not asked


@pytest.mark.usefixtures("silent_hub")
def test_cached_copy_is_used_when_the_hub_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rajpurkar___squad_v2").mkdir()
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: _Hub("abc"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    assert len(load_questions("rajpurkar/SquadV2", 3).questions) == 3


def test_trivia_qa_is_read_from_a_copy_in_its_own_format(tmp_path: Path) -> None:
    copy = write_trivia_qa(tmp_path / "trivia_qa")
    loaded = load_questions(f"{copy}:rc.nocontext:train", 2)
    assert [question.id for question in loaded.questions] == ["tc_0", "tc_1"]
    assert loaded.questions[0].answers[:2] == ("Sinclair Lewis", "Harry Sinclair Lewis")
    assert loaded.name == "trivia_qa:rc.nocontext:train"
    test = load_questions(f"{copy}:rc.nocontext:test")
    assert [question.id for question in test.questions] == ["tc_20", "tc_21", "tc_22"]
