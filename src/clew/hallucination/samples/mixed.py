"""Answers of several folders as one: each split is put together from portions of any of them.
Nothing is copied on disk; a field is read from its folders, one by one, when it is asked for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Self, TypeAlias

import numpy as np

from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.graph_batches import GraphSamples
from clew.hallucination.samples.splits import group_questions, name_groups
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import CONTEXT, EVALUATION, GROUP, SPECTRUM
from clew.loading.reader import Access, JoinedReader, Rows, choose_access
from clew.loading.samples import SampleIndex, Samples, SampleSource
from clew.loading.splits import SPLIT_NAMES
from clew.storage.reading import hash_text


@dataclass(frozen=True, eq=False, kw_only=True)
class Portion:
    """Some answers of a folder, by their places in its index."""

    data: AnswerFeatures
    rows: Rows

    @classmethod
    def of(cls, data: AnswerFeatures, split: str | None = None) -> Self:
        """The answers of a split; None gives all."""
        if split is None:
            return cls(data=data, rows=np.arange(len(data.index.rows)))
        return cls(data=data, rows=np.flatnonzero(data.index.splits == SPLIT_NAMES.index(split)))

    @property
    def index(self) -> SampleIndex:
        return self.data.index.at(self.rows)


class MixedAnswers:
    """Answers of one or more folders of the same model under new splits, read like an
    `AnswerFeatures`: for methods trained on a union, or tested on all answers of a folder.

    `fields` and `samples` are those that all folders have; those of nodes are not comparable, and
    are omitted, unless all folders have the same basis. Settings are those of the first folder.
    """

    def __init__(self, name: str, splits: Mapping[str, Sequence[Portion]]) -> None:
        self.name = name
        self.splits = {split: _merge(splits.get(split, ())) for split in SPLIT_NAMES}
        every = [portion.data for portions in self.splits.values() for portion in portions]
        self.folders: tuple[AnswerFeatures, ...] = tuple(dict.fromkeys(every))
        self.shares_basis = share_basis(self.folders)
        self.fields = self._in_common("fields")
        self.samples = self._in_common("samples")
        self.labels = self._join("labels", lambda values: (values > 0.5).astype(np.int8))
        self.question_ids = self._join("question_ids")
        self.ids = self._join("example_ids")

    @property
    def layers(self) -> int:
        return self._first.layers

    @property
    def without_attention(self) -> tuple[int, ...]:
        return self._first.without_attention

    @property
    def dim(self) -> int:
        return self._first.dim

    @property
    def heads(self) -> int | None:
        return self._first.heads

    @cached_property
    def identity(self) -> dict[str, Any]:
        """As of one folder: the model is that of the first, the questions are those of all."""
        every = [one.identity for one in self.folders]
        if len(every) == 1:
            return every[0]
        named = [(one.get("questions") or {}).get("name") or one.get("store") for one in every]
        return {
            "store": " + ".join(str(one.get("store")) for one in every),
            "sha256": hash_text(*(str(one.get("sha256")) for one in every)),
            "model": every[0]["model"],
            "questions": {"name": " + ".join(map(str, named))},
        }

    @property
    def settings(self) -> dict[str, Any]:
        return self._first.settings

    def load_basis(self) -> Basis | None:
        return self._first.load_basis() if self.shares_basis else None

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        """See `AnswerFeatures.read`; the portions follow one another."""
        portions = self.splits[split] or (Portion(data=self._first, rows=np.zeros(0, np.int64)),)
        parts = [one.data.read_rows(field, one.rows, layer=layer) for one in portions]
        if field == SPECTRUM:  # captures of earlier versions have more eigenvalues
            depth = min(one.shape_of(field)[-1] for one in self.folders)
            parts = [part[..., :depth] for part in parts]
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        return [value for part in parts for value in part]

    def bytes_of(self, field: str) -> float:
        """The average over the folders, by their number of answers."""
        sizes = [len(one.index.rows) for one in self.folders]
        return float(np.average([one.bytes_of(field) for one in self.folders], weights=sizes))

    @property
    def _first(self) -> AnswerFeatures:
        return self.folders[0]

    def _in_common(self, what: str) -> frozenset[str]:
        common = frozenset.intersection(*(getattr(one, what) for one in self.folders))
        common -= {name for name in common & {*EVALUATION} if not self._have_one_shape(name)}
        return common if self.shares_basis else frozenset(n for n in common if not is_of_nodes(n))

    def _have_one_shape(self, field: str) -> bool:
        """Captures may have drawn different numbers of answers, or asked different questions."""
        return len({one.shape_of(field) for one in self.folders}) == 1

    def _join(self, name: str, change: Any = lambda values: values) -> dict[str, np.ndarray]:
        empty = getattr(self._first.index, name)[:0]
        return {
            split: change(np.concatenate([empty, *(getattr(one.index, name) for one in portions)]))
            for split, portions in self.splits.items()
        }


# Answers by field and split: of one folder, or of several.
AnswerData: TypeAlias = AnswerFeatures | MixedAnswers
Texts: TypeAlias = Sequence[str | None]


def _merge(portions: Sequence[Portion]) -> tuple[Portion, ...]:
    """Adjacent portions of one folder as one, so that it is opened once."""
    merged = []
    for _, some in groupby(portions, key=lambda one: id(one.data)):
        first, *others = some
        rows = np.concatenate([first.rows, *(one.rows for one in others)])
        merged.append(Portion(data=first.data, rows=rows))
    return tuple(merged)


def is_of_nodes(name: str) -> bool:
    """Whether a field or a kind of samples holds states in the basis of a capture."""
    return name == "graphs" or name.startswith("node_")


def share_basis(folders: Sequence[AnswerFeatures]) -> bool:
    """Whether nodes are comparable: all were projected with the same basis, which is known."""
    hashes = {one.basis_hash for one in folders}
    return len(folders) == 1 or (len(hashes) == 1 and None not in hashes)


@dataclass(frozen=True, kw_only=True)
class JoinedSamples:
    """Some samples of each of several sources, one source after the other. `rows` are places in
    the dataset of each source."""

    sources: tuple[SampleSource, ...]
    rows: tuple[Rows, ...]

    def open(self, *, access: Access | None, max_open: int) -> Samples:
        each = max(1, max_open // len(self.sources))
        if access is None:
            opened = [one.open(access="read", max_open=1) for one in self.sources]
            access = choose_access(sum(one.reader.bytes for one in opened), opened[0].reader.path)
        return join([one.open(access=access, max_open=each) for one in self.sources], self.rows)


def join(parts: Sequence[Samples], rows: Sequence[Rows]) -> Any:
    """Samples of the same kind as one. Raises InputError for arrays of different shapes."""
    first, index = parts[0], _join_index(parts, rows)
    reader = JoinedReader([one.reader for one in parts])
    if not isinstance(first, GraphSamples):
        return type(first)(reader, index)  # type: ignore[call-arg]
    beside = [getattr(one, "sequences", None) for one in parts]
    sequences = None if beside[0] is None else join([one for one in beside if one], rows)
    return GraphSamples(reader, index, sequences, flat=first.flat)


def _join_index(parts: Sequence[Samples], rows: Sequence[Rows]) -> SampleIndex:
    """The chosen samples of all parts; their rows count through the joined stores."""
    starts = np.cumsum([0, *(one.reader.rows for one in parts)])
    chosen = [one.index.at(some) for one, some in zip(parts, rows, strict=True)]
    joined = {
        name: np.concatenate([getattr(one, name) for one in chosen])
        for name in ("example_ids", "question_ids", "labels", "splits")
    }
    places = [one.rows + start for one, start in zip(chosen, starts, strict=False)]
    return SampleIndex(rows=np.concatenate(places), **joined)


def read_questions(
    fields: Collection[str], read: Callable[[str], Texts]
) -> tuple[Texts | None, Texts | None]:
    """The questions of some answers and, of given ones, what must not be split; None if they are
    not stored."""
    texts = read("question") if "question" in fields else None
    if GROUP not in fields:
        return texts, None
    named = read(GROUP)
    contexts = read(CONTEXT) if CONTEXT in fields else None
    return texts, name_groups(named, texts or [None] * len(named), contexts)


def number_groups(data: AnswerData, split: str) -> np.ndarray | None:
    """Numbers of what must not be split of given answers; None for generated ones."""
    texts, groups = read_questions(data.fields, lambda field: data.read(field, split))
    if groups is None:
        return None
    return group_questions([str(one) for one in data.question_ids[split]], texts, groups)
