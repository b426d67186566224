"""One trace: a mapping from field names to values that are read when asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from clew.hallucination.traces.schema import resolve_shape
from clew.storage import read_value

# The name that the older tools gave to the generated answer.
_ALIASES = {"generated_answer_clean": "answer"}


class Trace(Mapping[str, Any]):
    """What is kept of one answer: `trace["question"]`, `trace["last_hidden"]`, ...

    Arrays are read-only numpy views into the mapped shard: reading a field touches the bytes
    of that field alone. `hidden_states[l]` is `[tokens, dim]`, `attentions[l]` is
    `[heads, tokens, tokens]` (both only in stores captured with `keep="full"`).
    """

    def __init__(self, batch: pa.RecordBatch, row: int) -> None:
        self._batch = batch
        self._row = row

    def __getitem__(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            raise KeyError(self._explain_missing(name))
        value = read_value(self._batch.column(index), self._row)
        shape = resolve_shape(self._batch.schema.field(index), self._tokens, self._answer_tokens)
        return value if value is None or shape is None else value.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.schema.names)

    def __len__(self) -> int:
        return len(self._batch.schema.names)

    def __contains__(self, name: object) -> bool:
        return _ALIASES.get(str(name), str(name)) in self._batch.schema.names

    def __repr__(self) -> str:
        return (
            f"Trace({self['global_example_id']}, question={self['question']!r}, "
            f"answer={self['answer']!r}, {self._tokens} tokens)"
        )

    @property
    def _tokens(self) -> int:
        return len(read_value(self._batch.column("tokens"), self._row))

    @property
    def _answer_tokens(self) -> int:
        return self._tokens - (read_value(self._batch.column("prompt_length"), self._row) or 0)

    def _explain_missing(self, name: str) -> str:
        hint = (
            ' (capture with keep="full" to have it)'
            if name in ("hidden_states", "attentions")
            else ""
        )
        return f'this trace has no field "{name}"{hint}; it has: {", ".join(self)}'
