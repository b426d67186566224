"""The answers of a store of traces, from its text columns alone (the large ones stay unread), and
what a label adds to them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import StoreError
from clew.storage import ShardReader, StoreReader

_COLUMNS = ("global_example_id", "question_id", "question", "category", "accepted_answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """What a model answered to a question, and what counts as right."""

    global_example_id: int
    question_id: str
    question: str
    category: str | None
    accepted: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledAnswer:
    """An answer with its score, from 0 (wrong) to 1 (right)."""

    question_id: str
    global_example_id: int
    score: float
    method: str
    answer: str
    accepted_answer: str
    question: str
    category: str | None

    @classmethod
    def of(cls, answer: StoredAnswer, score: float, method: str, accepted: str) -> "LabelledAnswer":
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
    """A store that holds traces; raises StoreError for another."""
    store = StoreReader(path)
    if store.manifest.kind != "traces":
        raise StoreError(
            f'"{path}" holds {store.manifest.kind}, not traces: give the store that '
            f'"clew extract" or "clew convert" wrote; "clew inspect {path}" shows what is in it.'
        )
    return store


def read_answers(store: StoreReader) -> Iterator[StoredAnswer]:
    """All answers, one shard after the other."""
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
