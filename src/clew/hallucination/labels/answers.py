"""The answers of a trace store, read from its text columns only, and their labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import StoreError
from clew.hallucination.traces.schema import (
    ANSWER_PARTS,
    CONTEXT,
    GIVEN_SCORE,
    GIVEN_SPANS,
    check_traces,
)
from clew.storage.reader import ShardReader, StoreReader

# An answer that is "excluded" by a person is in no class.
Label = Literal["correct", "hallucinated", "refused", "excluded"]
# The reason of a score that is missing since the model declined to answer.
REFUSED = "refused"
# The reason of one that is missing since nobody has labeled the answer yet.
UNLABELED = "unlabeled"
# The reason of a judge's score; more is said where the words disagree with it.
JUDGED = "judged"
_COLUMNS = ("global_example_id", "question_id", "question", "category", "accepted_answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """A model's answer to a question, with the accepted answers; `parts` names the part of the
    answer that each is accepted for, if the question asks for several facts. An answer that was
    given has the score and the spans of its file, as the store has them."""

    global_example_id: int
    question_id: str
    question: str
    category: str | None
    accepted: tuple[str, ...]
    text: str
    parts: tuple[str, ...] = ()
    context: str | None = None
    given_score: float | None = None
    given_spans: tuple[tuple[int, int, int], ...] | None = None

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
    """An answer with its score, from 0 (hallucinated) to 1 (correct); None if it is refused or
    unlabeled. `accepted_answer` is the best-matching one. `reason` says why it has this score.
    `correction` is what a person says instead, and wins."""

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
            return "excluded" if self.reason == UNLABELED else "refused"
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


def read_answers(store: StoreReader, *, contexts: bool = False) -> Iterator[StoredAnswer]:
    """Iterate over all answers, shard by shard; with `contexts`, what they are about."""
    more = [ANSWER_PARTS, GIVEN_SCORE, GIVEN_SPANS, *([CONTEXT] if contexts else [])]
    for index in range(len(store.shards)):
        yield from _read_shard(store.peek(index), more)


def _read_shard(shard: ShardReader, more: Sequence[str]) -> Iterator[StoredAnswer]:
    held = [name for name in more if name in shard.schema.names]
    table = shard.read_columns([*_COLUMNS, "answer", *held])
    for row in table.to_pylist():
        part_names, accepted = _usable_parts(row.get(ANSWER_PARTS), row["accepted_answers"])
        spans = row.get(GIVEN_SPANS)
        spans = None if spans is None else tuple(map(tuple, spans))
        yield StoredAnswer(
            global_example_id=row["global_example_id"],
            question_id=row["question_id"],
            question=row["question"] or "",
            category=row["category"],
            accepted=_usable(accepted),
            text=row["answer"] or "",
            parts=part_names,
            context=row.get(CONTEXT),
            given_score=_given_score(row.get(GIVEN_SCORE), spans),
            given_spans=spans,
        )


def _given_score(score: float | None, spans: Any) -> float | None:
    """The score of the file, or that of its spans: an unsure one alone decides nothing."""
    labels = {label for _, _, label in spans or ()}
    if score is not None or spans is None:
        return score
    return 0.0 if 1 in labels else 1.0 if -1 not in labels else None


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
