"""Questions from Parquet and Arrow files, which may claim more rows or text than they hold."""

import mmap
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.base.errors import InputError
from clew.base.texts import bytes_text, shortened
from clew.hallucination.questions.records import Row, useful_columns
from clew.storage.arrow import BatchHeaders, map_file, unpacked_bytes
from clew.storage.reading import open_regular
from clew.storage.thrift import BINARY, I32, I64, Fields, ThriftReader

_BATCH_ROWS = 1024
# Text of a few rows that are in memory at once, and of one row.
_MAX_TEXT_BYTES = 1 << 26
# Real questions take some bytes each, and text compresses 3 to 20 times.
_ROWS_PER_BYTE = 64
_MAX_RATIO = 200
_FREE_BYTES = 1 << 26
_FREE_ROWS = 1 << 20
# One row may hold them all, and each takes 16 bytes or more. Accepted answers come with a question.
_LIST_VALUES_PER_BYTE = 16
_FREE_LIST_VALUES = 1 << 20
# Python's own bytes for a list, and for an item of it; Arrow needs none for nulls.
_LIST_BYTES, _ITEM_BYTES = 64, 8
# What a Parquet file makes of its bytes, by its own headers: Arrow believes them and allocates
# first. They are read here before, and must agree with each other.
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_MAX_DEPTH = 128
_MAX_FIXED_BYTES = 1024  # of a value of fixed length: Arrow allocates it for a missing one, too
_MIN_PAGE_BYTES = 8
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_REPEATED = 2
_TEXT = 6  # the type of a column
_DELTA_LENGTHS, _DELTA_TEXTS = 6, 7  # encodings of texts
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
# Every list is named, or a wrong type of its items would be skipped otherwise than Arrow does.
_PAIRS: list[Fields] = [{}]
_SCHEMA: Fields = {
    1: ("type", I32),
    2: ("length", I32),
    3: ("repetition", I32),
    4: ("name", BINARY),
    5: ("children", I32),
}
_CHUNK: Fields = {
    2: ("encodings", [I32]),
    3: ("path", [BINARY]),
    4: ("codec", I32),
    5: ("values", I64),
    7: ("size", I64),
    8: ("pairs", _PAIRS),
    9: ("data", I64),
    11: ("dictionary", I64),
    13: ("encoding_counts", [{}]),
    16: ("level_counts", {2: ("repetition", [I64]), 3: ("definition", [I64])}),
    17: ("geography", {2: ("types", [I32])}),
}
_COLUMN: Fields = {3: ("chunk", _CHUNK), 8: ("encrypted", {})}
_GROUP: Fields = {1: ("columns", [_COLUMN]), 3: ("rows", I64), 4: ("sorted_by", [{}])}
_FOOTER: Fields = {
    2: ("schema", [_SCHEMA]),
    3: ("rows", I64),
    4: ("groups", [_GROUP]),
    5: ("pairs", _PAIRS),
    7: ("orders", [{}]),
}
_PAGE: Fields = {
    1: ("type", I32),
    2: ("unpacked", I32),
    3: ("packed", I32),
    5: ("data", {1: ("values", I32), 2: ("encoding", I32)}),
    7: ("dictionary", {1: ("values", I32)}),
    8: ("data_v2", {1: ("values", I32), 4: ("encoding", I32)}),
}
_DETAILS = {_DATA: "data", _DICTIONARY: "dictionary", _DATA_V2: "data_v2"}


def read_parquet(path: Path) -> Iterator[Row]:
    # Never ask pyarrow 26 for a column of the footer: it ends the process if one is damaged.
    size = measure_parquet(path, _most_unpacked(path))
    _check_rows(path, size.rows)
    _check_list_values(path, size.list_values)
    _check_unpacked(path, size.unpacked_bytes)
    _check_encodings(path, size.delta_columns)
    with pq.ParquetFile(path) as file:
        columns = useful_columns(path.name, file.schema_arrow.names)
        if not set(columns) <= set(size.columns):
            raise ValueError("its schema is damaged")
        kinds = {name: file.schema_arrow.field(name).type for name in columns}
    # Arrow makes a list of the fixed length for a missing one, too.
    fixed = sum(items for kind in kinds.values() if (items := _fixed_items(kind)) > 1)
    _check_list_values(path, fixed * max(size.rows, size.list_values))
    texts = [name for name in columns if _is_text(kinds[name])]
    rows = max(1, min(_BATCH_ROWS, _MAX_TEXT_BYTES // max(1, size.shared_bytes)))
    # As dictionaries, or one long text that many rows refer to would be copied for each. Arrow
    # cannot read nested columns that way.
    with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as file:
        yield from _batch_rows(path, file.iter_batches(batch_size=rows, columns=columns))


def read_arrow(path: Path) -> Iterator[Row]:
    with map_file(path) as source:
        content = source.read_buffer()
        try:
            reader = pa.ipc.open_file(content)
            batches = _file_batches(path, reader, content)
        except pa.ArrowInvalid:  # the stream format, which Hugging Face writes
            reader = pa.ipc.open_stream(content)
            batches = _stream_batches(path, reader, content)
        columns = useful_columns(path.name, reader.schema.names)
        yield from _batch_rows(path, (batch.select(columns) for batch in batches))


def _file_batches(path: Path, reader: Any, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    headers = BatchHeaders(content)
    _check_unpacked(path, headers.unpacked_dictionaries())
    for index in range(reader.num_record_batches):
        _check_unpacked(path, headers.unpacked_bytes(index))
        yield reader.get_batch(index)


def _stream_batches(path: Path, reader: Any, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    dictionaries = 0
    for message in pa.ipc.MessageReader.open_stream(content):
        if message.type == "dictionary":
            dictionaries += unpacked_bytes(message)
        elif message.type == "record batch":
            _check_unpacked(path, dictionaries + unpacked_bytes(message))
            yield reader.read_next_batch()


def _check_rows(path: Path, rows: int) -> None:
    size = path.stat().st_size
    if rows > _ROWS_PER_BYTE * size + _FREE_ROWS:
        raise InputError(
            f"{path} claims {rows:,} rows, but has only {bytes_text(size)}: download or create it "
            "again; if it is right, save it as JSON Lines (.jsonl)"
        )


def _check_list_values(path: Path, values: int) -> None:
    size = path.stat().st_size
    if values > _LIST_VALUES_PER_BYTE * size + _FREE_LIST_VALUES:
        raise InputError(
            f"{path} has {values:,} values in lists, but only {bytes_text(size)}: if you trust it, "
            "save it as JSON Lines (.jsonl)"
        )


def _check_encodings(path: Path, delta_columns: Collection[str]) -> None:
    """Their lengths are inside of the pages; Arrow decodes as many as a page claims, at once."""
    if delta_columns:
        raise InputError(
            f"{path} has delta-encoded texts in column {shortened(min(delta_columns))}: write it "
            "with dictionaries or plain texts, or save it as JSON Lines (.jsonl)"
        )


def _most_unpacked(path: Path) -> int:
    return _MAX_RATIO * path.stat().st_size + _FREE_BYTES


def _check_unpacked(path: Path, claimed: int) -> None:
    if claimed > _most_unpacked(path):
        size = path.stat().st_size
        raise InputError(
            f"{path} decompresses to more than {_MAX_RATIO} times its size "
            f"({bytes_text(size)} to {bytes_text(claimed)}): if you trust it, save it as JSON "
            "Lines (.jsonl)"
        )


def _batch_rows(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    number = text_bytes = 0
    for batch in batches:
        _check_rows(path, number + batch.num_rows)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            # Rows that all refer to one long text are small in the file, but not as questions.
            text_bytes += (size := _batch_bytes(part))
            _check_unpacked(path, text_bytes)
            for record in _records(part, size):
                problem = record if isinstance(record, str) else None
                yield Row(number=number, where=f"row {number + 1}", record=record, problem=problem)
                number += 1


def _records(batch: pa.RecordBatch, size: int) -> Iterator[dict[str, object] | str]:
    """The records, a few at a time; in place of one that is too large, what is wrong."""
    if size <= _MAX_TEXT_BYTES:
        yield from _as_python(batch)
    elif batch.num_rows == 1:
        yield f"it has {bytes_text(size)} of text; at most {bytes_text(_MAX_TEXT_BYTES)} are read"
    else:
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from _records(part, _batch_bytes(part))


def _as_python(batch: pa.RecordBatch) -> list[dict[str, object]]:
    try:
        return batch.to_pylist()
    except OverflowError as error:
        raise ValueError("a date, a time or a duration is out of range") from error


def _batch_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(_text_bytes, batch.columns))


def _text_bytes(column: pa.Array) -> int:
    """Bytes of a column once each reference to a shared text is a text of its own."""
    if isinstance(column, pa.DictionaryArray):
        values = column.dictionary
        if not _is_text(values.type):
            return int(column.nbytes)
        return int(pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0)
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _LIST_BYTES * len(column) + _text_bytes(column.flatten())
    if isinstance(column, pa.StructArray):
        return sum(map(_text_bytes, column.flatten()))
    return max(int(column.nbytes), _ITEM_BYTES * len(column))


def _fixed_items(kind: pa.DataType) -> int:
    """How many items each value has by its type alone."""
    inner = (_fixed_items(kind.field(index).type) for index in range(kind.num_fields))
    items = sum(count for count in inner if count > 1) or 1
    return items * (kind.list_size if pa.types.is_fixed_size_list(kind) else 1)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


@dataclass(frozen=True)
class _Leaf:
    column: str
    in_list: bool
    is_text: bool
    fixed_bytes: int


@dataclass
class _ChunkSize:
    values: int = 0
    unpacked: int = 0
    has_delta: bool = False
    shared_bytes: int = 0
    """The longest text that several values may share, or the page that it is in."""


@dataclass
class ParquetSize:
    """The rows of a file; its useful columns, their values in lists, and the most bytes that they
    may take once decompressed, where texts in lists are copied for each value. Other texts are
    copied for each row that is read at once: one takes at most `shared_bytes`. What the texts of
    `delta_columns` take, no header says."""

    columns: list[str]
    rows: int = 0
    list_values: int = 0
    unpacked_bytes: int = 0
    delta_columns: set[str] = field(default_factory=set)
    shared_bytes: int = 0

    def add(self, leaf: _Leaf, chunk: _ChunkSize, rows: int) -> None:
        self.unpacked_bytes += chunk.unpacked
        if chunk.has_delta:
            self.delta_columns.add(leaf.column)
        if leaf.in_list:
            self.list_values += chunk.values
            self.unpacked_bytes += chunk.values * (chunk.shared_bytes + leaf.fixed_bytes)
        elif chunk.values != rows:
            raise ValueError(f"a column has {chunk.values:,} values for {rows:,} rows")
        else:
            self.shared_bytes = max(self.shared_bytes, chunk.shared_bytes)


def measure_parquet(path: Path, most_bytes: int) -> ParquetSize:
    """Stops at the row group with which the file takes more than `most_bytes`. Raises ValueError if
    the headers are damaged or contradict each other."""
    with (
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        footer = _read_footer(content)
        leaves = _list_leaves(footer["schema"])
        useful = useful_columns(path.name, list(dict.fromkeys(leaf.column for leaf in leaves)))
        # Arrow takes a name with a dot for a part of the column before the dot.
        prefixes = tuple(f"{name}." for name in useful)
        wanted = [leaf.column in useful or leaf.column.startswith(prefixes) for leaf in leaves]
        size = ParquetSize(useful)
        _measure(size, _Pages(content, most_bytes), footer, leaves, wanted)
        return size


def _measure(
    size: ParquetSize, pages: "_Pages", footer: Any, leaves: Sequence[_Leaf], wanted: Sequence[bool]
) -> None:
    for group in footer["groups"]:
        size.rows += _natural(group, "rows")
        if len(group.get("columns", ())) != len(leaves):
            raise ValueError("a row group has other columns than the schema")
        for leaf, is_wanted, column in zip(leaves, wanted, group["columns"], strict=True):
            if is_wanted:
                size.add(leaf, pages.measure(leaf, column), group["rows"])
            if size.unpacked_bytes > pages.most_bytes:
                return
    if size.rows != footer.get("rows"):
        raise ValueError("its row groups have other numbers of rows than its footer")


def _read_footer(content: Any) -> dict[str, Any]:
    end = len(content) - 8
    length, magic = struct.unpack_from("<I4s", content, end) if end > 0 else (0, b"")
    if magic == _ENCRYPTED:
        raise ValueError("it is encrypted")
    if magic != _MAGIC or length > end:
        raise ValueError("it does not end with a Parquet footer")
    footer = ThriftReader(content, end - length, end).read(_FOOTER)
    return {"schema": [], "groups": [], **footer}


def _list_leaves(schema: Sequence[dict[str, Any]]) -> list[_Leaf]:
    """The columns with values, in the order in which each row group stores them. The schema is a
    tree: each part is followed by its children."""
    leaves: list[_Leaf] = []
    column = ""
    open_parts: list[list[Any]] = []  # how many children are left, and whether they are in a list
    for part in schema:
        while open_parts and not open_parts[-1][0]:
            open_parts.pop()
        if not open_parts and part is not schema[0]:
            raise ValueError("its schema is damaged")
        if open_parts:
            open_parts[-1][0] -= 1
        if len(open_parts) == 1:
            column = part.get("name", b"").decode(errors="replace")
        in_list = bool(open_parts) and (open_parts[-1][1] or part.get("repetition") == _REPEATED)
        children = part.get("children", 0)
        if children < 0 or len(open_parts) > _MAX_DEPTH:
            raise ValueError("its schema is damaged")
        if not children and "type" in part:
            fixed = part.get("length", 0)
            if not 0 <= fixed <= _MAX_FIXED_BYTES:
                raise ValueError(f"each value takes {bytes_text(fixed)}")
            leaves.append(_Leaf(column, in_list, part["type"] == _TEXT, fixed))
        else:
            open_parts.append([children, in_list])
    if any(left for left, _ in open_parts):
        raise ValueError("its schema is damaged")
    return leaves


class _Pages:
    """Walks over the pages of column chunks. Only dictionaries of texts in lists are
    decompressed."""

    def __init__(self, content: Any, most_bytes: int) -> None:
        self._content, self.most_bytes = content, most_bytes
        # Column chunks that all refer to the same pages would take forever.
        self._pages_left = len(content) // _MIN_PAGE_BYTES

    def measure(self, leaf: _Leaf, column: dict[str, Any]) -> _ChunkSize:
        if "encrypted" in column:
            raise ValueError("it is encrypted")
        chunk = column.get("chunk", {})
        claimed, start = _natural(chunk, "values"), _natural(chunk, "data")
        if 0 < chunk.get("dictionary", 0) < start:
            start = chunk["dictionary"]
        end = start + _natural(chunk, "size")
        if end > len(self._content):
            raise ValueError("a column lies outside the file")
        size = _ChunkSize()
        pages = self._each_page(start, end)
        while size.values < claimed and (page := next(pages, None)):
            _add_page(size, page)
            if leaf.is_text and page["type"] == _DICTIONARY:
                if size.shared_bytes:
                    raise ValueError("a column has two dictionaries")
                shared = self._longest(page, chunk) if leaf.in_list else page["unpacked"]
                size.shared_bytes = max(size.shared_bytes, shared)
        if size.values != claimed:
            raise ValueError(
                f"a column has {size.values:,} values, but its footer says {claimed:,}"
            )
        return size

    def _each_page(self, place: int, end: int) -> Iterator[dict[str, Any]]:
        while place < end:
            self._pages_left -= 1
            if self._pages_left < 0:
                raise ValueError("its columns share pages")
            reader = ThriftReader(self._content, place, end)
            page = reader.read(_PAGE)
            place = reader.place + _natural(page, "packed")
            if place > end:
                raise ValueError("a page lies outside its column")
            yield {**page, "start": reader.place}

    def _longest(self, page: dict[str, Any], chunk: dict[str, Any]) -> int:
        """Bytes of the longest text in a dictionary."""
        content = self._content[page["start"] : page["start"] + page["packed"]]
        unpacked, codec = page["unpacked"], _natural(chunk, "codec")
        if codec and (codec not in _CODECS or unpacked > self.most_bytes):
            return int(unpacked)
        if codec and unpacked:
            content = pa.Codec(_CODECS[codec]).decompress(content, unpacked, asbytes=True)
        longest = place = 0
        for _ in range(page["dictionary"]["values"]):
            if place + 4 > len(content):
                raise ValueError("a dictionary is damaged")
            [length] = struct.unpack_from("<I", content, place)
            longest, place = max(longest, length), place + 4 + length
        return longest


def _add_page(size: _ChunkSize, page: dict[str, Any]) -> None:
    unpacked = _natural(page, "unpacked")
    size.unpacked += unpacked
    if (kind := page.get("type")) not in _DETAILS:
        return  # Arrow skips it
    details = page.get(_DETAILS[kind], {})
    count = _natural(details, "values")
    if kind != _DICTIONARY:
        size.values += count
        encoding = _natural(details, "encoding")
        size.has_delta |= encoding in (_DELTA_LENGTHS, _DELTA_TEXTS)
    elif count > unpacked:
        raise ValueError(f"a dictionary has {count:,} values in {bytes_text(unpacked)}")


def _natural(header: dict[str, Any], name: str) -> int:
    value = header.get(name, -1)
    if value < 0:
        raise ValueError("a header is damaged")
    return int(value)
