"""Read Thrift's compact protocol, in which the headers of Parquet files are written. Only what is
asked for is kept, and what another reader could understand differently is refused."""

from collections.abc import Mapping
from typing import Any, Final

I32: Final = 5
I64: Final = 6
BINARY: Final = 8
_LIST, _SET, _MAP, _STRUCT = 9, 10, 11, 12
_BYTES_OF = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false, a byte and a double, by their code
_MAX_DEPTH = 32
_MAX_FIELD = (1 << 15) - 1
# A struct of a few bytes takes a thousand in memory; real ones are larger.
_FREE_STRUCTS, _BYTES_PER_STRUCT = 1 << 16, 8

# The fields to keep, by number: their name, and their type: I32, I64, BINARY, the fields of a
# struct, or a list with one of these.
Fields = Mapping[int, tuple[str, Any]]


class ThriftReader:
    """Reads structs of `content` from `place` on, and never past `end`. Raises ValueError if they
    are damaged; `place` is then of no use."""

    def __init__(self, content: Any, place: int, end: int) -> None:
        self._content, self.place, self._end = content, place, end
        self._structs_left = _FREE_STRUCTS + (end - place) // _BYTES_PER_STRUCT

    def read(self, fields: Fields, depth: int = 0) -> dict[str, Any]:
        self._structs_left -= 1
        if depth > _MAX_DEPTH or self._structs_left < 0:
            raise ValueError("a header has too many parts")
        found: dict[str, Any] = {}
        numbers: set[int] = set()
        number = 0
        while (head := self._byte()) & 15:
            number = number + (head >> 4) if head >> 4 else self._integer(I32)
            # Readers differ in which of two they believe.
            if number in numbers or not 0 <= number <= _MAX_FIELD:
                raise ValueError("a header has a field twice")
            numbers.add(number)
            name, kind = fields.get(number, ("", None))
            if kind is None:
                self._skip(head & 15, depth)
            else:
                found[name] = self._value(head & 15, kind, depth)
        return found

    def _value(self, code: int, kind: Any, depth: int) -> Any:
        expected = kind if isinstance(kind, int) else _LIST if isinstance(kind, list) else _STRUCT
        if code != expected:
            raise ValueError("a header has a field of another type")
        if isinstance(kind, list):
            count, code = self._list_start()
            return [self._value(code, kind[0], depth) for _ in range(count)]
        if not isinstance(kind, int):
            return self.read(kind, depth + 1)
        if kind == BINARY:
            length = self._varint()
            self._advance(length)
            return bytes(self._content[self.place - length : self.place])
        return self._integer(kind)

    def _skip(self, code: int, depth: int) -> None:
        if code in _BYTES_OF:
            self._advance(_BYTES_OF[code])
        elif code <= I64:
            self._varint()
        elif code == BINARY:
            self._advance(self._varint())
        elif code in (_LIST, _SET):
            count, code = self._list_start()
            self._skip_each((code,), count, depth)
        elif code == _MAP:
            count = self._varint()
            codes = self._byte() if count else 0
            self._skip_each((codes >> 4, codes & 15), count, depth)
        elif code == _STRUCT:
            self.read({}, depth + 1)
        else:
            raise ValueError("a header has a field of an unknown type")

    def _skip_each(self, codes: tuple[int, ...], count: int, depth: int) -> None:
        if depth > _MAX_DEPTH or count > self._end - self.place:
            raise ValueError("a header ends too early")
        for _ in range(count):
            for code in codes:
                # In a list or map, unlike in a struct, true and false take a byte.
                self._skip(3 if code in (1, 2) else code, depth + 1)

    def _list_start(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > self._end - self.place:
            raise ValueError("a header ends too early")
        return count, head & 15

    def _integer(self, kind: int) -> int:
        value = self._varint()
        if value >= 1 << (32 if kind == I32 else 64):
            raise ValueError("a header has a number that is too large")
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a header has a number that is too large")

    def _byte(self) -> int:
        self._advance(1)
        return int(self._content[self.place - 1])

    def _advance(self, count: int) -> None:
        if count > self._end - self.place:
            raise ValueError("a header ends too early")
        self.place += count
