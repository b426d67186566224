"""A list in a temporary file: as many items as the disk holds, in constant memory."""

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

from clew.storage.working_copy import scratch_root

Item = TypeVar("Item")
_BUFFER_BYTES = 1 << 20


class DiskList(Sequence[Item], Generic[Item]):
    """Items are pickled into a file that no other process sees and that goes with this object; in
    memory each takes 8 bytes. Several threads may read it."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._file = tempfile.TemporaryFile("w+b", _BUFFER_BYTES, dir=scratch_root())  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        for item in items:
            self.append(item)

    def append(self, item: Item) -> None:
        self._ends.append(self._ends[-1] + self._file.write(pickle.dumps(item)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        found = range(len(self))[index]
        return [self._read(i) for i in found] if isinstance(found, range) else self._read(found)

    def _read(self, index: int) -> Item:
        self._file.flush()
        start, end = self._ends[index], self._ends[index + 1]
        item: Item = pickle.loads(os.pread(self._file.fileno(), end - start, start))
        return item

    def __eq__(self, other: object) -> bool:
        """As a list."""
        return isinstance(other, Sequence) and [*self] == [*other]

    def __reduce__(self) -> tuple[Any, ...]:
        """With all items, for a worker on another machine."""
        return DiskList, (list(self),)
