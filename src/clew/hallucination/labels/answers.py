"""The answers of a trace store, read from its text columns only, and their labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import StoreError
from clew.hallucination.traces.schema import check_traces
from clew.storage import ShardReader, StoreReader

_COLUMNS = ("global_example_id", "question_id", "question", "category", "accepted_answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """A model's answer to a question, with the accepted answers."""

    global_example_id: int
    question_id: str
    question: str
    category: str | None
    accepted: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LabeledAnswer:
    """An answer with its score, from 0 (hallucinated) to 1 (correct)."""

    question_id: str
    global_example_id: int
    score: float
    method: str
    answer: str
    accepted_answer: str
    question: str
    category: str | None

    @classmethod
    def of(cls, answer: StoredAnswer, score: float, method: str, accepted: str) -> "LabeledAnswer":
        return cls(
            question_id=answer.question_id,
            global_example_id=answer.global_example_id,
            score=round(score, 6),
            method=method,
            answer=answer.text,
            accepted_answer=accepted,
            question=answer.question,
            category=answer.category,
        )


def open_traces(path: Path) -> StoreReader:
    """Open a trace store; raises StoreError for any other store."""
    store = StoreReader(path, check=check_traces)
    if store.manifest.kind != "traces":
        raise StoreError(
            f'"{path}" contains {store.manifest.kind}, not traces: give the store that '
            f'"clew extract" or "clew convert" wrote; "clew inspect {path}" shows what is in it.'
        )
    return store


def read_answers(store: StoreReader) -> Iterator[StoredAnswer]:
    """Iterate over all answers, shard by shard."""
    for index in range(len(store.shards)):
        yield from _read_shard(store.shard(index))


def _read_shard(shard: ShardReader) -> Iterator[StoredAnswer]:
    columns = [shard.read_column(name).to_pylist() for name in (*_COLUMNS, "answer")]
    for number, question_id, question, category, accepted, text in zip(*columns, strict=True):
        yield StoredAnswer(
            global_example_id=number,
            question_id=question_id,
            question=question or "",
            category=category,
            accepted=_usable(accepted),
            text=text or "",
        )


def _usable(accepted: Any) -> tuple[str, ...]:
    return tuple(alias for alias in accepted or () if alias and alias.strip())
