"""clew check"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from clew.base.errors import InputError
from clew.base.terminal import TextConsole
from clew.base.texts import for_terminal, looks_like_path, suggest_path
from clew.base.urls import is_url
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import (
    LEVEL_STYLES,
    first_words,
    is_colored,
    print_line,
    shade_of,
)
from clew.cli.renderer import Renderer
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import check

if TYPE_CHECKING:
    from clew.hallucination.answer_page.checked import CheckResult
    from clew.hallucination.grounded import UnsupportedSpan

COMMAND = read_command(check)
_REMEDY = (
    "not familiar? To get a verdict, label answers of this kind, and adapt the reader to them: "
    '"clew adapt grounded --labeled FILE --out FOLDER"'
)
_MOST_COLUMNS = 120  # of an answer with its risk on the same line
_PASSAGE_CHARACTERS = 300
_LEAST_SHADE = 0.2  # the lightest: what is marked is seen


def run(call: Call) -> None:
    log_to_stderr()
    sources = [_read_word("source", word) for word in call.settings["source"]]
    answer = _read_word("answer", call.settings["answer"])
    if [*call.settings["source"], call.settings["answer"]].count("-") > 1:
        raise InputError("stdin can be read once only: give - for one of them.")
    # The marked answer alone is the result, of a pipe as well.
    with Renderer(TextConsole(soft_wrap=True, stderr=True, quiet=call.progress.quiet)) as reporter:
        given = {**call.settings, "source": sources, "answer": answer}
        result = check(**given, reporter=reporter)
    if call.as_json:
        call.print_json(result.as_dict())
        return
    _print_result(call.console, result)


def _read_word(setting: str, word: str) -> str | Path:
    """A file if there is one of that name, otherwise the text itself."""
    if word == "-":
        try:
            return sys.stdin.read()
        except UnicodeDecodeError:
            raise InputError("stdin is not UTF-8 text.") from None
    path = Path(word).expanduser()
    if word and _exists(path):
        return path
    if len(word.split()) == 1 and is_url(word):
        raise InputError(
            "clew loads no page: save it as text, and give the file.", setting=setting, value=word
        )
    if len(word.split()) == 1 and looks_like_path(word):
        raise InputError(
            f"there is no such file{suggest_path(word)}. To check this text itself, give it on "
            "stdin with -.",
            setting=setting,
            value=word,
        )
    return word


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def _print_result(console: Console, result: "CheckResult") -> None:
    reading = result.reading
    if result.by != "span" and result.units:
        for one in result.units:
            marked = _marked(console, result, one.start, one.end)
            console.print(Text.assemble(f"{one.risk:.2f}  ", marked), soft_wrap=True)
        console.print(_verdict(result), soft_wrap=True)
    else:
        answer, verdict = _marked(console, result, 0, len(result.answer)), _verdict(result)
        is_short = "\n" not in answer.plain and answer.cell_len + verdict.cell_len < _MOST_COLUMNS
        gap = " " * 8 if is_short else "\n"
        console.print(Text.assemble(answer, gap, verdict), soft_wrap=True)
    for span in reading.spans:
        _print_span(console, result, span)
    if result.promise is not None and reading.risk_level == "low":
        print_line(console, f"promise: {result.promise.text}")
    if reading.state == "out_of_distribution":
        print_line(console, _REMEDY, style="dim")
    if result.path is not None:
        print_line(console, f"written to {result.path}")


def _marked(console: Console, result: "CheckResult", start: int, end: int) -> Text:
    """A part of the answer, in which what the sources do not support is shaded, or in brackets
    where there are no colors."""
    from clew.hallucination.answer_page.checked import cut_text

    spans, text = result.reading.spans, Text()
    places = [tuple(min(max(at, start), end) - start for at in (s.start, s.end)) for s in spans]
    for _, part, of in cut_text(result.answer[start:end], places):
        safe = for_terminal(part, lines=True)
        if not of:
            text.append(safe)
        elif is_colored(console):
            text.append(safe, shade_of(max(_LEAST_SHADE, spans[of[0]].risk)))
        else:
            text.append(f"[{safe}]")
    return text


def _verdict(result: "CheckResult") -> Text:
    from clew.hallucination.answer_page.checked import tell_reading

    words, level = with_flags(tell_reading(result.reading)), result.risk_level
    if level is None:
        return Text(for_terminal(words), "yellow")
    risk, _, spans = words.partition(", ")
    return Text.assemble((risk, LEVEL_STYLES[level]), "   ", spans)


def _print_span(console: Console, result: "CheckResult", span: "UnsupportedSpan") -> None:
    near = span.nearest
    told = "no passage of the sources shares a word with it"
    if near is not None:
        text = first_words(near.text, _PASSAGE_CHARACTERS)
        told = f'nearest in {result.names[near.source]}: "{text}"'
    print_line(console, f"  {first_words(span.text)}   risk {span.risk:.2f}   {told}", style="dim")
