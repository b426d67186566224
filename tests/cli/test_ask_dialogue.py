"""The interactive mode of `clew ask`."""

import io
from collections.abc import Callable

import pytest

from clew.base.terminal import TextConsole
from clew.cli.ask import Dialogue


def typing(*lines: str, end: type[BaseException] = EOFError) -> Callable[[str], str]:
    """A person who types these lines, and then Ctrl-D or Ctrl-C."""
    rest = iter(lines)

    def read(_prompt: str) -> str:
        for line in rest:
            return line
        raise end

    return read


def talk(*lines: str, **options: type[BaseException]) -> tuple[list[tuple[str, str | None]], str]:
    asked: list[tuple[str, str | None]] = []
    shown = io.StringIO()
    console = TextConsole(file=shown, width=80)
    Dialogue(console, lambda *one: asked.append(one), typing(*lines, **options)).run()
    return asked, shown.getvalue()


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_each_line_is_a_question_until_the_input_ends(end: type[BaseException]) -> None:
    asked, _ = talk("Who?", "", "  What?  ", end=end)
    assert asked == [("Who?", None), ("What?", None)]


def test_context_holds_until_it_is_cleared() -> None:
    asked, _ = talk(":context Ann won.", "Who?", ":context", "Who?")
    assert asked == [("Who?", "Ann won."), ("Who?", None)]


def test_help_lists_the_commands_and_quit_ends() -> None:
    asked, shown = talk(":help", ":quit", "Who?")
    assert asked == []
    assert ":context TEXT" in shown
    assert "Ctrl-D" in shown


def test_unknown_command_is_not_asked_of_the_model() -> None:
    asked, shown = talk(":exec \x1b[2J")
    assert asked == []
    assert "unknown command :exec; choose from: :context TEXT, :help, :quit" in shown
    assert "\x1b[2J" not in shown
