"""clew ask, for questions on the command line, in files, or typed one after another."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.errors import InputError, StoppedError
from clew.base.terminal import TextConsole
from clew.base.texts import counted
from clew.cli.commands import Call, read_command
from clew.cli.printing import (
    has_shades,
    print_answer,
    print_legend,
    print_line,
    print_remedy,
    print_scale,
)
from clew.cli.renderer import Renderer
from clew.cli.signals import StopRequest, log_to_stderr, long_run
from clew.hallucination.workflow import ask
from clew.hallucination.workflow.asking import AskSettings, open_asker, read_questions
from clew.storage.text_files import BoundedLines, TooLongError

if TYPE_CHECKING:
    from clew.hallucination.live.session import AskedAnswer, Asker
    from clew.hallucination.questions import Question


COMMAND = read_command(ask)
# Seldom: what draws the spinner takes time from the model.
_DRAWN_PER_SECOND = 3


def run(call: Call) -> None:
    log_to_stderr()
    given = AskSettings(**call.settings)
    is_asked = bool(given.question) or given.questions is not None
    is_dialogue = not is_asked and not call.as_json and sys.stdin.isatty() and sys.stdout.isatty()
    if not is_asked and not is_dialogue:
        given = replace(given, question=list(_read_lines()))
    # The answers alone are the result, of a pipe as well.
    progress = TextConsole(soft_wrap=True, stderr=True, quiet=call.progress.quiet)
    with Renderer(progress) as reporter:
        given = replace(given, reporter=reporter)
        questions = [] if is_dialogue else read_questions(given)
        with open_asker(given) as asker:
            if is_dialogue:
                _talk(call.console, asker, given.context)
                return
            with long_run(progress, "finishing the current answer") as stop:
                _answer_all(call, asker, questions, stop)


def _answer_all(
    call: Call, asker: "Asker", questions: "list[Question]", should_stop: StopRequest
) -> None:
    """Print each answer as soon as all before it are there. Raises InputError if no question could
    be answered."""
    is_shaded = is_answered = is_unfamiliar = False
    last: AskedAnswer | None = None
    for number, answer in enumerate(asker.ask(questions), start=1):
        is_answered |= bool(answer.ended)
        if call.as_json:
            call.print_json(answer.to_dict(), indent=None)
        else:
            if number > 1:
                call.console.print()
            print_answer(call.console, answer)
            is_shaded |= has_shades(call.console, answer)
            is_unfamiliar |= answer.state == "out_of_distribution"
            last = answer if answer.state == "checked" else last
        if should_stop() and number < len(questions):
            stopped = f"stopped after {number:,} of {len(questions):,} answers."
            raise StoppedError(stopped, is_resumable=False)
    if last is not None:
        print_scale(call.console, last)
    if is_shaded:
        call.console.print()
        print_legend(call.console)
    if is_unfamiliar:
        call.console.print()
        print_remedy(call.console)
    if not is_answered:
        asked = counted(len(questions), "question")
        raise InputError(f"none of {asked} could be answered: see the state of each.")


def _talk(console: Console, asker: "Asker", context: str | None) -> None:
    from clew.hallucination.questions import Question

    def answer(text: str, about: str | None) -> None:
        question = Question(id="question", question=text, answers=(), context=about)
        with console.status("answering", spinner_style="dim", refresh_per_second=_DRAWN_PER_SECOND):
            (found,) = asker.ask([question])
        print_answer(console, found, with_question=False)
        if found.state == "checked" and "risk" not in explained:
            print_scale(console, found)
            explained.add("risk")
        if has_shades(console, found) and "shades" not in explained:
            print_legend(console)
            explained.add("shades")

    explained: set[str] = set()
    Dialogue(console, answer, context=context).run()


def _read_lines() -> Iterator[str]:
    """The questions on stdin, one per line."""
    lines = BoundedLines(sys.stdin)
    try:
        yield from filter(None, map(str.strip, lines))
    except TooLongError as error:
        raise InputError(f"stdin: {error}") from None
    except UnicodeDecodeError:
        raise InputError("stdin is not UTF-8 text.") from None


_HELP = """Type a question and press Enter. The answer follows, with the probability that it is
hallucinated.

  :context TEXT   answer the next questions from this text; without TEXT, from no text
  :help           this help
  :quit           end (also Ctrl-D)"""
_COMMANDS = ":context TEXT, :help, :quit"
_PROMPT = "? "


class Dialogue:
    """Reads questions until the end of input. `answer` is called with each question and the text
    to answer it from."""

    def __init__(
        self,
        console: Console,
        answer: Callable[[str, str | None], None],
        read: Callable[[str], str] = input,
        context: str | None = None,
    ) -> None:
        self._console, self._answer, self._read = console, answer, read
        self._context = context

    def run(self) -> None:
        self._console.print("ask a question; :help for help, Ctrl-D to end", style="dim")
        with _history():
            for line in self._lines():
                self._obey(line) if line.startswith(":") else self._answer(line, self._context)

    def _lines(self) -> Iterator[str]:
        """Until Ctrl-D, Ctrl-C or :quit; empty lines are skipped."""
        while True:
            try:
                line = self._read(_PROMPT).strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line in (":quit", ":q", ":exit"):
                return
            if line:
                yield line

    def _obey(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command == ":context":
            self._context = rest.strip() or None
            said = "from this text" if self._context else "from what the model knows"
            self._console.print(f"the next questions are answered {said}", style="dim")
            return
        if command == ":help":
            self._console.print(_HELP)
            return
        unknown = f"unknown command {command[:40]}; choose from: {_COMMANDS}"
        print_line(self._console, unknown, style="yellow")


@contextmanager
def _history() -> Iterator[None]:
    """Line editing, and the questions of this session with the arrow keys; they are not saved."""
    with suppress(ImportError):
        import readline

        readline.clear_history()
    yield
