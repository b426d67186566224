"""The answers of a trace store, read from its text columns only, and their labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import StoreError
from clew.hallucination.traces.schema import ANSWER_PARTS, check_traces
from clew.storage.reader import ShardReader, StoreReader

# An answer that is "excluded" by a person is in no class.
Label = Literal["correct", "hallucinated", "refused", "excluded"]
# The reason of a score that is missing since the model declined to answer.
REFUSED = "refused"
# The reason of a judge's score; more is said where the words disagree with it.
JUDGED = "judged"
_COLUMNS = ("global_example_id", "question_id", "question", "category", "accepted_answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """A model's answer to a question, with the accepted answers; `parts` names the part of the
    answer that each is accepted for, if the question asks for several facts."""

    global_example_id: int
    question_id: str
    question: str
    category: str | None
    accepted: tuple[str, ...]
    text: str
    parts: tuple[str, ...] = ()

    @property
    def by_part(self) -> dict[str, list[str]]:
        """The accepted answers of each part."""
        found: dict[str, list[str]] = {}
        for part, text in zip(self.parts, self.accepted, strict=True) if self.parts else ():
            found.setdefault(part, []).append(text)
        return found

    @property
    def in_one_text(self) -> "StoredAnswer":
        """The same answer, with the accepted answers of all parts as one text."""
        if not self.parts:
            return self
        text = "; ".join(f"{part}: {' or '.join(some)}" for part, some in self.by_part.items())
        return replace(self, accepted=(text,), parts=())


@dataclass(frozen=True, kw_only=True, slots=True)
class LabeledAnswer:
    """An answer with its score, from 0 (hallucinated) to 1 (correct); None if it is refused.
    `accepted_answer` is the best-matching one. `reason` says why it has this score. `correction`
    is what a person says instead, and wins."""

    question_id: str
    global_example_id: int
    score: float | None
    method: str
    answer: str
    accepted_answer: str
    question: str
    category: str | None
    reason: str = ""
    accepted_answers: tuple[str, ...] = ()
    correction: Label | None = None

    @classmethod
    def of(
        cls, answer: StoredAnswer, score: float | None, method: str, accepted: str, reason: str = ""
    ) -> "LabeledAnswer":
        return cls(
            question_id=answer.question_id,
            global_example_id=answer.global_example_id,
            score=None if score is None else round(score, 6),
            method=method,
            answer=answer.text,
            accepted_answer=accepted,
            question=answer.question,
            category=answer.category,
            reason=reason,
            accepted_answers=answer.accepted,
        )

    def label(self, threshold: float) -> Label:
        """The class of the answer: a person's correction, or by the score."""
        if self.correction is not None:
            return self.correction
        if self.score is None:
            return "refused"
        return "hallucinated" if self.score < threshold else "correct"


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
        yield from _read_shard(store.peek(index))


def _read_shard(shard: ShardReader) -> Iterator[StoredAnswer]:
    names = [*_COLUMNS, "answer"]
    has_parts = ANSWER_PARTS in shard.schema.names
    table = shard.read_columns([*names, *([ANSWER_PARTS] if has_parts else [])])
    columns = [column.to_pylist() for column in table.columns]
    parts: list[Any] = columns.pop() if has_parts else [None] * len(columns[0])
    for number, question_id, question, category, accepted, text, of in zip(
        *columns, parts, strict=True
    ):
        part_names, accepted = _usable_parts(of, accepted)
        yield StoredAnswer(
            global_example_id=number,
            question_id=question_id,
            question=question or "",
            category=category,
            accepted=_usable(accepted),
            text=text or "",
            parts=part_names,
        )


def _usable_parts(parts: Any, accepted: Any) -> tuple[tuple[str, ...], Any]:
    """The names of the parts and their accepted answers, without missing ones; no names if there
    are not as many as accepted answers."""
    if not parts or not accepted or len(parts) != len(accepted):
        return (), accepted
    pairs = [(part, text) for part, text in zip(parts, accepted, strict=True) if part and text]
    pairs = [(part, text) for part, text in pairs if part.strip() and text.strip()]
    return tuple(part for part, _ in pairs), [text for _, text in pairs]


def _usable(accepted: Any) -> tuple[str, ...]:
    return tuple(alias for alias in accepted or () if alias and alias.strip())
