"""The file of risks that scoring writes: JSON Lines, CSV or Arrow. Until it is complete, its rows
are in a journal beside it, so that a run that was stopped, or killed at any moment, resumes."""

import json
import os
import re
import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import filelock
import numpy as np
import pyarrow as pa

from clew.base.errors import InputError, SettingsMismatchError, StoreError, StoreLockedError
from clew.base.settings import find_differences
from clew.base.typed_json import read_as, to_json
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc
from clew.storage.reading import hash_file, open_regular, parse_json, read_json
from clew.storage.text_files import csv_text, find_csv_form
from clew.storage.writing import append_to_file, disk_errors, lock_file, replace_json, replacing

Format = Literal[".jsonl", ".csv", ".arrow"]
FORMATS: tuple[Format, ...] = (".jsonl", ".csv", ".arrow")
_JOURNAL, _SUMMARY, _LOCK = ".partial", ".summary.json", ".lock"
_BEGIN = b'{"settings"'  # of a journal and of a summary
_ROWS_AT_ONCE = 1024
_MOST_NAMED = 20
_MOST_REASONS = 1000  # that are counted
_PLACE = re.compile(r"(line|row|answer) \d+: ")  # of a record, before what is wrong with it
_NUMBER = re.compile(r"\d[\d.,]*")  # reasons that differ by one are counted together
_TOKEN = pa.struct([("token", pa.string()), ("risk", pa.float32()), ("logprob", pa.float32())])
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "question", "answer")),
        ("risk", pa.float64()),
        *((name, pa.string()) for name in ("verdict", "state", "reason", "method")),
        ("threshold", pa.float64()),
        ("distance", pa.float64()),
        ("answer_tokens", pa.int32()),
        ("hallucinated", pa.bool_()),
        ("retokenized", pa.bool_()),
        ("risk_level", pa.string()),
        ("token_probability_risk", pa.float64()),
    ]
)
# Those that files of earlier versions of clew do not have.
_LATER = ("risk_level", "token_probability_risk")
_SPAN = pa.struct(
    [
        *(("start", pa.int32()), ("end", pa.int32()), ("text", pa.string())),
        *(("risk", pa.float32()), ("nearest", pa.string())),
    ]
)
# What only some files have.
_OPTIONAL = {"tokens": pa.list_(_TOKEN), "spans": pa.list_(_SPAN)}
_OWN = (*SCHEMA.names, *_OPTIONAL)
Rows = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RiskSummary:
    """What the risks of some answers are. `states`, `verdicts` and `risk_levels` are counts; the
    mean risk, `auroc` and `ece` are of the answers that were checked, the latter two None unless
    both correct and hallucinated ones of them are labeled. `retokenized` names answers whose
    text gives other tokens than were generated; `retokenized_count` counts all of them. `reasons`
    counts why answers are unavailable, the most frequent first; of reasons that differ by their
    numbers alone, the first is named."""

    answers: int
    states: dict[str, int]
    verdicts: dict[str, int]
    risk_levels: dict[str, int]
    mean_risk: float | None
    labeled: int
    auroc: float | None
    ece: float | None
    retokenized_count: int
    retokenized: list[str]
    reasons: dict[str, int] = field(default_factory=dict)


def summarize(rows: Iterable[Mapping[str, Any]]) -> RiskSummary:
    """In one pass; of each answer, only two numbers are kept."""
    states, verdicts, levels = Counter[str](), Counter[str](), Counter[str]()
    reasons, first = Counter[str](), dict[str, str]()
    risks, labels = array("d"), array("b")
    count = again = 0
    named: list[str] = []
    for row in rows:
        count += 1
        states[row["state"]] += 1
        if row["state"] == "unavailable":
            reason = _PLACE.sub("", row["reason"] or "", count=1)
            kind = _NUMBER.sub("0", reason)
            if kind in reasons or len(reasons) < _MOST_REASONS:
                reasons[kind] += 1
                first.setdefault(kind, reason)
        if row["risk"] is not None:
            verdicts[row["verdict"]] += 1
            levels[row["risk_level"]] += 1
            risks.append(row["risk"])
            labels.append(-1 if row["hallucinated"] is None else int(row["hallucinated"]))
        if row["retokenized"]:
            again += 1
            if len(named) < _MOST_NAMED:
                named.append(row["id"])
    found, known = np.array(risks), np.array(labels)
    area, error = _measure(known[known >= 0], found[known >= 0])
    return RiskSummary(
        answers=count,
        states=dict(states),
        verdicts=dict(verdicts),
        risk_levels=dict(levels),
        mean_risk=float(found.mean()) if len(found) else None,
        labeled=int((known >= 0).sum()),
        auroc=area,
        ece=error,
        retokenized_count=again,
        retokenized=named,
        reasons={first[kind]: times for kind, times in reasons.most_common(_MOST_NAMED)},
    )


def _measure(labels: np.ndarray, risks: np.ndarray) -> tuple[float | None, float | None]:
    if len(np.unique(labels)) < 2:
        return None, None
    return float(auroc(labels, risks)), float(expected_calibration_error(labels, risks))


def choose_format(out: Path) -> Format:
    """By the file's ending. Raises InputError for another one, or for a folder."""
    if out.is_dir():
        raise InputError("this is a folder. Give the file to write.", setting="out", value=out)
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise InputError(
            f"its format is unknown. Use a name that ends in {', '.join(FORMATS)}.",
            setting="out",
            value=out,
        )
    return next(one for one in FORMATS if one == ending)


class RiskFile:
    """A file of risks being written. `settings` identify the run; with `tokens`, rows have the
    risks of tokens, with `spans` what sources do not support; `kept` names further columns. Use it
    as a context manager: it is locked."""

    def __init__(
        self,
        out: Path,
        settings: Mapping[str, Any],
        *,
        tokens: bool = False,
        spans: bool = False,
        kept: Sequence[str] = (),
    ) -> None:
        self.out, self._format = out, choose_format(out)
        self._settings = read_as(dict[str, Any], json.loads(to_json(settings)))
        chosen = [name for name, is_there in (("tokens", tokens), ("spans", spans)) if is_there]
        self._schema = _schema([*chosen, *kept])
        self._journal = out.with_name(out.name + _JOURNAL)
        self._summary = out.with_name(out.name + _SUMMARY)
        self._lock = lock_file(out.with_name(f".{out.name}{_LOCK}"), timeout_seconds=0)
        self._file: BinaryIO | None = None

    def __enter__(self) -> "RiskFile":
        self.out.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise StoreLockedError(
                f'another process is writing "{self.out}": wait for it, or choose another `out`.'
            ) from None
        try:
            self._refuse_foreign()
        except InputError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _refuse_foreign(self) -> None:
        """The files beside it are not named by the user: somebody else's may have their names."""
        for path in (self._summary, self._journal):
            if not path.exists():
                continue
            with open_regular(path) as file:
                begin = b"".join(file.read(30).split())[: len(_BEGIN)]
            if not _BEGIN.startswith(begin):  # a journal may have been cut
                raise InputError(
                    f'"{path}" was not written by clew, so it is not replaced: choose another '
                    "`out`, or move it."
                )

    def finished(self) -> RiskSummary | None:
        """The summary, if an earlier run has finished the same file. Raises
        SettingsMismatchError if the file is that of another run."""
        # A run that was killed while it finished leaves its journal.
        if not self.out.exists() or (self._journal.exists() and not self._summary.exists()):
            return None
        about = self._read_summary()
        self._refuse_other(about.get("settings", {}), self.out)
        if about.get("sha256") != hash_file(self.out):
            raise SettingsMismatchError(
                f'"{self.out}" was changed after it was written: choose another `out`, or replace '
                "it with `overwrite=True`."
            )
        summary = self._read_figures(about)
        self._journal.unlink(missing_ok=True)
        return summary

    def start(self, *, count: int, window: int) -> int:
        """Open the journal for `count` rows that come in windows; returns the number of rows that
        an earlier run left in it."""
        done = self._resume(count, window) if self._journal.exists() else 0
        self._file = append_to_file(self._journal)
        if not self._journal.stat().st_size:
            self._write(f"{to_json({'settings': self._settings})}\n")
        return done

    def discard(self) -> None:
        """Delete what earlier runs left."""
        for path in (self.out, self._summary, self._journal):
            path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Rows]) -> None:
        """Add the rows of one window; they are on disk when this returns."""
        self._write("".join(f"{to_json(row)}\n" for row in rows))

    def finish(self) -> RiskSummary:
        """Write the file from the journal, and its summary."""
        assert self._file is not None
        with replacing(self.out) as file:
            self._render(file)
        summary = summarize(self.rows())
        about = {
            "settings": self._settings,
            "sha256": hash_file(self.out),
            "summary": asdict(summary),
        }
        replace_json(self._summary, about)
        self._file.close()
        self._file = None
        self._journal.unlink()
        return summary

    def rows(self) -> Iterator[Rows]:
        """The rows of the journal."""
        with open_regular(self._journal) as file:
            file.readline()
            for line in file:
                yield self._parse(line)

    def _render(self, target: BinaryIO) -> None:
        """Write the rows of the journal in the format of the file, a few at a time."""
        rows, names = self.rows(), self._schema.names
        if self._format == ".jsonl":
            with open_regular(self._journal) as file:
                file.readline()
                shutil.copyfileobj(file, target, 1 << 20)
        elif self._format == ".csv":
            target.write(csv_text([names]).encode())
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                cells = ([_cell(row.get(name)) for name in names] for row in some)
                target.write(csv_text(cells).encode())
        else:
            with pa.ipc.new_file(target, self._schema) as writer:
                while some := list(islice(rows, _ROWS_AT_ONCE)):
                    rows_of_text = [_text_kept(row, self._schema) for row in some]
                    batch = pa.RecordBatch.from_pylist(rows_of_text, schema=self._schema)
                    writer.write_batch(batch)

    def _resume(self, count: int, window: int) -> int:
        """Cut the journal after its last complete window; returns the rows it then has."""
        rows = kept = 0
        with open_regular(self._journal) as file:
            header = file.readline()
            if not header.endswith(b"\n"):
                os.truncate(self._journal, 0)
                return 0
            self._refuse_other(self._parse(header).get("settings", {}), self._journal)
            end = file.tell()
            while file.readline().endswith(b"\n"):
                rows += 1
                if rows % window == 0 or rows == count:
                    kept, end = rows, file.tell()
        os.truncate(self._journal, end)
        return kept

    def _write(self, text: str) -> None:
        assert self._file is not None
        with disk_errors(self.out.parent):
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            return read_as(dict[str, Any], parse_json(line))
        except ValueError as error:
            raise StoreError(
                f'"{self._journal}" is damaged ({error}): delete it, and run the same command '
                "again to start over."
            ) from None

    def _read_summary(self) -> dict[str, Any]:
        try:
            return read_as(dict[str, Any], read_json(self._summary))
        except (OSError, ValueError):
            raise SettingsMismatchError(
                f'"{self.out}" already exists, and nothing says what wrote it: choose another '
                "`out`, or replace it with `overwrite=True`."
            ) from None

    def _read_figures(self, about: Mapping[str, Any]) -> RiskSummary:
        try:
            return read_as(RiskSummary, about.get("summary"))
        except ValueError as error:
            raise StoreError(
                f'"{self._summary}" is damaged ({error}): start over with `overwrite=True`.'
            ) from None

    def _refuse_other(self, before: Any, where: Path) -> None:
        different = find_differences(before if isinstance(before, dict) else {}, self._settings)
        if different:
            raise SettingsMismatchError(
                f'"{where}" was started with different settings:\n  '
                + "\n  ".join(map(str, different))
                + "\nUse the same settings to resume it, choose another `out`, or start over with "
                "`overwrite=True`."
            )


def _cell(value: object) -> object:
    return to_json(value) if isinstance(value, list | dict) else value


def name_kept(column: str) -> str:
    """The name of a further column, beside those of the risks."""
    return f"{column} (file)" if column in _OWN else column


_WANTED = {
    pa.bool_(): "true or false",
    pa.string(): "a text",
    pa.float32(): "a number",
    pa.float64(): "a number",
}


def _schema(further: Iterable[str]) -> pa.Schema:
    """The columns of every file and further ones: kept columns are text."""
    return pa.schema([*SCHEMA, *((name, _OPTIONAL.get(name, pa.string())) for name in further)])


def _text_kept(row: Rows, schema: pa.Schema) -> Rows:
    """A row whose further columns are text: in a table, a column has one type."""
    texts = {
        name: row[name] if isinstance(row.get(name), str | None) else to_json(row[name])
        for name in schema.names
        if name not in _OWN and name in row
    }
    return row | texts


def read_risks(path: Path) -> pa.Table:
    """The rows of a finished file."""
    if path.suffix.lower() == ".arrow":
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    if path.suffix.lower() == ".csv":
        from pyarrow import csv

        encoding, delimiter = find_csv_form(path)  # a spreadsheet may have saved it
        return csv.read_csv(
            path,
            read_options=csv.ReadOptions(encoding=encoding),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types={f.name: f.type for f in SCHEMA}),
        )
    with open_regular(path) as file:
        rows = [read_as(dict[str, Any], parse_json(line), "a line") for line in file]
    return to_table(rows)


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Columns of a file that may have been edited since. Raises ValueError, KeyError or pyarrow's
    errors if it does not have them, and not because an earlier version of clew wrote it."""
    table = read_risks(path)
    for name in set(_LATER) - set(table.column_names):
        nothing = pa.nulls(len(table), SCHEMA.field(name).type)
        table = table.append_column(SCHEMA.field(name), nothing)
    if missing := set(names) - set(table.column_names):
        raise ValueError(f"it has no column {min(missing)}")
    return table.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))


def read_settings(path: Path) -> dict[str, Any] | None:
    """The detector that gave the risks, as its run recorded it; None if the summary is not there.
    Raises ValueError if it is damaged."""
    summary = path.with_name(path.name + _SUMMARY)
    if not summary.exists():
        return None
    about = read_as(dict[str, Any], read_json(summary))
    settings = read_as(dict[str, Any], about.get("settings"), "settings")
    return read_as(dict[str, Any], settings.get("detector"), "settings.detector")


def to_table(rows: Sequence[Rows]) -> pa.Table:
    """Raises ValueError for a row that was edited into something else."""
    first = rows[0] if rows else {}
    schema = _schema(name for name in first if name not in SCHEMA.names)
    rows = [_text_kept(row, schema) for row in rows]
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError):
        for number, row in enumerate(rows, start=1):
            _refuse_other_kinds(row, schema, number)
        raise


def _refuse_other_kinds(row: Rows, schema: pa.Schema, number: int) -> None:
    for column in schema:
        try:
            pa.scalar(row.get(column.name), type=column.type)
        except (pa.ArrowException, TypeError):
            value = to_json(row[column.name])
            wanted = next((text for kind, text in _WANTED.items() if column.type == kind), "")
            raise ValueError(
                f"in row {number}, {column.name} is {value:.60}{wanted and f', not {wanted}'}"
            ) from None
