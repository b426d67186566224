"""Check an answer, of any model, against the sources that it was written from."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base.commands import takes
from clew.base.errors import InputError
from clew.base.progress import Reporter, StepStarted, log_event, report_work
from clew.base.settings import check_writable
from clew.base.texts import bytes_text
from clew.base.urls import local_path
from clew.hallucination.grounded.folder import check_reader
from clew.hallucination.hub import fetch_detector
from clew.hallucination.workflow.preparing import load_libraries
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.answer_page.checked import CheckResult
    from clew.hallucination.grounded import Reader

# Of a file: more is no source that anybody reads in minutes.
_MOST_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """What `check` takes.

    Args:
        source: What the answer was written from: a text or a file of text, tables and JSON
            included; several are read together.
        answer: The answer, claim or summary to check: a text or a file.
        question: The question that was answered, if there is one.
        by: What is shown with a risk of its own: the unsupported span, every sentence, or every
            claim, which is a clause of a sentence.
        html: Page to write: the answer beside its sources, which works offline. [default: none]
        reader: Folder of a reader of your own. [default: the built-in one]
        model: The reader's language model, if it is in another place now. [default: as in the
            reader]
        device: auto, cpu, cuda or cuda:1. auto is the first GPU if there is one.
        threads: CPU threads to use. [default: all cores]
        reporter: Called with progress events. [default: the log]
    """

    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    answer: str | os.PathLike[str]
    question: str | None = None
    by: Literal["span", "sentence", "claim"] = "span"
    html: Annotated[str | Path | None, UrlNeverFromFile] = None
    reader: "str | Path | Reader" = "grounded"
    model: str | None = None
    device: str = "auto"
    threads: int | None = None
    reporter: Reporter | None = None


@takes(CheckSettings)
def check(given: CheckSettings) -> "CheckResult":
    """Find what the sources of an answer do not support, whichever LLM wrote it.

    A small language model reads the answer beside its sources, offline. It marks the words that
    they do not support, with the passage that comes nearest, and gives the calibrated probability
    that the answer has such words.

    Returns:
        The result: `risk`, `risk_level`, `state`, `spans`, and `reading` with the risks of
        sentences and tokens. Notebooks display the page. A str is the text itself, never the name
        of a file: give a Path for that.

    Raises:
        InputError: There is no source or no answer, or one is too long, or is not text.
        StoreError: The reader is damaged.

    Examples:
        >>> found = clew.check(
        ...     source="Items can be returned within 30 days of delivery.",
        ...     answer="You can return items within 60 days of delivery.",
        ... )
        >>> found.risk, [(span.text, span.risk) for span in found.spans]
    """
    from clew.hallucination.grounded import GroundedAnswer, find_problem
    from clew.hallucination.llm.placement import check_device

    given_sources: list[object] = [given.source]
    if isinstance(given.source, Sequence) and not isinstance(given.source, str | bytes):
        given_sources = list(given.source)
    sources = [_read_text("source", one) for one in given_sources]
    answer = _read_text("answer", given.answer).rstrip("\r\n")
    row = GroundedAnswer(answer=answer, sources=tuple(sources), question=given.question)
    if problem := find_problem(row):
        raise InputError(f"{problem}.")
    page = None if given.html is None else local_path(given.html)
    report = given.reporter or log_event
    given = replace(given, reader=fetch_detector(given.reader, given.reporter, "reader"))
    check_reader(given.reader)
    check_device(given.device)
    check_writable("html", page, is_file=True)
    load_libraries(report, "clew.hallucination.grounded.reader", model=given.model)
    with report_work(report, StepStarted(name="loading the reader")):
        from clew.base.cpu import Threads
        from clew.hallucination.answer_page.checked import (
            CHECK_GENERATOR,
            CheckResult,
            render_check,
        )
        from clew.hallucination.answer_page.run import refuse_foreign
        from clew.hallucination.grounded import Reader, load_reader
        from clew.storage.writing import replace_file

        if page is not None:
            refuse_foreign(page, CHECK_GENERATOR, "html")
        kept = given.reader
        if not isinstance(kept, Reader):
            kept = load_reader(kept, device=given.device, model=given.model)
    with Threads(given.threads, report):
        [reading] = kept.read([row])
    result = CheckResult(
        answer=answer,
        sources=row.sources,
        names=tuple(_name_sources(given_sources)),
        reading=reading,
        reader=kept.name,
        promise=kept.settings.valid_promise,
        question=given.question,
        by=given.by,
        path=page,
    )
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_file(page, render_check(result).encode())
    return result


def _read_text(setting: str, given: object) -> str:
    """A text, or the text of a file. Raises InputError."""
    if isinstance(given, str):
        return given
    if not isinstance(given, os.PathLike):
        raise InputError("give a text, or the Path of a file.", setting=setting, value=given)
    from clew.storage.text_files import open_text

    path = Path(given)
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise InputError(
                f"the file has {bytes_text(size)}: give only the passages that the answer was "
                "written from.",
                setting=setting,
                value=path,
            )
        with open_text(path) as file:
            text = file.read().replace("\r\n", "\n")
        if "\0" in text:
            raise UnicodeError
        return text
    except UnicodeError:
        raise InputError(
            "the file is not text: convert it to text first.", setting=setting, value=path
        ) from None
    except OSError as error:
        raise InputError(f"{error.strerror or error}.", setting=setting, value=path) from None


def _name_sources(given: Sequence[object]) -> Iterator[str]:
    """Files by their names, texts by their numbers."""
    for number, one in enumerate(given, start=1):
        is_only = len(given) == 1
        yield ("source" if is_only else f"source {number}") if isinstance(one, str) else f"{one}"
