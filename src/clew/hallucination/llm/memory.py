"""What there is memory for: rows of the KV cache and the record, beginnings that prompts share, and
the rows of a batch."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
from torch import Tensor
from transformers import PreTrainedModel

from clew.hallucination.llm.device_map import free_gpu_memory
from clew.hallucination.llm.packing import CachedTokens
from clew.hallucination.llm.passes import COLUMNS_STEP, PackedModel
from clew.hallucination.llm.recording import RowRecord
from clew.hallucination.traces.schema import TraceShape

# Share of the free memory that rows may take: growing needs room for the old rows, too.
_MEMORY_SHARE = 0.4
_MIN_ROWS, _MIN_CAPACITY = 4, 128
_MIN_CAPACITY_OF_GRAPHS = 256
# Room for the first tokens of an answer.
_FIRST_TOKENS = 16
_MIN_TOKENS = 8
_MAX_KEPT_TOKENS = 4096
_RECENT_PROMPTS = 32


class RowPool:
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
        return self.take()

    def fit(self, rows: int, tokens: int, *, is_recorded: bool) -> None:
        """While nothing runs: make exactly these many rows, for a batch that nobody joins. On a
        GPU, passes that were captured for larger ones remain usable."""
        tokens = -(-(tokens + 1) // COLUMNS_STEP) * COLUMNS_STEP
        if self._model.device.type == "cuda":
            tokens = max(_power_of_two(tokens), self._model.cache.capacity)
            rows = max(rows, self._model.cache.rows)
        self._resize(rows, tokens, is_recorded=is_recorded)

    def release(self) -> None:
        """While nothing runs: free the rows, unless passes were captured for them."""
        if self._model.device.type != "cuda" or not self._model.packs:
            self._resize(0, 0)

    def take(self) -> int:
        """A free row; there is one."""
        row = heapq.heappop(self._free)
        self._used.add(row)
        return row

    def give_back(self, row: int) -> None:
        self._used.remove(row)
        heapq.heappush(self._free, row)

    def reserve(self, tokens: int) -> None:
        """Make room for that many tokens in every row. Raises MemoryError if there is none."""
        if tokens > self._model.cache.capacity:
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

    def _resize(self, rows: int, capacity: int, *, is_recorded: bool = True) -> None:
        """Both or neither: no row is without a record if memory runs out."""
        changes = [
            kept.prepare_resize(rows, capacity)
            for kept in (self._model.cache, self._record if is_recorded else None)
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


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """The beginning of some prompts, as one row has passed it; `record` only if it was recorded."""

    tokens: list[int]
    cached: CachedTokens
    record: dict[str, Tensor] | None


@dataclass(kw_only=True)
class Prefixes:
    """The kept beginnings, those used last at the end."""

    kept: list[SharedPrefix] = field(default_factory=list)
    _recent: list[list[int]] = field(default_factory=list)

    def find(self, prompt: Sequence[int], *, recorded: bool) -> SharedPrefix | None:
        """The longest kept beginning of a prompt; at least one token of it is left to pass."""
        usable = (prefix for prefix in self.kept if prefix.record is not None or not recorded)
        fitting = [prefix for prefix in usable if _starts_with(prompt, prefix.tokens)]
        best = max(fitting, key=lambda prefix: len(prefix.tokens), default=None)
        if best is not None:
            self.kept.remove(best)
            self.kept.append(best)
        return best

    def length_to_keep(self, prompt: Sequence[int], others: Iterable[Sequence[int]]) -> int:
        """How many first tokens this prompt shares with others or with recent ones, if they are
        enough to be kept; else 0."""
        compared = [*self._recent, *others]
        self._recent = [*self._recent[1 - _RECENT_PROMPTS :], list(prompt)]
        longest = max((_shared(prompt, other) for other in compared), default=0)
        return longest if _MIN_TOKENS <= longest <= _MAX_KEPT_TOKENS else 0

    def keep(self, prefix: SharedPrefix) -> None:
        self.kept.append(prefix)
        while sum(len(kept.tokens) for kept in self.kept) > _MAX_KEPT_TOKENS:
            self.kept.pop(0)


def _starts_with(prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    return len(tokens) < len(prompt) and list(prompt[: len(tokens)]) == tokens


def _shared(prompt: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are equal, leaving one of each."""
    low, high = 0, min(len(prompt), len(other)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if prompt[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How prompts are batched: at most `rows` at a time, and at most `tokens` slots.

    `same_length` never mixes lengths, so that nothing is padded.
    """

    rows: int
    tokens: int
    same_length: bool = False


class ExtraWork(NamedTuple):
    """What else an answer takes: its tokens passed once more, and further `tokens`; `bytes` on
    disk."""

    tokens: int
    bytes: int


def make_batches(
    lengths: Sequence[int],
    plan: BatchPlan,
    max_new_tokens: int,
    prompts: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Group sequences (by index) of similar length, within the plan's rows and slots. Those with
    the same one of `prompts`, if they are given, stay together: a batch passes it once.

    The longest come first, so that memory use peaks at the start of a run.
    """
    first: dict[tuple[int, ...], int] = {}
    of = [first.setdefault(tuple(prompt), i) for i, prompt in enumerate(prompts)]
    if not prompts or plan.same_length:
        of = list(range(len(lengths)))
    longest = dict.fromkeys(of, 0)
    for i, length in zip(of, lengths, strict=True):
        longest[i] = max(longest[i], length)
    order = sorted(range(len(lengths)), key=lambda i: (-longest[of[i]], of[i], i))
    batches: list[list[int]] = []
    for index in order:
        current = batches[-1] if batches else []
        width = longest[of[current[0]]] if current else 0
        slots = (len(current) + 1) * (width + max_new_tokens)
        fits = current and len(current) < plan.rows and slots <= plan.tokens
        if fits and not (plan.same_length and lengths[current[0]] != lengths[index]):
            current.append(index)
        else:
            batches.append([index])
    return batches


def row_bytes(model: PreTrainedModel, shape: TraceShape, width: int) -> int:
    """Device memory of one row: keys and values, the record, activations, logits."""
    config = model.config.get_text_config(decoder=True)
    item = next(model.parameters()).element_size()
    cache = width * cache_bytes(model)
    inner = getattr(config, "intermediate_size", None) or 4 * shape.dim
    activations = width * (6 * shape.dim + 3 * inner) * item
    attention = 3 * shape.heads * width * width * 4
    logits = 4 * config.vocab_size * 4
    return cache * 2 + 2 * record_bytes(shape, width) + activations + attention + logits


def cache_bytes(model: PreTrainedModel) -> int:
    """Memory of the keys and values of one token."""
    config = model.config.get_text_config(decoder=True)
    item = next(model.parameters()).element_size()
    return int(2 * item * sum(map(_key_values, config.per_layer_config)))


def _key_values(layer: Any) -> int:
    heads = getattr(layer, "num_attention_heads", None) or 1
    kv_heads = getattr(layer, "num_key_value_heads", None) or heads
    return kv_heads * (getattr(layer, "head_dim", None) or layer.hidden_size // heads)


def record_bytes(shape: TraceShape, width: int) -> int:
    """Memory that the compact record of one row takes during capture."""
    of_states = shape.layers * (8 * shape.dim + width * 4 * shape.node_dim)
    of_attention = 8 * shape.edges_per_token + 16 * shape.heads
    return of_states + shape.attention_layers * width * of_attention
