"""Records from a file (JSON, JSON Lines, CSV, TSV, Parquet, Arrow), or from a dataset folder or the
Hugging Face Hub, read with `datasets`."""

import csv
import functools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.base.texts import counted
from clew.hallucination.hub import quiet_hub
from clew.hallucination.questions.columns import (
    RECOGNIZED,
    RowFormat,
    plain_fields,
    plain_name,
    useful_columns,
)
from clew.hallucination.questions.records import Layout, Row, RowSource, first_line
from clew.storage.reading import NotRegularFileError, hash_text, open_regular, parse_json
from clew.storage.text_files import (
    MAX_RECORD_CHARACTERS,
    BoundedLines,
    CsvRecords,
    TooLongError,
    encoding_name,
    open_text,
)

# A JSON file is one value, which is in memory as a whole; a value takes up to 64 bytes there.
_MAX_JSON_CHARACTERS = 1 << 27
_MAX_JSON_VALUES = 1 << 23
_NAMED_LINES = 5
_MARKS = {";": '";"', "\t": "tabs", "|": '"|"', ",": '","'}
_PREFERRED_SPLITS = ("train", "validation", "dev", "test")


def open_file(path: Path, format: RowFormat = RECOGNIZED) -> RowSource:
    """The rows of a file. Raises InputError, immediately or while reading, if it cannot be used."""
    ending = file_ending(path)
    if ending not in READERS:
        raise InputError(
            f'{path}: unknown file extension "{ending}": use one of {", ".join(READERS)}'
        )
    rows = _read_rows(path, ending, format)
    stem = path.name[: -len(ending)]
    return RowSource(name=path.name, stem=stem, rows=rows, format=format)


def _read_rows(path: Path, ending: str, format: RowFormat) -> Iterator[Row]:
    try:
        open_regular(path).close()
        yield from READERS[ending](path, format)
    except NotRegularFileError as error:
        raise InputError(
            f"{path}: {error.strerror}: write the questions to a file first, such as "
            "questions.jsonl"
        ) from None
    except UnicodeError as error:
        what = str(error)
        if isinstance(error, UnicodeDecodeError):
            what = f"found the byte 0x{error.object[error.start]:02x}"
        raise InputError(
            f"{path} is not {format.encoding or 'UTF-8'} text ({what}): save it as UTF-8, or say "
            "what it is with `encoding`"
        ) from error
    except _reading_errors() as error:
        raise InputError(
            f"{path} cannot be read as {ending} ({first_line(error)}): check the file"
        ) from error


def _reading_errors() -> tuple[type[Exception], ...]:
    from clew.storage.arrow import ARROW_ERRORS  # text files are read without Arrow

    return (EOFError, zlib.error, *ARROW_ERRORS)


def file_ending(path: Path) -> str:
    """The file's format by its extension, such as ".csv" or ".jsonl.gz"."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def _read_json_lines(path: Path, format: RowFormat) -> Iterator[Row]:
    number = 0
    with open_text(path, format.encoding) as file:
        layout = Layout(form=encoding_name(file))
        for line_number, line in enumerate(_each_record(BoundedLines(file)), start=1):
            if isinstance(line, str) and not line.strip():
                continue
            about: dict[str, Any] = {"where": f"line {line_number}", "layout": layout}
            yield Row(number=number, **_parse_line(line), **about)
            # A malformed line is counted, so that fixing it does not change the id of any other
            # record.
            number += 1


def _each_record(source: BoundedLines | CsvRecords) -> Iterator[Any]:
    """The records, and the errors in place of those that cannot be read."""
    while True:
        try:
            yield next(source)
        except StopIteration:
            return
        except (csv.Error, TooLongError) as error:
            yield error


def _parse_line(line: str | Exception) -> dict[str, Any]:
    """The record of a line, or the problem with it."""
    if isinstance(line, Exception):
        return {"problem": str(line)}
    try:
        return {"record": parse_json(line, finite=False, encodable=False)}
    except ValueError as error:
        return {"problem": f"it is not JSON ({error})"}


def _read_json(path: Path, format: RowFormat) -> Iterator[Row]:
    with open_text(path, format.encoding) as file:
        text = file.read(_MAX_JSON_CHARACTERS + 1)
        layout = Layout(form=encoding_name(file))
    if _is_json_lines(text):
        yield from _read_json_lines(path, format)
        return
    _check_json_size(path, text)
    try:
        records = parse_json(text, finite=False, encodable=False) if text.strip() else []
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): fix it or save it again") from error
    if isinstance(records, dict):
        fields = plain_fields(records)
        records = fields.get("data", fields.get("questions"))
    if not isinstance(records, list):
        raise InputError(
            f'{path} does not contain a list of records: write [...] or {{"data": [...]}}'
        )
    for number, record in enumerate(records):
        yield Row(number=number, where=f"row {number + 1}", record=record, layout=layout)


def _is_json_lines(text: str) -> bool:
    """Many .json files hold one record per line: a whole one on the first line, and more."""
    first, _, rest = text.lstrip()[:MAX_RECORD_CHARACTERS].partition("\n")
    if not first.startswith("{") or not rest.strip():
        return False
    try:
        return isinstance(parse_json(first, finite=False, encodable=False), dict)
    except ValueError:
        return False


def _check_json_size(path: Path, text: str) -> None:
    values = sum(map(text.count, ",[{"))
    if len(text) > _MAX_JSON_CHARACTERS or values > _MAX_JSON_VALUES:
        raise InputError(
            f"{path} is too large for one JSON value (at most {_MAX_JSON_CHARACTERS:,} characters "
            f"and about {_MAX_JSON_VALUES:,} values): save it as JSON Lines (.jsonl), one record "
            "per line, which is read line by line"
        )


def _read_csv(path: Path, format: RowFormat) -> Iterator[Row]:
    is_tsv = ".tsv" in file_ending(path)
    with open_text(path, format.encoding) as file:
        records = CsvRecords(file, "\t" if is_tsv else None)
        usual = "\t" if is_tsv else ","
        mark = "" if records.delimiter == usual else _MARKS.get(records.delimiter, "")
        form = ", ".join(filter(None, (encoding_name(file), mark)))
        header: Layout | None = None
        number, last_line = 0, 0
        blank: list[int] = []
        for cells in _each_record(records):
            first, last_line = last_line + 1, records.line
            if isinstance(cells, list) and not any(map(str.strip, cells)):
                if cells and header is not None:  # an empty line is none of the table's
                    blank.append(last_line)
                continue
            if isinstance(cells, list) and header is None:
                header = Layout(columns=_name_apart(cells), form=form)
                continue
            where, layout = f"row {number + 1}", header or Layout(form=form)
            if isinstance(cells, list):
                yield _csv_row(number, where, layout, cells)
            else:
                problem = f"lines {first} to {last_line} are not valid CSV ({cells})"
                yield Row(number=number, where=where, problem=problem, layout=layout)
            number += 1
    if blank:
        yield _blank_row(number, blank)


def _name_apart(header: list[str]) -> tuple[str, ...]:
    """The second of two columns of one name is called "name (2)"."""
    counts = Counter[str]()
    names = []
    for name in header:
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(names)


def _blank_row(number: int, lines: list[int]) -> Row:
    """All blank rows together, at the end: spreadsheets write thousands of them."""
    some = ", ".join(f"{line:,}" for line in lines[:_NAMED_LINES])
    more = ", ..." if len(lines) > _NAMED_LINES else ""
    where = f"{counted(len(lines), 'row')} (line{'s' if len(lines) > 1 else ''} {some}{more})"
    return Row(number=number, where=where, problem="all cells are empty", is_blank=True)


def _csv_row(number: int, where: str, layout: Layout, cells: list[str]) -> Row:
    columns = layout.columns or ()
    if len(cells) > len(columns):
        problem = f"it has {len(cells)} cells for {len(columns)} columns (an unquoted delimiter?)"
        return Row(number=number, where=where, problem=problem, layout=layout)
    record = dict(zip(columns, cells, strict=False))
    return Row(number=number, where=where, record=record, layout=layout)


def _read_table(path: Path, format: RowFormat) -> Iterator[Row]:
    from clew.hallucination.questions.tables import read_table

    return read_table(path, format)


READERS: dict[str, Callable[[Path, RowFormat], Iterator[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_table,
    ".arrow": _read_table,
    ".jsonl.gz": _read_json_lines,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_csv,
}


def open_dataset(
    base: str, names: list[str], *, from_hub: bool, format: RowFormat = RECOGNIZED
) -> RowSource:
    """The rows of a dataset; `names` is [split] or [config, split].

    `base` is a folder or a dataset id on the Hub. Raises InputError, immediately or while reading,
    if it cannot be loaded. A local dataset is read completely for its hash, one on the Hub only as
    far as needed.
    """
    label = base if from_hub else Path(base).resolve().name
    explained = functools.partial(_explained, ":".join((base, *names)), from_hub=from_hub)
    with explained():
        if from_hub:
            _check_hub_answers(base)
        with quiet_hub():
            splits, config, split, revision = _open_splits(base, names)
        content = splits[split]
    name = ":".join(filter(None, (label, config, split)))

    def read() -> Iterator[Row]:
        with explained():
            yield from _dataset_rows(content, format)

    return RowSource(
        name=name,
        stem=label.split("/")[-1],
        rows=read(),
        sha256=hash_text(base, config, split, revision) if from_hub else None,
        format=format,
    )


@contextmanager
def _explained(spec: str, *, from_hub: bool) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # `datasets` raises a dozen unrelated types
        raise InputError(_why_not_loaded(spec, from_hub, error)) from error


def _check_hub_answers(hub_id: str) -> None:
    """Request the file that `datasets` requests first; it would retry six times over 23 s."""
    import datasets
    from huggingface_hub import constants, hf_hub_url, is_offline_mode
    from huggingface_hub.utils import http_backoff

    if datasets.config.HF_HUB_OFFLINE or is_offline_mode() or _is_cached(hub_id):
        return
    url = hf_hub_url(
        hub_id,
        datasets.config.REPOCARD_FILENAME,
        repo_type="dataset",
        endpoint=datasets.config.HF_ENDPOINT,
    )
    # Any response will do, even an error: `datasets` reports what it means.
    with quiet_hub():
        http_backoff(
            "HEAD",
            url,
            max_retries=1,
            retry_on_status_codes=(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )


def _is_cached(hub_id: str) -> bool:
    """Whether `datasets` has a cached copy, which it uses when the Hub is unreachable."""
    import datasets

    cache = Path(datasets.config.HF_DATASETS_CACHE).expanduser()
    names = [folder.name for folder in cache.iterdir()] if cache.is_dir() else []
    # The folder of "rajpurkar/SquadV2" is "rajpurkar___squad_v2".
    return plain_name(hub_id) in map(plain_name, names)


def _why_not_loaded(spec: str, from_hub: bool, error: Exception) -> str:
    if not from_hub:
        return (
            f"folder {spec} cannot be read as a dataset ({first_line(error)}): "
            'give a file in it, or check ":config:split"'
        )
    return (
        f'dataset "{spec}" could not be loaded from the Hugging Face Hub, and there is no such '
        f'local file or folder ({first_line(error)}): check "name:config:split", the network '
        "connection and HF_HUB_OFFLINE, or give a local file (.jsonl, .csv, .parquet)"
    )


def _open_splits(base: str, names: list[str]) -> tuple[Mapping[str, Any], str, str, str]:
    """All splits of a dataset (nothing is read yet), the config, the chosen split, the revision."""
    # Imported here since it takes seconds.
    import datasets

    if any(Path(base, mark).exists() for mark in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(base)
        splits = (
            saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or ""): saved}
        )
        if len(names) > 1 and names[0]:
            raise InputError(f'{base} has no configs: omit "{names[0]}"')
        return splits, "", _choose_split(base, splits, names[-1] if names else ""), ""
    config, split = names if len(names) == 2 else ("", "".join(names))
    if not config and split and split in datasets.get_dataset_config_names(base):
        config, split = split, ""
    builder = datasets.load_dataset_builder(base, config or None)
    # Streaming opens files as rows are requested and copies nothing into a cache.
    splits = builder.as_streaming_dataset()
    config = "" if builder.config.name == "default" else builder.config.name
    return splits, config, _choose_split(base, splits, split), str(builder.hash)


def _choose_split(base: str, splits: Mapping[str, Any], wanted: str) -> str:
    """The named split; otherwise the only one, or the one that is usually the largest."""
    if wanted and wanted not in splits:
        raise InputError(f'{base} has no split "{wanted}": use one of {", ".join(splits)}')
    preferred = [name for name in (wanted, *_PREFERRED_SPLITS, *splits) if name in splits]
    return preferred[0]


def _dataset_rows(rows: Any, format: RowFormat) -> Iterator[Row]:
    layout = Layout()
    # A stream of plain files may not know its columns until it is read.
    if rows.column_names is not None:
        layout = Layout(columns=tuple(rows.column_names))
        rows = rows.select_columns(useful_columns(rows.column_names, format))
    for number, record in enumerate(rows):
        yield Row(number=number, where=f"row {number + 1}", record=record, layout=layout)
