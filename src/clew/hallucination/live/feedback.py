"""What people say about answers: the vectors of recent answers wait in memory for a label, and go
with it into a journal, on which `clew adapt` fits."""

import base64
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float32, Int8

from clew.base.errors import InputError, QueueFullError, StoreError
from clew.base.texts import counted
from clew.base.typed_json import Bounds, Count, read_as
from clew.storage.journal import Journal

FEEDBACK_FILE = "feedback.jsonl"
Label = Literal["correct", "hallucinated"]
_Text = Annotated[str, Bounds(most=200)]
_Choices = Annotated[int, Bounds(least=1)]
_MOST_BYTES = 1 << 28  # of the answers that wait


@dataclass(frozen=True, kw_only=True, eq=False)
class RecentAnswer:
    """An answer that waits for a label: one of `choices` in its response. Without a `vector`, it
    was not checked, for this `reason`; `texts` are question and answer, if they are kept."""

    choices: int = 1
    state: str = "checked"
    vector: Float32[np.ndarray, " numbers"] | None
    reason: str | None = None
    texts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        texts = 4 * sum(len(str(text)) for text in self.texts.values())
        return texts + (0 if self.vector is None else self.vector.nbytes)


class RecentAnswers:
    """The answers of recent responses, by the response's ID and their place in it: `most` at most,
    in 256 MB. The oldest response makes room. For several threads."""

    def __init__(self, most: int) -> None:
        self.most, self._count, self._bytes = most, 0, 0
        self._lock = threading.Lock()
        self._responses: OrderedDict[str, dict[int, RecentAnswer]] = OrderedDict()

    def add(self, response: str, index: int, answer: RecentAnswer) -> None:
        with self._lock:
            self._responses.setdefault(response, {})[index] = answer
            self._count, self._bytes = self._count + 1, self._bytes + answer.bytes
            while self._is_full and len(self._responses) > 1:
                _, left = self._responses.popitem(last=False)
                self._count -= len(left)
                self._bytes -= sum(one.bytes for one in left.values())

    @property
    def _is_full(self) -> bool:
        return self._count > self.most or self._bytes > _MOST_BYTES

    def find(self, response: str) -> dict[int, RecentAnswer]:
        with self._lock:
            return dict(self._responses.get(response, {}))


class _Entry(TypedDict):
    """A line of the journal. One that changes a label has neither a vector nor texts."""

    id: _Text
    index: Count
    choices: _Choices
    label: Label
    corrected_answer: str | None
    made: _Text
    detector: NotRequired[_Text]
    state: NotRequired[_Text]
    vector: NotRequired[str]


class _Said(NamedTuple):
    choices: int
    label: Label
    corrected_answer: str | None


class Feedback:
    """Labels of answers in a journal; of several for an answer, the last one counts. `detector`
    identifies what computed the vectors. `most_recent` answers wait for a label, and `most_labels`
    are kept, changes included. For several threads."""

    def __init__(
        self,
        path: Path,
        *,
        detector: str,
        keeps_answers: bool = False,
        most_recent: int = 4096,
        most_labels: int = 10_000,
    ) -> None:
        """Raises StoreError if the file is damaged."""
        self.recent, self.keeps_answers = RecentAnswers(most_recent), keeps_answers
        self._journal, self._detector, self._most = Journal(path), detector, most_labels
        self._turn = threading.Lock()
        self._labeled: dict[str, dict[int, _Said]] = {}
        self._lines = 0
        self._read_on()

    def __len__(self) -> int:
        """The number of labeled answers."""
        return sum(map(len, self._labeled.values()))

    def add(
        self, response: str, index: int | None, label: Label, corrected: str | None = None
    ) -> int:
        """Keep a label; it is on disk when this returns the answer's place in its response. Raises
        KeyError if the answer neither waits for a label nor has one, InputError if it cannot be
        labeled, QueueFullError, StoreError or OSError."""
        with self._turn:
            self._read_on()
            recent, labeled = self.recent.find(response), self._labeled.get(response, {})
            index = _choose({**recent, **labeled}, index)
            known = labeled.get(index)
            if known is None or known[1:] != (label, corrected):
                about = {"choices": known.choices} if known else self._describe(recent[index])
                said = {"label": label, "corrected_answer": corrected}
                self._write({"id": response, "index": index, **about, **said})
            return index

    def _describe(self, answer: RecentAnswer) -> dict[str, Any]:
        if answer.vector is None:
            raise InputError(f"the answer was not checked, so it takes no label: {answer.reason}.")
        vector = base64.b64encode(answer.vector.astype("<f4").tobytes()).decode()
        about = {"choices": answer.choices, "state": answer.state, "detector": self._detector}
        return {**about, "vector": vector, **answer.texts}

    def _write(self, line: dict[str, Any]) -> None:
        if self._lines >= self._most:
            raise QueueFullError("no more labels are kept", waiting=self._lines)
        self._journal.append({**line, "made": datetime.now(UTC).isoformat(timespec="seconds")})
        self._read_on()

    def _read_on(self) -> None:
        """What this server has added, and others."""
        if self._journal.is_replaced():
            self._labeled, self._lines = {}, 0
        for entry in _read_entries(self._journal):
            said = _Said(entry["choices"], entry["label"], entry["corrected_answer"])
            self._labeled.setdefault(entry["id"], {})[entry["index"]] = said
            self._lines += 1


def _choose(answers: Mapping[int, RecentAnswer | _Said], index: int | None) -> int:
    """Raises KeyError if there is no such answer."""
    choices = next(iter(answers.values())).choices if answers else 1
    if index is None and choices > 1:
        raise InputError(f'the response has {choices} answers: say which one by "index", from 0.')
    if (index or 0) not in answers:
        raise KeyError(index)
    return index or 0


@dataclass(frozen=True, kw_only=True)
class LabeledVectors:
    """The labels that count, 1 for hallucinated, with the vectors of their answers. Those of
    `others` were computed by another detector, and cannot be used."""

    vectors: Float32[np.ndarray, "answers numbers"]
    labels: Int8[np.ndarray, " answers"]
    others: int


def read_feedback(path: Path, detector: str) -> LabeledVectors:
    """The labels in a journal that are for this detector. Raises InputError if there is none, and
    StoreError if the file is damaged."""
    vectors: dict[tuple[str, int], np.ndarray] = {}
    labels: dict[tuple[str, int], Label] = {}
    for entry in _read_entries(Journal(path)):
        key = entry["id"], entry["index"]
        labels[key] = entry["label"]
        if entry.get("detector") == detector and "vector" in entry:
            vectors[key] = _read_vector(path, entry["vector"])
    if len({*map(len, vectors.values())}) > 1:
        raise StoreError(f'the vectors in "{path}" have several lengths: restore it from a backup.')
    if not vectors:
        of_others = f": those of {counted(len(labels), 'answer')} are of another one"
        raise InputError(f'"{path}" has no labels for this detector{of_others if labels else ""}.')
    return LabeledVectors(
        vectors=np.stack([*vectors.values()]),
        labels=np.array([labels[key] == "hallucinated" for key in vectors], np.int8),
        others=len(labels) - len(vectors),
    )


def _read_entries(journal: Journal) -> Iterator[_Entry]:
    for number, line in enumerate(journal.read_on(), 1):
        try:
            yield read_as(_Entry, line)
        except ValueError as error:
            raise StoreError(
                f'entry {number:,} of "{journal.path}" is not feedback ({error}): restore the '
                "file from a backup, or rename it to start over."
            ) from None


def _read_vector(path: Path, text: str) -> Float32[np.ndarray, " numbers"]:
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    except ValueError as error:
        raise StoreError(f'a vector in "{path}" cannot be read ({error}).') from None
    if not np.isfinite(found).all():
        raise StoreError(f'a vector in "{path}" contains NaN or infinity.')
    return found
