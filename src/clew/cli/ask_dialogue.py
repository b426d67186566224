"""The interactive mode of `clew ask`: a question, its answer, and again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from clew.cli.printing import print_line

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
