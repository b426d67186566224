"""Questions about a text: it is placed in the prompt, recorded as such, and stored per trace."""

from pathlib import Path
from typing import Any

import pytest

from clew import TraceBatchLoader, inspect
from clew.base.errors import SettingsMismatchError
from clew.base.progress import Event
from clew.storage.manifest import read_manifest
from tests.builders import ask, tiny_tokenizer, write_lines
from tests.events import notes

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Six questions, of which the first four have a context; the fourth is too long."""
    questions: list[dict[str, str]] = ask(6)
    contexts = ["who is here?", "what is there?", "who?", "what is who? " * 200]
    for question, context in zip(questions, contexts, strict=False):
        question["context"] = context
    return write_lines(tmp_path / "asked.jsonl", questions)


def test_context_is_in_the_prompt_and_in_the_trace(
    capture: Any, asked: Path, tmp_path: Path
) -> None:
    capture(questions=asked)
    traces = list(TraceBatchLoader(tmp_path / "new"))
    assert [trace["context"] for trace in traces] == [
        *("who is here?", "what is there?", "who?"),
        *(None, None),
    ]
    for trace in traces:
        prompt = tiny_tokenizer().decode(trace["tokens"][: trace["prompt_length"]].tolist())
        lead = f"{trace['context']}\n\nUse only the text above to answer. "
        plain = f"Answer the question concisely. Q: {trace['question']} A:"
        assert prompt == (f"{lead}{plain}" if trace["context"] else plain)
    settings = read_manifest(tmp_path / "new").settings
    assert settings["prompt"]["context_template"].startswith("{context}")
    assert inspect(tmp_path / "new").as_dict()["examples"][0]["context"] == "who is here?"


def test_question_with_a_context_that_is_too_long_is_excluded(
    capture: Any, asked: Path, tmp_path: Path
) -> None:
    capture(questions=asked)
    (skipped,) = read_manifest(tmp_path / "new").skipped
    assert "shorten the question or its context" in skipped["reason"]


def test_store_without_contexts_is_as_before(compact_store: Path) -> None:
    settings = read_manifest(compact_store).settings
    assert settings["prompt"].keys() == {"template", "chat"}
    assert settings["questions"].keys() == {"name", "sha256"}
    assert "context" not in next(iter(TraceBatchLoader(compact_store)))


def test_prompt_without_a_place_for_contexts_leaves_them_out(
    capture: Any, asked: Path, tmp_path: Path
) -> None:
    events: list[Event] = []
    capture(questions=asked, prompt="Q: {question} A:", reporter=events.append)
    assert any("the questions' contexts are not used" in note for note in notes(events))
    assert len(list(TraceBatchLoader(tmp_path / "new"))) == 6
    assert "context_template" not in read_manifest(tmp_path / "new").settings["prompt"]


def test_other_contexts_are_other_questions(capture: Any, asked: Path) -> None:
    capture(questions=asked)
    asked.write_text(asked.read_text().replace("who is here?", "who is there?"))
    with pytest.raises(SettingsMismatchError, match="contexts_sha256"):
        capture(questions=asked)
