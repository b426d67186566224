"""The ready detector: built once from questions, kept, and used to ask."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import TraceBatchLoader
from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, WorkKept, ignore_event
from clew.hallucination.capture import LoadedModel, QuestionSet
from clew.hallucination.live.built_in_detector import build_detector, built_in_detector
from clew.hallucination.questions import collect_questions
from tests.cli.running import run
from tests.stores import after_one_batch, one_thread

pytestmark = pytest.mark.slow

__all__ = ["run"]


@pytest.fixture(scope="module")
def questions(compact_store: Path) -> QuestionSet:
    """Questions of which the tiny model answers two thirds as accepted."""
    records = [
        {
            "id": trace["question_id"],
            "question": trace["question"],
            "answer": (trace["answer"].split() or ["-"])[0] if number % 3 else "never",
        }
        for number, trace in enumerate(TraceBatchLoader(compact_store))
    ]
    return collect_questions(records)


@pytest.fixture(scope="module")
def detector(
    loaded: LoadedModel, questions: QuestionSet, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a detector for the tiny model, built in two runs."""
    folder = tmp_path_factory.mktemp("built")
    given = (folder, loaded, questions, ("perplexity", "linear_probe"))
    with one_thread():
        with pytest.raises(StoppedError):
            build_detector(*given, ignore_event, after_one_batch())
        events: list[Event] = []
        made = build_detector(*given, events.append, lambda: False)
    assert [event.count for event in events if isinstance(event, WorkKept)] == [50]
    return made


def test_built_detector_assesses_what_the_model_answers(
    detector: Path, loaded: LoadedModel
) -> None:
    answers = clew.ask(["who is here?", "what is it?"], detector=detector, model=loaded)
    assert [one.question.question for one in answers] == ["who is here?", "what is it?"]
    for one in answers:
        assert (one.risk is None) == (one.state != "checked")
        assert one.detector in ("perplexity", "linear_probe")


def test_questions_come_from_a_file_with_their_contexts(
    detector: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "asked.csv"
    file.write_text("id,question,context\na,who?,Ann is here.\nb,what?,\n")
    answers = clew.ask(questions=file, context="It is here.", detector=detector, model=loaded)
    assert [one.question.context for one in answers] == ["Ann is here.", "It is here."]
    assert answers.table.column("id").to_pylist() == ["a", "b"]


def test_question_that_is_too_long_is_not_checked(detector: Path, loaded: LoadedModel) -> None:
    (answer,) = clew.ask("who? " * 1000, detector=detector, model=loaded)
    assert (answer.state, answer.risk, answer.text) == ("unavailable", None, "")
    assert "limit" in (answer.reason or "")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
        ({}, "there is no question"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, float], named: str) -> None:
    question = () if not settings else "who?"
    with pytest.raises(InputError, match=named):
        clew.ask(question, **settings)  # type: ignore[arg-type]


def test_another_model_has_no_ready_detector(loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ready detector for smollm2 only"):
        built_in_detector(loaded, cache=tmp_path)


def test_command_prints_each_answer_with_its_risk(run: Any, detector: Path) -> None:
    ended = run("ask", "who is here?", "what is it?", "--detector", detector)
    assert ended.code == 0
    first, second = ended.out.split("\n\n")
    assert first.startswith("question: who is here?\nanswer:   ")
    assert "\nrisk:     " in second


def test_questions_from_stdin_are_answered_with_a_line_of_json_each(
    run: Any, detector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("who is here?\n\n what is it?\n"))
    ended = run("ask", "--detector", detector, "--json", "--context", "it is here.")
    answers = list(map(json.loads, ended.out.splitlines()))
    assert [one["question"] for one in answers] == ["who is here?", "what is it?"]
    assert {one["context"] for one in answers} == {"it is here."}
    assert {"answer", "risk", "verdict", "state", "tokens"} <= answers[0].keys()


def test_no_question_at_all_is_an_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    ended = run("ask")
    assert ended.code == 2
    assert ended.err.startswith("clew: there is no question.")
