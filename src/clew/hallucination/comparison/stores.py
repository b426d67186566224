"""The folders to compare on: opened, named, and rejected if nothing can be learned from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import InputError
from clew.hallucination.detectors.training.samples import Balance, hash_questions
from clew.hallucination.samples.reading.answers import AnswerFeatures
from clew.hallucination.samples.splits import group_questions
from clew.loading.splits import SPLIT_NAMES
from clew.storage import read_manifest
from clew.storage.hashing import hash_text

_HASH_LETTERS = 16


@dataclass(frozen=True, kw_only=True)
class Store:
    """One folder of `clew preprocess`; `name` is unique within a comparison."""

    name: str
    folder: Path
    data: AnswerFeatures

    def describe(self) -> dict[str, Any]:
        """Identifies the answers, their labels and splits, independent of their location."""
        counts = {name: asdict(balance) for name, balance in self.balance.items()}
        labels, ids = self.data.labels, self.data.question_ids
        questions = {name: (labels[name], ids[name]) for name in SPLIT_NAMES}
        return {"questions": hash_questions(questions), **counts}

    @property
    def balance(self) -> dict[str, Balance]:
        return {name: Balance.of(self.data.labels[name]) for name in SPLIT_NAMES}

    def hash_values(self, kinds: Sequence[str]) -> str:
        """A hash that changes with any value in these kinds of samples."""
        held = [kind for kind in sorted(set(kinds)) if kind in self.data.samples]
        # The folder may itself be a store of sequences.
        paths = [self.folder / kind for kind in held] or [self.folder]
        shards = [shard for path in paths for shard in read_manifest(path).shards]
        return hash_text(*held, *(shard.sha256 for shard in shards))[:_HASH_LETTERS]


@dataclass(frozen=True, eq=False)
class CommonFields:
    """The answers of a store with only some of their fields, so that a method with optional inputs
    sees no others."""

    data: AnswerFeatures
    fields: frozenset[str]

    @property
    def labels(self) -> dict[str, np.ndarray]:
        return self.data.labels

    @property
    def layers(self) -> int:
        return self.data.layers

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        return self.data.read(field, split, layer=layer)


def open_stores(folders: Sequence[Path]) -> dict[Path, Store]:
    """Open each folder once, however its path is written. Raises InputError for a folder that
    cannot be used, or whose samples come from another model than the first folder's."""
    unique = {folder.resolve(): folder for folder in reversed(folders)}
    paths = [folder for folder in dict.fromkeys(folders) if folder in unique.values()]
    stores = {
        folder.resolve(): Store(name=name, folder=folder, data=_open(folder))
        for folder, name in zip(paths, distinct_names(paths), strict=True)
    }
    first, *others = stores.values()
    for store in others:
        _refuse_other_model(first, store)
    return {folder: stores[folder.resolve()] for folder in folders}


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """As many trailing parts of every path as needed to make them unique."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == len(names):
            break
    return names


def find_shared(train: Store, test: Store) -> np.ndarray:
    """Which answers of the test split have a question that `train` is fitted or chosen on. Compared
    by the question's text if both have it (two sets may use the same ids), normalized as for
    splits; otherwise by its id.
    """
    if train is test:
        return np.zeros(len(test.data.labels["test"]), bool)
    field = "question" if all("question" in s.data.fields for s in (train, test)) else None
    known = [
        text for split in ("train", "validation") for text in _questions(train.data, split, field)
    ]
    every = [*known, *_questions(test.data, "test", field)]
    groups = group_questions(every, every if field else None)
    return np.isin(groups[len(known) :], groups[: len(known)])


def _questions(data: AnswerFeatures, split: str, field: str | None) -> list[str]:
    ids = [str(one) for one in data.question_ids[split]]
    if field is None:
        return ids
    texts = data.read(field, split)
    return [text or one for one, text in zip(ids, texts, strict=True)]


def _open(folder: Path) -> AnswerFeatures:
    if not folder.exists():
        raise InputError(
            f'there is no folder "{folder}": create it with "clew preprocess", or set '
            "`preprocessed_dir` to the folder of the samples."
        )
    return AnswerFeatures(folder)


def _refuse_other_model(first: Store, other: Store) -> None:
    ours, theirs = _describe_model(first.data), _describe_model(other.data)
    # The same weights under another path are the same model.
    name = "fingerprint" if ours["fingerprint"] and theirs["fingerprint"] else "id"
    different = [key for key in (name, "layers", "dim") if ours[key] != theirs[key]]
    if different:
        shown = list(dict.fromkeys(["id", *different]))
        raise InputError(
            f'"{first.folder}" and "{other.folder}" come from different models: '
            f"{_tell(ours, shown)} and {_tell(theirs, shown)}. A detector trained on one "
            "model's states does not apply to another model: use samples of the same model."
        )


def _describe_model(data: AnswerFeatures) -> dict[str, Any]:
    model = data.identity.get("model") or {}
    known = {name: model.get(name) for name in ("id", "fingerprint")}
    return {**known, "layers": data.layers, "dim": data.dim}


def _tell(model: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {model[name]}" for name in names)
