"""What a Parquet file makes of its bytes, by its own headers: Arrow believes them and allocates
first. They are read here before, and must agree with each other."""

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.base.texts import bytes_text
from clew.hallucination.questions.records import useful_columns
from clew.storage.reading import open_regular
from clew.storage.thrift import BINARY, I32, I64, Fields, ThriftReader

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
