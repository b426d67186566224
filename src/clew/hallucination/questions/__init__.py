"""Load questions from a file, a folder, the Hugging Face Hub or the built-in sets."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, ignore_event
from clew.base.texts import looks_like_path, suggest, suggest_path
from clew.hallucination.questions.answered import (
    AnsweredQuestion,
    read_answers,
    refuse_unanswered,
    refuse_unclear,
)
from clew.hallucination.questions.built_in import built_in_names, facts_version, load_built_in
from clew.hallucination.questions.columns import RECOGNIZED, ColumnUse, RowFormat, parse_format
from clew.hallucination.questions.files import READERS, file_ending, open_dataset, open_file
from clew.hallucination.questions.records import (
    Collector,
    Question,
    QuestionSet,
    Row,
    RowSource,
    SkippedQuestion,
    describe_columns,
    refuse_without_questions,
)

__all__ = [
    "AnsweredQuestion",
    "ColumnUse",
    "Question",
    "QuestionSet",
    "RowFormat",
    "SkippedQuestion",
    "built_in_names",
    "collect_questions",
    "describe_answers",
    "describe_columns",
    "facts_version",
    "load_questions",
    "open_records",
    "parse_format",
    "read_answers",
    "refuse_empty",
]

_HUB_SPEC = re.compile(r"([\w.-]+(/[\w.-]+)?)(:[\w.+-]*){0,2}")


def load_questions(
    spec: str,
    num_samples: int | None = None,
    format: RowFormat = RECOGNIZED,
    report: Reporter = ignore_event,
    *,
    is_clear: bool = True,
) -> QuestionSet:
    """Load the questions that `spec` names; with `num_samples`, only the first ones.

    `spec` is the name of a built-in set, "all" for all of them, a file (.jsonl .json .csv .tsv
    .parquet .arrow), a folder or a Hugging Face dataset id; the last two take an optional
    ":config:split" or ":split". What the columns of a file are taken for is reported. Raises
    InputError, unless it `is_clear` that answers are accepted ones also if they have labels.
    """
    if num_samples is not None and num_samples < 1:
        raise InputError("it must be 1 or more.", setting="num_samples", value=num_samples)
    if (built_in := load_built_in(spec, num_samples)) is not None:
        return built_in
    source = open_rows(spec, format)
    return _collect(source, Collector(source.stem, num_samples, format=format), report, is_clear)


def collect_questions(
    records: Any,
    num_samples: int | None = None,
    format: RowFormat = RECOGNIZED,
    report: Reporter = ignore_event,
    *,
    is_clear: bool = True,
) -> QuestionSet:
    """Questions that a program has: dicts with `question`, `answers` (or `answer`), and
    optionally `id`, `category` and `context`; plain strings, which have no accepted answers; a
    pandas or polars DataFrame; or a Hugging Face dataset. Raises InputError if none can be used."""
    source = _list_source(map(_as_record, list_records(records)), "question", format)
    fix = "give dicts with a question, or strings"
    return _collect(source, Collector("question", num_samples, fix, format), report, is_clear)


def _as_record(record: Any) -> Any:
    return {"question": record} if isinstance(record, str) else record


def _collect(
    source: RowSource, collector: Collector, report: Reporter, is_clear: bool
) -> QuestionSet:
    if not is_clear:
        refuse_unclear(describe_columns(source, answers=True))
    use = describe_columns(source, answers=False)
    refuse_without_questions(use)
    if use.columns not in ((), ("question",)):
        report(Note(use.text))
    for row in source.rows:
        collector.add_row(row)
        if collector.full and not source.read_whole:
            break
    return collector.finish(source.name, source.sha256)


def list_records(records: Any) -> Iterable[Any]:
    """The rows of a polars or pandas DataFrame; anything else is iterated as it is. A pandas Series
    and a Hugging Face dataset have `to_dict` too, but iterating them gives their rows."""
    if hasattr(records, "to_dicts"):
        return records.to_dicts()
    if hasattr(records, "iterrows"):
        return records.to_dict("records")
    if isinstance(records, Mapping) or not isinstance(records, Iterable):
        raise InputError(
            f"`questions` has the type {type(records).__name__}: give a file name, a list of dicts "
            "or strings, or a DataFrame."
        )
    return records


def open_records(records: Any, format: RowFormat = RECOGNIZED) -> RowSource:
    """The rows of a file, a folder or a Hugging Face dataset, or of what a program has."""
    if isinstance(records, str | os.PathLike):
        return open_rows(str(records), format)
    return _list_source(list_records(records), "answer", format)


def _list_source(records: Iterable[Any], noun: str, format: RowFormat) -> RowSource:
    rows = (
        Row(number=number, where=f"{noun} {number + 1}", record=record)
        for number, record in enumerate(records)
    )
    return RowSource(name=f"the list of {noun}s", stem=noun, rows=rows, format=format)


def refuse_empty(name: str) -> NoReturn:
    raise InputError(f"{name} is empty: give at least one answer.")


def describe_answers(source: RowSource) -> ColumnUse:
    """What the columns of a file of answers are taken for, which is one line in its `text`. Raises
    InputError if there are none, if they cannot be answers, or if a label is not understood."""
    rows = source.peek()
    if not rows:
        refuse_empty(source.name)
    first = rows[0]
    if first.problem is None and not isinstance(first.record, Mapping):
        raise InputError(
            f"{source.name}: {first.where} is a {type(first.record).__name__}: give records with "
            "the fields question and answer."
        )
    use = describe_columns(source, answers=True)
    refuse_unanswered(use)
    return use


def open_rows(spec: str, format: RowFormat = RECOGNIZED) -> RowSource:
    """The rows of a file, a folder or a Hugging Face dataset. Raises InputError."""
    base, names = _find_local(spec)
    if base is None:
        hub_id, *names = spec.split(":", 2)
        return open_dataset(hub_id, names, from_hub=True, format=format)
    if base.is_dir():
        return open_dataset(str(base), names, from_hub=False, format=format)
    if names:
        raise InputError(f'{base} is a file and has no config or split: omit ":{names[0]}"')
    return open_file(base, format)


def _find_local(spec: str) -> tuple[Path | None, list[str]]:
    """Split `spec` into the existing path that it starts with and the names after it."""
    for names_count in range(3):
        base, *names = spec.rsplit(":", names_count)
        path = os.path.expanduser(base)
        if base and os.path.exists(path):
            return Path(path), names
    if "," in spec and {name.strip() for name in spec.split(",")} <= {*built_in_names()}:
        raise InputError(
            f'questions "{spec}" are several sets: give one of them, or "all" for a mix of all sets'
        )
    hub = _HUB_SPEC.fullmatch(spec)
    if hub is None or file_ending(Path(hub[1])) in READERS or looks_like_path(hub[1]):
        raise InputError(
            f'questions "{spec}": no such file or folder (looked in {Path.cwd()})'
            f"{suggest_path(spec)}: check the path"
        )
    if meant := suggest(spec, built_in_names()):
        raise InputError(
            f'unknown questions "{spec}"{meant}: give a file, a folder, a Hugging Face dataset as '
            f"name:config:split, or a built-in set: {', '.join(built_in_names())}"
        )
    return None, []
