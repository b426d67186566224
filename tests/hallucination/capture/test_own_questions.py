"""Own questions: a chat model is asked for answers that look like the accepted ones."""

from pathlib import Path
from typing import Any

import pytest

import clew
from clew.base.errors import SettingsMismatchError
from clew.base.progress import Event
from clew.storage.manifest import read_manifest
from tests.builders import tiny_loaded
from tests.events import notes

pytestmark = pytest.mark.slow

SHORT = "{question} Answer only, without a sentence."
SENTENCES = "{question} Answer in one or two sentences."


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Asks for the names of things with these accepted answers; returns the store's settings."""
    loaded = tiny_loaded()
    loaded.tokenizer.chat_template = "{{ messages[0]['content'] }} A:"

    def extract(*answers: str, **settings: Any) -> Any:
        asked = [{"question": f"who is {i}?", "answer": one} for i, one in enumerate(answers)]
        out = tmp_path / "store"
        limits: dict[str, Any] = {"max_new_tokens": 4, "threads": 1}
        clew.extract(model=loaded, questions=asked, out=out, **limits, **settings)
        return read_manifest(out).settings

    return extract


@pytest.mark.parametrize(
    ("answers", "template", "cut"),
    [
        (("Paris", "8", "The capital of Spain is Madrid, in its middle."), SHORT, "sentence"),
        (("A spider has eight legs.", "It is the capital of Spain, Madrid."), SENTENCES, "line"),
        (("", ""), "{question}", "sentence"),
    ],
)
def test_prompt_and_cut_follow_the_accepted_answers(
    run: Any, answers: tuple[str, ...], template: str, cut: str
) -> None:
    settings = run(*answers)
    assert settings["prompt"]["template"] == template
    assert settings["generation"]["cut"] == cut


def test_own_prompt_and_cut_win(run: Any) -> None:
    settings = run("The answer to this is a whole sentence.", prompt="{question} Say!", cut="none")
    assert settings["prompt"]["template"] == "{question} Say!"
    assert settings["generation"]["cut"] == "none"


def test_first_three_answers_are_shown(run: Any) -> None:
    events: list[Event] = []
    run(*"abcde", reporter=events.append)
    said = notes(events)
    assert sum("for example: 'who is " in note and " -> " in note for note in said) == 3
    assert any('"Answer only, without a sentence."' in note for note in said)


def test_store_continues_with_its_own_prompt(run: Any) -> None:
    """As one that was started before prompts followed the answers."""
    first = run("Paris", "Rome", prompt="{question}")
    assert run("Paris", "Rome")["prompt"] == first["prompt"]
    with pytest.raises(SettingsMismatchError, match="prompt.template: was '{question}'"):
        run("Paris", "Rome", prompt=SHORT)
