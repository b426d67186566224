"""Rows of the cache and the record: which are free, and how many there is memory for."""

import heapq

import psutil
import torch

from clew.errors import ClewError
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
    have room for the longest."""

    def __init__(self, model: PackedModel, record: RowRecord | None, max_rows: int) -> None:
        self._model, self._record, self._max_rows = model, record, max_rows
        self._free = list(range(max_rows))
        a_token = cache_bytes(model.model)
        if record is not None:
            a_token += record_bytes(record.recording.shape, 1)
        self._max_cells = int(_free_memory(model.device) * _MEMORY_SHARE) // a_token

    def take_row(self, prompt_tokens: int) -> int | None:
        """A free row with room for a prompt, or None if there is none."""
        if not self._free:
            return None
        if len(self._free) == self._max_rows:
            self._shrink(prompt_tokens)
        rows, capacity = self._sizes(self._free[0] + 1, prompt_tokens + _FIRST_TOKENS)
        if rows * capacity > self._max_cells:
            return None
        self._resize(rows, capacity)
        return heapq.heappop(self._free)

    def give_back(self, row: int) -> None:
        heapq.heappush(self._free, row)

    def reserve(self, tokens: int) -> None:
        """Make room for that many tokens in every row. Raises MemoryError if there is none."""
        rows, capacity = self._sizes(1, tokens)
        if rows * capacity > self._max_cells:
            raise MemoryError(f"{rows} rows of {capacity} tokens do not fit in memory")
        self._resize(rows, capacity)

    def too_large(self, prompt_tokens: int) -> ClewError:
        return ClewError(
            f"a prompt of {prompt_tokens:,} tokens does not fit in the memory of "
            f"{self._model.device}, which has room for {self._max_cells:,}. Shorten it."
        )

    def _sizes(self, rows: int, tokens: int) -> tuple[int, int]:
        """The sizes to grow to; never smaller than they are."""
        cache = self._model.cache
        least, capacity = _MIN_ROWS, _power_of_two(max(tokens, _MIN_CAPACITY))
        if self._model.device.type == "cuda":  # passes are captured again whenever they grow
            least, capacity = self._max_rows, max(capacity, _MIN_CAPACITY_OF_GRAPHS)
        grown = min(_power_of_two(max(rows, least)), self._max_rows)
        return max(grown, cache.rows), max(capacity, cache.capacity)

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


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
