"""The folders to compare on: opened, named, and rejected if nothing can be learned from them; and
the stores put together from them, such as the union of several."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.method import Wrapped
from clew.hallucination.detectors.training.samples import (
    DataSource,
    MixedData,
    PreprocessedData,
    hash_questions,
)
from clew.hallucination.labels import normalize_answer
from clew.hallucination.samples.answers import AnswerFeatures, FieldMemory
from clew.hallucination.samples.mixed import (
    AnswerData,
    MixedAnswers,
    Portion,
    Texts,
    read_questions,
    share_basis,
)
from clew.hallucination.samples.splits import Balance
from clew.hallucination.traces.schema import GROUP
from clew.loading.splits import SPLIT_NAMES
from clew.storage.reading import hash_text

_HASH_LETTERS = 16
_MOST_SETS = 100


@dataclass(frozen=True, kw_only=True)
class Store:
    """One folder of `clew preprocess`, or answers of several under new splits; `name` is unique
    within a comparison."""

    name: str
    data: AnswerData

    @property
    def place(self) -> str:
        """Where the answers are, for messages."""
        return self.data.name

    @property
    def folders(self) -> tuple[AnswerFeatures, ...]:
        """The folders that the answers come from."""
        if isinstance(self.data, MixedAnswers):
            return self.data.folders
        assert isinstance(self.data, AnswerFeatures)
        return (self.data,)

    @property
    def fitted_folders(self) -> tuple[AnswerFeatures, ...]:
        """The folders with answers to train or choose on."""
        if not isinstance(self.data, MixedAnswers):
            return self.folders
        portions = (*self.data.splits["train"], *self.data.splits["validation"])
        return tuple(dict.fromkeys(one.data for one in portions))

    @property
    def source(self) -> DataSource:
        """The same answers as samples for networks."""
        if isinstance(self.data, MixedAnswers):
            return MixedData(answers=self.data)
        return PreprocessedData(folder=self.folders[0].folder)

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
        # A folder may itself be a store of sequences.
        hashes = [one.shard_hashes(kind) for one in self.folders for kind in held or ["sequences"]]
        return hash_text(*held, *(sha256 for some in hashes for sha256 in some))[:_HASH_LETTERS]


@dataclass(frozen=True, eq=False)
class CommonFields(Wrapped):
    """The answers of a store with only some of their fields, so that a method with optional inputs
    sees no others."""

    common: frozenset[str]

    @property
    def fields(self) -> frozenset[str]:
        return self.common

    @property
    def labels(self) -> dict[str, np.ndarray]:
        return self.data.labels

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        return self.data.read(field, split, layer=layer)


def open_stores(
    folders: Sequence[Path], names: Sequence[str] = (), memory: FieldMemory | None = None
) -> dict[Path, Store]:
    """Open each folder once, however its path is written. `names` are those of the folders, in
    their order; without them, a store has the name of its question set. Raises InputError for a
    folder that cannot be used, or whose samples come from another model than the first folder's."""
    unique = {folder.resolve(): folder for folder in reversed(folders)}
    paths = [folder for folder in dict.fromkeys(folders) if folder in unique.values()]
    opened = [_open(folder, memory) for folder in paths]
    for other in opened[1:]:
        _refuse_other_model(opened[0], other)
    named = zip(paths, _name_stores(opened, names), opened, strict=True)
    stores = {folder.resolve(): Store(name=name, data=data) for folder, name, data in named}
    return {folder: stores[folder.resolve()] for folder in folders}


def _name_stores(opened: Sequence[AnswerFeatures], names: Sequence[str]) -> list[str]:
    """The given names, those of the question sets if these are known and differ, or the paths."""
    if names:
        if len(names) != len(opened) or len(set(names)) < len(names):
            raise InputError(
                f"give {len(opened)} different names, one for each folder.",
                setting="name",
                value=", ".join(names),
            )
        return list(names)
    found = [_name_questions(data) for data in opened]
    # A single folder keeps its own name, by which earlier versions saved its scores.
    if len(opened) > 1 and all(found) and len(set(found)) == len(found):
        return found
    return distinct_names([data.folder for data in opened])


def _name_questions(data: AnswerFeatures) -> str:
    """The name of the question set, without the versions in parentheses that built-in sets have."""
    name = str((data.identity.get("questions") or {}).get("name") or "")
    return name.partition(" (")[0]


def split_by_set(store: Store) -> list[Store]:
    """The question sets of one store, as `questions="all"` captures them: the part of a question's
    id before the slash names its set. Raises InputError if there is only one."""
    [data] = store.folders
    names = np.array([str(one).partition("/")[0] for one in data.index.question_ids], dtype=object)
    found = list(dict.fromkeys(names.tolist()))
    if len(found) < 2 or len(found) > _MOST_SETS:
        raise InputError(
            f'the question ids of "{store.place}" name {len(found):,} question sets, but 2 to '
            f"{_MOST_SETS} are needed: use ids such as facts/capital-fr, or give one folder per "
            "set with `stores`.",
            setting="by_set",
            value=True,
        )
    return [Store(name=name, data=_select(data, name, names == name)) for name in found]


def _select(data: AnswerFeatures, name: str, chosen: np.ndarray) -> MixedAnswers:
    portions = {split: Portion.of(data, split).rows for split in SPLIT_NAMES}
    splits = {s: [Portion(data=data, rows=rows[chosen[rows]])] for s, rows in portions.items()}
    return MixedAnswers(f"{name} in {data.name}", splits)


def _portions(store: Store, split: str) -> tuple[Portion, ...]:
    if isinstance(store.data, MixedAnswers):
        return store.data.splits[split]
    return tuple(Portion.of(data, split) for data in store.folders)


def whole(store: Store) -> Store:
    """All answers of a store as its test split, for methods that were not trained on any."""
    every = [one for split in SPLIT_NAMES for one in _portions(store, split)]
    return Store(name=store.name, data=MixedAnswers(store.place, {"test": every}))


def union(name: str, stores: Sequence[Store]) -> Store:
    """The splits of several stores, each put together."""
    return Store(name=name, data=MixedAnswers(name, _put_together(stores)))


def leave_out(store: Store, others: Sequence[Store]) -> tuple[Store, int]:
    """The training and validation splits of the other stores, and as the test split all answers of
    `store` whose question is not among them; and how many that excludes."""
    rest = union(f"all but {store.name}", others)
    assert isinstance(rest.data, MixedAnswers)
    every = whole(store)
    shared = find_shared(rest, every)
    splits = {**rest.data.splits, "test": _without(_portions(every, "test"), shared)}
    return Store(name=store.name, data=MixedAnswers(rest.name, splits)), int(shared.sum())


def _put_together(stores: Sequence[Store]) -> dict[str, list[Portion]]:
    """The splits of several stores. A question that one of them has in its training split and
    another in a later one stays only in the training split: nothing is chosen or tested on it."""
    has_texts = all("question" in store.data.fields for store in stores)
    mixed: dict[str, list[Portion]] = {}
    known: set[str] = set()
    for split in SPLIT_NAMES:
        portions = mixed[split] = [one for store in stores for one in _portions(store, split)]
        if not has_texts:  # two sets may use the same ids
            continue
        asked = [key for one in portions for key in _keys_of(one)]
        mixed[split] = _without(portions, _are_in(known, asked))
        known |= {*asked}
    return mixed


def _without(portions: Sequence[Portion], excluded: np.ndarray) -> list[Portion]:
    """`excluded` has an entry for each answer of all portions, which follow one another."""
    ends = np.cumsum([len(one.rows) for one in portions])[:-1]
    parts = zip(portions, np.split(excluded, ends), strict=True)
    return [replace(one, rows=one.rows[~some]) for one, some in parts]


def tell_prompts(store: Store) -> list[str]:
    """A sentence if the folders of a store were captured with different prompts: a detector is for
    one."""
    prompts = [one.settings["capture"].get("prompt") for one in store.folders]
    other = next(
        (one for one, p in zip(store.folders, prompts, strict=True) if p != prompts[0]), None
    )
    if other is None:
        return []
    return [
        f'"{store.folders[0].name}" and "{other.name}" were captured with different prompts: the '
        "detector is for that of the first"
    ]


def have_one_basis(stores: Sequence[Store]) -> bool:
    """Whether the nodes of all stores are comparable."""
    return share_basis(tuple(dict.fromkeys(one for store in stores for one in store.folders)))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The last part of every path in which all differ; or as many trailing parts as needed to make
    them unique."""
    parts = [folder.absolute().parts for folder in folders]
    lengths = range(1, max(map(len, parts)) + 1)
    single = ([path[-min(length, len(path))] for path in parts] for length in lengths)
    several = (["/".join(path[-length:]) for path in parts] for length in lengths)
    return next(names for names in (*single, *several) if len(set(names)) == len(names))


def find_shared(train: Store, test: Store) -> np.ndarray:
    """Which answers of the test split have a question that `train` is fitted or chosen on. Compared
    by the question's text if both have it (two sets may use the same ids), normalized as for
    splits; otherwise by its id.
    """
    if train is test:
        return np.zeros(len(test.data.labels["test"]), bool)
    by_text = all("question" in store.data.fields for store in (train, test))
    known = {
        key
        for split in ("train", "validation")
        for key in _keys(train.data, split, by_text=by_text)
    }
    return _are_in(known, _keys(test.data, "test", by_text=by_text))


def _are_in(known: Collection[str], asked: Sequence[str]) -> np.ndarray:
    return np.array([key in known for key in asked], bool)


def _keys(data: AnswerData, split: str, *, by_text: bool) -> list[str]:
    """What two answers to the same question share: the name of their group, its normalized text or
    its id."""
    ids = data.question_ids[split]
    if not by_text:
        return [str(one) for one in ids]
    return _make_keys(ids, *read_questions(data.fields, lambda field: data.read(field, split)))


def _keys_of(portion: Portion) -> list[str]:
    data, rows = portion.data, portion.rows
    asked = read_questions(data.fields, lambda field: data.read_rows(field, rows))
    return _make_keys(portion.index.question_ids, *asked)


def _make_keys(ids: np.ndarray, texts: Texts | None, groups: Texts | None) -> list[str]:
    rows = zip(ids, texts or [None] * len(ids), groups or [None] * len(ids), strict=True)
    return [
        f"{GROUP} {group}" if group else normalize_answer(text or "") or text or str(one)
        for one, text, group in rows
    ]


def _open(folder: Path, memory: FieldMemory | None) -> AnswerFeatures:
    if not folder.exists():
        raise InputError(
            f'there is no folder "{folder}": create it with "clew preprocess", or set '
            "`preprocessed_dir` to the folder of the samples."
        )
    return AnswerFeatures(folder, memory=memory)


def _refuse_other_model(first: AnswerFeatures, other: AnswerFeatures) -> None:
    ours, theirs = _describe_model(first), _describe_model(other)
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
