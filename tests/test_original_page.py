"""What "Coming from the original scripts" promises: its commands run, its names exist."""

import pydoc
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import patterns
from tests.cli.running import run
from tests.hallucination.questions.loading import write_trivia_qa
from tests.test_docs import DOCS, help_of
from tests.workspace import inside

__all__ = ["run"]

PAGE = (DOCS / "original.md").read_text(encoding="utf-8")
SPANISH = (DOCS / "original.es.md").read_text(encoding="utf-8")
SHELL = re.compile(r"^nohup | > extraction\.log 2>&1 &$")
# A copy of TriviaQA on this machine, and the smallest sizes. Compilation takes minutes, and has
# tests of its own.
SMALLER = {
    "mandarjoshi/trivia_qa": "trivia_qa",
    r"--num-samples \d+": "--num-samples 2",
    r"--epochs \d+": "--epochs 1",
    "--use-compile": "--no-compile",
}
QUICK = {
    "train": ("--device", "cpu"),
    "patterns": ("--device", "cpu", "--network", "tiny", "--image-size", "16"),
}


def read_rows(page: str, number: int) -> list[tuple[str, str]]:
    """The two columns of one of the page's tables."""
    tables = re.findall(r"\|---\|---\|\n((?:\|.*\n)+)", page)
    return [(row[0], row[1]) for line in tables[number].splitlines() if (row := _cells(line))]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def read_commands(page: str) -> list[str]:
    """The command lines of the tables "Commands" and "Files"."""
    cells = [new for number in (0, 3) for _, new in read_rows(page, number)]
    return re.findall(r"`((?:nohup )?clew [a-z][^`]*)`", " ".join(cells))


@pytest.fixture(scope="module")
def folder(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace, with files of the original scripts, TriviaQA and a set of photos."""
    folder = tmp_path_factory.mktemp("original") / "work"
    shutil.copytree(workspace, folder)
    write_trivia_qa(folder / "trivia_qa")
    with inside(folder):
        clew.extract(questions="my_questions.csv", keep="full", out="full")
        (folder / "old_traces").mkdir()
        for path in ("traces_data/trivia_qa_traces_batch_0000.pkl", "old_traces.pkl"):
            clew.merge_batches(path, "full")
        shutil.copy(folder / "old_traces.pkl", folder / "old_traces" / "traces_batch_0000.pkl")
        shutil.rmtree(folder / "full")
        patterns.create_set("my_set")
        patterns.import_photos("my_set", "my_photos")
    return folder


@pytest.fixture
def fresh(folder: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(folder, tmp_path / "work")
    with inside(tmp_path / "work"):
        yield tmp_path / "work"


@pytest.mark.slow
@pytest.mark.parametrize("command", read_commands(PAGE))
def test_command_in_place_of_an_original_one_runs(run: Any, fresh: Path, command: str) -> None:  # noqa: F811
    line = SHELL.sub("", command)
    for pattern, smaller in SMALLER.items():
        line = re.sub(pattern, smaller, line)
    _, *words = shlex.split(line)
    if words[0] == "extract":
        shutil.rmtree(fresh / "traces_data")
    if words[0] in ("train", "patterns"):
        words += [] if "--epochs" in words else ["--epochs", "1"]
        shutil.rmtree(fresh / "results")
    ended = run(*words, *QUICK.get(words[0], ()))
    assert ended.code == 0, ended.err


def test_python_names_exist() -> None:
    names = set(re.findall(r"`(clew(?:\.\w+)+)`", PAGE))
    assert len(names) > 15
    assert [name for name in names if pydoc.locate(name) is None] == []


def test_flags_are_accepted_where_the_page_says() -> None:
    for flags, commands in read_rows(PAGE, 1):
        for command in re.findall(r"`clew ([a-z ]+)`", commands.split(";")[0]):
            for flag in re.findall(r"`(--[a-z-]+)`", flags):
                assert re.search(rf"{flag}\b", help_of(command)), f"clew {command} has no {flag}"


def test_both_languages_name_the_same_things() -> None:
    assert read_commands(SPANISH) == read_commands(PAGE) and len(read_commands(PAGE)) > 20
    for number in range(5):
        counts = [len(read_rows(page, number)) for page in (PAGE, SPANISH)]
        assert counts[0] == counts[1]
    names = [set(re.findall(r"`(clew(?:\.\w+)+)`", page)) for page in (PAGE, SPANISH)]
    assert names[0] == names[1]
