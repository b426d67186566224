"""The opcodes of pickle protocols 0 to 5, as far as plain data needs them; `pickletools` describes
them. Written in Python, so that Ctrl-C works between any two of them."""

import codecs
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from clew.hallucination.legacy.budget import Budget
from clew.hallucination.legacy.machine import (
    OBJECT_BYTES,
    DamagedPickleError,
    Machine,
)
from clew.hallucination.legacy.stand_ins import RefusedContentError

_STOP = b"."
_HIGHEST_PROTOCOL = 5
# A place on the stack with a small number in it takes half of this; the rest bounds the time.
_OPCODE_BYTES = 80
_BYTE, _SHORT, _INT = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<i")
_UNSIGNED, _LONG, _DOUBLE = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct(">d")
_MAX_NUMBER_LINE = _MAX_NAME_LINE = 1 << 12
_REFUSED = {
    **dict.fromkeys((b"P", b"\x97", b"\x98"), "it refers to something outside the file"),
    **dict.fromkeys((b"i", b"o", b"\x92"), "it creates an object, which is not plain data"),
    **dict.fromkeys((b"\x82", b"\x83", b"\x84"), "it refers to a registered extension"),
}


class PlainUnpickler(Machine):
    """Reads one pickle of plain data from `file`."""

    def __init__(
        self, file: BinaryIO, names: Mapping[tuple[str, str], Any], budget: Budget
    ) -> None:
        super().__init__(names, budget)
        self._file = file

    def load(self) -> Any:
        """The pickled value. Raises RefusedContentError for anything but plain data,
        OverBudgetError, and EOFError or a ValueError if the file is damaged."""
        read, take = self._file.read, self._budget.take
        while (code := read(1)) != _STOP:
            take(_OPCODE_BYTES)
            if code not in _OPCODES:
                raise _explain(code)
            method, arguments = _OPCODES[code]
            method(self, *arguments)
        return self.pop()

    def start(self) -> None:
        (protocol,) = self._read(1)
        if protocol > _HIGHEST_PROTOCOL:
            raise DamagedPickleError(f"it has the unknown pickle protocol {protocol}")

    def skip_frame(self) -> None:
        self._unpack(_LONG)

    def push_packed(self, layout: struct.Struct) -> None:
        self.push(self._unpack(layout))

    def put_packed(self, layout: struct.Struct) -> None:
        self.put(self._unpack(layout))

    def get_packed(self, layout: struct.Struct) -> None:
        self.get(self._unpack(layout))

    def put_line(self) -> None:
        self.put(int(self._read_line(_MAX_NUMBER_LINE)))

    def get_line(self) -> None:
        self.get(int(self._read_line(_MAX_NUMBER_LINE)))

    def push_named_global(self) -> None:
        module, name = self._read_line(_MAX_NAME_LINE), self._read_line(_MAX_NAME_LINE)
        self.push(self.find_global(module.decode(), name.decode()))

    def push_integer(self, layout: struct.Struct) -> None:
        content = self._read_sized(layout, 2)
        self._push_counted(int.from_bytes(content, "little", signed=True))

    def push_text(self, layout: struct.Struct) -> None:
        # Python takes up to four bytes per character, beside the UTF-8 itself.
        self._push_counted(self._read_sized(layout, 5).decode("utf-8", "surrogatepass"))

    def push_old_text(self, layout: struct.Struct) -> None:
        self._push_counted(self._read_sized(layout, 2).decode("ascii"))

    def push_bytes(self, layout: struct.Struct) -> None:
        self._push_counted(self._read_sized(layout, 1))

    def push_bytearray(self) -> None:
        self._push_counted(bytearray(self._read_sized(_LONG, 2)))

    def push_number_line(self) -> None:
        line = self._read_line(_MAX_NUMBER_LINE)
        flags = {b"00": False, b"01": True}
        self.push(flags[line] if line in flags else int(line))

    def push_long_line(self) -> None:
        self.push(int(self._read_line(_MAX_NUMBER_LINE).removesuffix(b"L")))

    def push_float_line(self) -> None:
        self.push(float(self._read_line(_MAX_NUMBER_LINE)))

    def push_text_line(self) -> None:
        line = self._read_line(self._budget.left // 6)
        self._push_counted(str(line, "raw-unicode-escape"))

    def push_quoted_line(self) -> None:
        line = self._read_line(self._budget.left // 6).strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise DamagedPickleError("a text in it has no quotes")
        self._push_counted(codecs.escape_decode(line[1:-1])[0].decode("ascii"))

    def _push_counted(self, value: Any) -> None:
        self._budget.take(sys.getsizeof(value))
        self._stack.append(value)

    def _unpack(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack(self._read(layout.size))
        return value

    def _read_sized(self, layout: struct.Struct, times: int) -> bytes:
        """Bytes after their length, if `times` as many fit into memory."""
        count = self._unpack(layout)
        if count < 0:
            raise DamagedPickleError("a value in it has a negative length")
        self._budget.check(OBJECT_BYTES + times * count)
        return self._read(count)

    def _read(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) < count:
            raise EOFError("it ends in the middle of its data")
        return found

    def _read_line(self, most: int) -> bytes:
        line = self._file.readline(most)
        if not line.endswith(b"\n"):
            raise DamagedPickleError("a line in it is cut off or too long")
        return line[:-1]


def _explain(code: bytes) -> Exception:
    if not code:
        return EOFError("it ends in the middle of its data")
    if code in _REFUSED:
        return RefusedContentError(_REFUSED[code])
    return DamagedPickleError(f"the byte {code!r} in it is not part of a pickle")


_Do = PlainUnpickler
_OPCODES: dict[bytes, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    b"\x80": (_Do.start, ()),
    b"\x95": (_Do.skip_frame, ()),
    # Constants and numbers
    b"N": (_Do.push, (None,)),
    b"\x88": (_Do.push, (True,)),
    b"\x89": (_Do.push, (False,)),
    b")": (_Do.push, ((),)),
    b"K": (_Do.push_packed, (_BYTE,)),
    b"M": (_Do.push_packed, (_SHORT,)),
    b"J": (_Do.push_packed, (_INT,)),
    b"G": (_Do.push_packed, (_DOUBLE,)),
    b"\x8a": (_Do.push_integer, (_BYTE,)),
    b"\x8b": (_Do.push_integer, (_INT,)),
    b"I": (_Do.push_number_line, ()),
    b"L": (_Do.push_long_line, ()),
    b"F": (_Do.push_float_line, ()),
    # Texts and bytes
    b"\x8c": (_Do.push_text, (_BYTE,)),
    b"X": (_Do.push_text, (_UNSIGNED,)),
    b"\x8d": (_Do.push_text, (_LONG,)),
    b"V": (_Do.push_text_line, ()),
    b"U": (_Do.push_old_text, (_BYTE,)),
    b"T": (_Do.push_old_text, (_INT,)),
    b"S": (_Do.push_quoted_line, ()),
    b"C": (_Do.push_bytes, (_BYTE,)),
    b"B": (_Do.push_bytes, (_UNSIGNED,)),
    b"\x8e": (_Do.push_bytes, (_LONG,)),
    b"\x96": (_Do.push_bytearray, ()),
    # Containers
    b"(": (_Do.mark, ()),
    b"1": (_Do.pop_mark, ()),
    b"0": (_Do.drop, ()),
    b"2": (_Do.duplicate, ()),
    b"t": (_Do.push_marked, (tuple,)),
    b"\x85": (_Do.push_tuple, (1,)),
    b"\x86": (_Do.push_tuple, (2,)),
    b"\x87": (_Do.push_tuple, (3,)),
    b"]": (_Do.push_new, (list,)),
    b"l": (_Do.push_marked, (list,)),
    b"a": (_Do.append, ()),
    b"e": (_Do.extend, ()),
    b"}": (_Do.push_new, (dict,)),
    b"d": (_Do.push_dict, ()),
    b"s": (_Do.set_item, ()),
    b"u": (_Do.set_items, ()),
    b"\x8f": (_Do.push_new, (set,)),
    b"\x90": (_Do.add_items, ()),
    b"\x91": (_Do.push_frozenset, ()),
    # The memo
    b"p": (_Do.put_line, ()),
    b"q": (_Do.put_packed, (_BYTE,)),
    b"r": (_Do.put_packed, (_UNSIGNED,)),
    b"\x94": (_Do.put, ()),
    b"g": (_Do.get_line, ()),
    b"h": (_Do.get_packed, (_BYTE,)),
    b"j": (_Do.get_packed, (_UNSIGNED,)),
    # Stand-ins
    b"c": (_Do.push_named_global, ()),
    b"\x93": (_Do.push_global, ()),
    b"R": (_Do.call, ()),
    b"\x81": (_Do.push_object, ()),
    b"b": (_Do.build, ()),
    b"Q": (_Do.push_persistent, ()),
}
