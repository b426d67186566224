"""What the shell suggests when a person presses Tab."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clew.cli import build_app
from clew.cli.errors import read_texts

SUGGESTED = read_texts()["settings"]["suggestions"]


@pytest.fixture
def suggest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """What bash is told about the last word of a command line, "" if it ends with a space."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_CLEW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        with pytest.raises(SystemExit):
            build_app()(prog_name="clew")
        return capsys.readouterr().out.split()

    return call


def test_devices_are_suggested(suggest: Callable[[str], list[str]]) -> None:
    assert suggest("clew train --device ") == ["cpu", "cuda"]
    assert suggest("clew extract --device a") == ["auto"]


@pytest.mark.slow
def test_methods_are_suggested_between_commas(suggest: Callable[[str], list[str]]) -> None:
    assert suggest("clew compare --methods lin")[0] == "linear_probe"
    assert "perplexity,lstm" in suggest("clew compare --methods perplexity,")
    assert "perplexity,perplexity" not in suggest("clew compare --methods perplexity,")


def test_built_in_names_and_paths_are_suggested(
    suggest: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "faq.csv").touch()
    assert suggest("clew extract --model ") == ["smollm2", "faq.csv", "models/"]
    assert suggest("clew extract --questions fa") == ["facts", "facts-spans", "faq.csv"]


@pytest.mark.slow
def test_suggested_methods_are_those_of_the_library() -> None:
    from clew.hallucination.comparison.methods import list_methods

    assert [*list_methods(), "LIST"] == SUGGESTED["methods"]


def test_suggested_questions_are_the_built_in_sets() -> None:
    from clew.hallucination.questions import built_in_names

    assert [*built_in_names(), "PATH"] == SUGGESTED["questions"]


def test_suggested_gpus_are_those_of_a_dry_run() -> None:
    from clew.hallucination.capture.gpus import GPUS

    assert [*GPUS] == SUGGESTED["gpu"]
