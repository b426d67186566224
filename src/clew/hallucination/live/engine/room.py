"""Rows of the cache and the record: which are free, and how many there is memory for."""

import heapq

import psutil

from clew.hallucination.capture.device_map import free_gpu_memory
from clew.hallucination.capture.plan import cache_bytes, record_bytes
from clew.hallucination.live.engine.passes import PackedModel
from clew.hallucination.live.engine.recording import RowRecord

# Share of the free memory that rows may take: growing needs room for the old rows, too.
_MEMORY_SHARE = 0.4
_MIN_ROWS, _MIN_CAPACITY = 4, 128
_MIN_CAPACITY_OF_GRAPHS = 256
# Room for the first tokens of an answer.
_FIRST_TOKENS = 16


class Room:
    """The rows of the engine, up to `max_rows`. They grow with what is asked, by powers of two: all
    have room for the longest. Where memory is short, long rows are fewer."""

    def __init__(self, model: PackedModel, record: RowRecord | None, max_rows: int) -> None:
        self._model, self._record, self._max_rows = model, record, max_rows
        self._free, self._used = list(range(max_rows)), set[int]()
        a_token = cache_bytes(model.model)
        if record is not None:
            a_token += record_bytes(record.recording.shape, 1)
        self._max_cells = int(_free_memory(model) * _MEMORY_SHARE) // a_token

    @property
    def max_tokens(self) -> int:
        """How many tokens fit if there is only one row, and the spare one."""
        return 1 << max(0, (self._max_cells // 2).bit_length() - 1)

    @property
    def has_rows(self) -> bool:
        """Whether a row is free, if there is memory for it."""
        return bool(self._free)

    def take_row(self, prompt_tokens: int, others: int = 0) -> int | None:
        """A free row with room for a prompt, or None if there is none while others are used, or no
        memory for so many `others` beside it. Raises MemoryError if there would be none without
        them, either."""
        if not self._free:
            return None
        if not self._used:
            self._shrink(prompt_tokens)
        with_answer = min(prompt_tokens + _FIRST_TOKENS, max(prompt_tokens, self.max_tokens))
        sizes = self._sizes(self._free[0] + 1, with_answer)
        if self._used and (
            sizes is None or self._fitting_rows(sizes[1]) <= len(self._used) + others
        ):
            return None
        self._resize(*_fitting(sizes, with_answer))
        row = heapq.heappop(self._free)
        self._used.add(row)
        return row

    def give_back(self, row: int) -> None:
        self._used.remove(row)
        heapq.heappush(self._free, row)

    def reserve(self, tokens: int) -> None:
        """Make room for that many tokens in every row. Raises MemoryError if there is none."""
        self._resize(*_fitting(self._sizes(1, tokens), tokens))

    def _sizes(self, rows: int, tokens: int) -> tuple[int, int] | None:
        """The sizes to change to; None if memory is too small. Rows do not become shorter, and only
        become fewer where they would not fit otherwise."""
        cache = self._model.cache
        least, capacity = _MIN_ROWS, _power_of_two(max(tokens, _MIN_CAPACITY))
        if self._model.device.type == "cuda":  # passes are captured again whenever they grow
            least, capacity = self._max_rows, max(capacity, _MIN_CAPACITY_OF_GRAPHS)
        capacity = max(capacity, cache.capacity)
        wanted = max(min(_power_of_two(max(rows, least)), self._max_rows), cache.rows)
        fitting = self._fitting_rows(capacity)
        if fitting < max([rows, *(row + 1 for row in self._used)]):
            return None
        return min(wanted, fitting), capacity

    def _fitting_rows(self, capacity: int) -> int:
        return self._max_cells // capacity - 1  # there is a spare row, too

    def _shrink(self, tokens: int) -> None:
        """While nothing runs: forget rows that have become much larger than needed."""
        if self._model.cache.capacity > 4 * _power_of_two(max(tokens, _MIN_CAPACITY)):
            self._resize(0, 0)

    def _resize(self, rows: int, capacity: int) -> None:
        """Both or neither: no row is without a record if memory runs out."""
        changes = [
            kept.prepare_resize(rows, capacity)
            for kept in (self._model.cache, self._record)
            if kept is not None and (kept.rows, kept.capacity) != (rows, capacity)
        ]
        for change in changes:
            change()


def _fitting(sizes: tuple[int, int] | None, tokens: int) -> tuple[int, int]:
    if sizes is None:
        raise MemoryError(f"rows of {tokens} tokens do not fit in memory")
    return sizes


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _free_memory(model: PackedModel) -> int:
    if model.device.type == "cuda":
        return free_gpu_memory(model.model)
    return int(psutil.virtual_memory().available)
