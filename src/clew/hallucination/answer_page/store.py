"""The traces that are shown: finds the store that samples were made from, an answer by its number
or its question's id, and its label; chooses which two answers to show side by side."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int64
from rapidfuzz import fuzz, process

from clew.base.errors import Call, InputError, StoreError
from clew.base.texts import counted
from clew.hallucination.labels import read_scores, refuse_other_answers, require_scores
from clew.hallucination.traces import Trace, TraceBatchLoader
from clew.hallucination.traces.schema import check_traces
from clew.storage.manifest import MANIFEST_NAME, read_manifest
from clew.storage.reader import ShardReader, StoreReader
from clew.storage.reading import hash_file

_NAMED = 5
_SAMPLE_FOLDERS = ("sequences", "graphs", "answers", "heads")
Kind = Literal["correct", "hallucinated"]


def open_traces(path: Path) -> TraceBatchLoader:
    """Open the traces of a folder. If it holds something else, raises an InputError or StoreError
    that says where the traces are."""
    if not (path / MANIFEST_NAME).exists() and path.is_dir():
        _refuse_folder_of_stores(path)
    kind = read_manifest(path).kind
    if kind != "traces":
        raise InputError(f'"{path}" contains {kind}, not traces: {_where_traces_are(path)}')
    loader = TraceBatchLoader(path)
    if not loader.total_traces:
        raise InputError(f'"{path}" has no traces yet: let "clew extract" finish a shard first.')
    return loader


def find_answer(loader: TraceBatchLoader, wanted: str, setting: str = "id") -> Trace:
    """The trace with this global_example_id, or else with this question_id. `setting` is the
    setting that named it."""
    if re.fullmatch(r"[0-9]{1,18}", wanted):
        trace = loader.get_trace_by_global_id(int(wanted))
        if trace is not None:
            return trace
    numbers = _numbers_of_question(loader, wanted)
    if len(numbers) > 1:
        some = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
        raise InputError(
            f"the question has {len(numbers):,} answers. Give the ID of one of them ({some}).",
            setting=setting,
            value=wanted,
        )
    if not numbers:
        raise InputError(_explain_unknown(loader), setting=setting, value=wanted)
    found = loader.get_trace_by_global_id(numbers[0])
    if found is None:
        raise StoreError(
            f"answer {numbers[0]} is not at the position recorded in the store: check the store "
            "with ",
            Call("clew.verify", (f"{loader.traces_dir}",)),
            ".",
        )
    return found


def iter_shards(loader: TraceBatchLoader) -> Iterator[ShardReader]:
    """The shards of the store in order, for reading a few columns of them."""
    store = StoreReader(loader.traces_dir, check=check_traces)
    for index in range(len(store.shards)):
        yield store.peek(index)


def _numbers_of_question(loader: TraceBatchLoader, question_id: str) -> list[int]:
    found = []
    for shard in iter_shards(loader):
        names = shard.read_column("question_id").to_pylist()
        numbers = shard.read_column("global_example_id").to_pylist()
        found += [n for n, name in zip(numbers, names, strict=True) if name == question_id]
    return sorted(found)


def _explain_unknown(loader: TraceBatchLoader) -> str:
    ids = [
        int(i) for s in iter_shards(loader) for i in s.read_column("global_example_id").to_numpy()
    ]
    first_question = loader.get_batch(0)[0]["question_id"]
    gaps = "" if max(ids) - min(ids) + 1 == len(ids) else f" ({len(ids):,} answers, with gaps)"
    return (
        f'there is no such answer in "{loader.traces_dir}". Its answers are numbered from '
        f"{min(ids)} to {max(ids)}{gaps}; its question IDs look like {first_question!r:.60}."
    )


def _refuse_folder_of_stores(path: Path) -> None:
    if any((path / name / MANIFEST_NAME).exists() for name in _SAMPLE_FOLDERS):
        raise InputError(
            f'"{path}" contains training samples, not traces: {_where_traces_are(path)}'
        )
    traces = _trace_stores_in(path)
    if traces:
        raise InputError(f'"{path}" is not a store, but contains one: use "{traces[0]}".')


def _where_traces_are(path: Path) -> str:
    """Which folder to give instead: one nearby, or at least the name stored with the samples."""
    name = _text(_sample_settings(path).get("source"), "store")
    found = [store for folder in _near(path) for store in _trace_stores_in(folder)]
    found.sort(key=lambda store: store.name != name)
    if found and (name is None or found[0].name == name):
        return f'give the folder with the traces, "{found[0]}".'
    made_from = f' (the samples were made from "{name}")' if name else ""
    return f'give the store that "clew extract" or "clew convert" wrote{made_from}.'


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All answers of a store by number, each with its label's score (NaN: none) and question."""

    numbers: Int64[np.ndarray, " answers"]
    scores: Float32[np.ndarray, " answers"]
    questions: list[str]
    categories: list[str | None]
    threshold: float
    notes: tuple[str, ...]

    @property
    def hallucinated(self) -> np.ndarray:
        # Both in float32, as `clew preprocess` compares them: 0.7 is not below 0.7.
        return self.scores < np.float32(self.threshold)

    @property
    def correct(self) -> np.ndarray:
        return self.scores >= np.float32(self.threshold)

    def of(self, number: int) -> tuple[Kind | None, float | None]:
        """The label and the score of one answer, None where the file has no score for it."""
        place = self._place(number)
        score = float(self.scores[place])
        if np.isnan(score):
            return None, None
        return ("hallucinated" if self.hallucinated[place] else "correct"), score

    def numbers_of(self, kind: Kind) -> Int64[np.ndarray, " answers"]:
        return self.numbers[self.hallucinated if kind == "hallucinated" else self.correct]

    def find_counterpart(self, number: int) -> int | None:
        """The answer with the other label whose question is most similar: of the same category if
        there is one, then by wording. None if no answer has the other label."""
        kind, _ = self.of(number)
        if kind is None:
            return None
        place = self._place(number)
        others = np.flatnonzero(self.correct if kind == "hallucinated" else self.hallucinated)
        same = [at for at in others.tolist() if self.categories[at] == self.categories[place]]
        candidates = same or others.tolist()
        if not candidates:
            return None
        texts = [self.questions[at] for at in candidates]
        best = process.extractOne(self.questions[place], texts, scorer=fuzz.ratio)
        return int(self.numbers[candidates[best[2]]])

    def _place(self, number: int) -> int:
        return int(np.flatnonzero(self.numbers == number)[0])


def judge_answers(loader: TraceBatchLoader, scores_file: Path, threshold: float) -> Judged:
    """Join a store with its scores file; raises InputError when they do not belong together."""
    if not 0 < threshold <= 1:
        raise InputError(
            "it must be greater than 0 and at most 1. Scores range from 0 (hallucinated) to 1 "
            "(correct); 0.5 is typical.",
            setting="score_threshold",
            value=threshold,
        )
    scores = read_scores(scores_file)
    names = ("global_example_id", "question_id", "answer", "question", "category")
    numbers, question_ids, answers, questions, categories = _read_columns(loader, names)
    refuse_other_answers(scores, question_ids, numbers, answers)
    matched = require_scores(scores, question_ids, numbers, allow_missing=True)
    missing = int(matched.missing.sum())
    without = (f"{missing:,} of {len(numbers):,} answers have no score in {scores_file}",)
    refused = int(matched.refused.sum())
    declined = (f"{counted(refused, 'answer')} in {scores_file} were refused: they have no label",)
    return Judged(
        numbers=np.array(numbers, np.int64),
        scores=matched.values,
        questions=[text or "" for text in questions],
        categories=categories,
        threshold=threshold,
        notes=(
            *(*scores.notes, *matched.notes),
            *(without if missing else ()),
            *(declined if refused else ()),
        ),
    )


def _read_columns(loader: TraceBatchLoader, names: Sequence[str]) -> list[list]:
    columns: list[list] = [[] for _ in names]
    for shard in iter_shards(loader):
        for column, name in zip(columns, names, strict=True):
            column += shard.read_column(name).to_pylist()
    return columns


def find_traces(samples: Path) -> Path | None:
    """The store of traces nearby that holds every shard the samples were made from."""
    sources = _sample_settings(samples).get("sources")
    if not isinstance(sources, list) or not sources:
        return None
    wanted = {source.get("sha256") for source in sources if isinstance(source, dict)}
    found = (store for folder in _near(samples) for store in _trace_stores_in(folder))
    hashes = ((store, {one.sha256 for one in read_manifest(store).shards}) for store in found)
    return next((store for store, held in hashes if wanted <= held), None)


def find_scores(samples: Path) -> Path | None:
    """The scores file nearby that the samples were labeled with."""
    scores = _sample_settings(samples).get("scores")
    name, wanted = (_text(scores, key) for key in ("file", "sha256"))
    if name is None or wanted is None:
        return None
    paths = (folder / Path(name).name for folder in _near(samples))
    return next((path for path in paths if path.is_file() and hash_file(path) == wanted), None)


def _near(path: Path) -> list[Path]:
    return [path, path.absolute().parent, path.absolute().parent.parent]


def _trace_stores_in(folder: Path) -> list[Path]:
    found = []
    for manifest in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        try:
            if read_manifest(manifest.parent).kind == "traces":
                found.append(manifest.parent)
        except StoreError:
            continue  # not a store, or a damaged one
    return found


def _sample_settings(samples: Path) -> dict[str, Any]:
    for folder in (samples, *(samples / name for name in _SAMPLE_FOLDERS)):
        if (folder / MANIFEST_NAME).exists():
            return dict(read_manifest(folder).settings)
    return {}


def _text(value: Any, key: str) -> str | None:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None
