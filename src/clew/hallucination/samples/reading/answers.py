"""What is known of every answer, field by field and split by split, for methods that are fitted."""

from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import InputError
from clew.hallucination.samples.reading.fields import StoredFields
from clew.hallucination.samples.reading.index import find_store, read_index
from clew.hallucination.traces.schema import id_fields
from clew.loading.samples import SampleIndex
from clew.loading.splits import SPLIT_NAMES
from clew.storage import read_manifest
from clew.storage.manifest import MANIFEST_NAME

SEQUENCE = "sequence"
_KINDS = ("sequences", "graphs", "answers", "heads")
_NOT_FIELDS = {*(field.name for field in id_fields()), "label", "score"}
_BY_LAYER = (SEQUENCE, "state_mean", "lookback", "log_diagonal_all", "node_mean")
_BY_HEAD = ("lookback", "log_diagonal_all", "laplacian_answer")


class AnswerFeatures:
    """The answers of a folder that `clew preprocess` wrote.

    `fields` are the names that can be read: the columns of answers/, and "sequence" (the last
    token's states, `[layers, dim]`) where there are sequences/; `samples` are the kinds of samples
    that the folder holds. `labels` (1 is made up), `question_ids` and `ids` (`global_example_id`)
    have an array a split. The rows of a split come in the same order in every field: that of the
    data sets by place. Raises InputError for a folder without answers and sequences, StoreError
    for one that is not whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        held = [kind for kind in _KINDS if (self.folder / kind / MANIFEST_NAME).exists()]
        self.samples = frozenset(held)
        paths = {k: find_store(self.folder, k) for k in self._choose_stores()}
        self.samples |= {*paths}
        indices = {kind: read_index(path, kind) for kind, path in paths.items()}
        self._stores = {kind: StoredFields(path, indices[kind]) for kind, path in paths.items()}
        self._settings = next(iter(self._stores.values())).store.manifest.settings
        self.fields = self._list_fields()
        index = next(iter(indices.values()))
        self._parts = {name: index.select(name) for name in SPLIT_NAMES}
        self._count = len(index.rows)
        self.labels = {name: (p.labels > 0.5).astype(np.int8) for name, p in self._parts.items()}
        self.question_ids = {name: part.question_ids for name, part in self._parts.items()}
        self.ids = {name: part.example_ids for name, part in self._parts.items()}

    @property
    def layers(self) -> int:
        return self._size(0, _BY_LAYER) or int(self._settings["shape"]["layers"])

    @property
    def dim(self) -> int:
        """The width of the states."""
        return self._size(1, (SEQUENCE, "state_mean")) or int(self._settings["shape"]["dim"])

    @property
    def heads(self) -> int | None:
        """None where nothing is stored by head."""
        return self._size(1, _BY_HEAD)

    @property
    def identity(self) -> dict[str, Any]:
        """`store` and `sha256` (of how its traces were made), `model` (a dict, its `id` at least)
        and `questions`: what tells the answers of one model from another's. None: not known."""
        source = self._source
        capture = source.get("capture") or {}
        known = {name: source.get(name) for name in ("store", "sha256")}
        model = capture.get("model") or {"id": source.get("model")}
        return {**known, "model": model, "questions": capture.get("questions")}

    @property
    def settings(self) -> dict[str, Any]:
        """`capture`: how the traces were made, as far as it is known; `preprocess`: the samples."""
        not_said = ("command", "source", "sources")
        made = {name: value for name, value in self._settings.items() if name not in not_said}
        return {"capture": self._source.get("capture") or {}, "preprocess": made}

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        """The values of a split: numbers as float32 `[rows, ...]`, of `[rows, layers, ...]` only
        the `layer` that is given; ragged numbers as a list of float32 arrays; text as a list of
        texts (or of lists of texts), None where there is none. Raises InputError for a field that
        is not there."""
        return self._store_of(field).read(field, self._part(split).rows, layer)

    def bytes_of(self, field: str) -> float:
        """Stored bytes an answer, on average; also of samples ("graphs", "heads")."""
        if field in self.samples:
            manifest = read_manifest(self.folder / field)
            return manifest.bytes / max(1, manifest.rows)
        return self._store_of(field).count_bytes(field) / max(1, self._count)

    def _choose_stores(self) -> list[str]:
        """The stores to read fields from; a store of sequences may also be given by itself."""
        found: list[str] = [k for k in ("sequences", "answers") if k in self.samples]
        if found or (self.folder / MANIFEST_NAME).exists():
            return found or ["sequences"]
        raise InputError(
            f'"{self.folder}" holds neither answers nor sequences: give a folder that '
            f'"clew preprocess" wrote.'
        )

    def _list_fields(self) -> frozenset[str]:
        names = {SEQUENCE} if "sequences" in self._stores else set()
        answers = self._stores["answers"].names if "answers" in self._stores else []
        return frozenset(names | {*answers} - _NOT_FIELDS)

    def _part(self, split: str) -> SampleIndex:
        if split not in self._parts:
            raise InputError(f'split is "{split}": choose one of {", ".join(SPLIT_NAMES)}.')
        return self._parts[split]

    def _store_of(self, field: str) -> StoredFields:
        if field not in self.fields:
            raise InputError(
                f'"{self.folder}" has no "{field}" of its answers, only '
                f'{", ".join(sorted(self.fields))}: run the same "clew preprocess" again, it adds '
                f"what the traces have."
            )
        return self._stores["sequences" if field == SEQUENCE else "answers"]

    def _size(self, axis: int, fields: tuple[str, ...]) -> int | None:
        """How long the axis of the first of the fields is that is there."""
        known = (self._store_of(name).shape_of(name) for name in fields if name in self.fields)
        return next((shape[axis] for shape in known), None)

    @property
    def _source(self) -> dict[str, Any]:
        source = self._settings.get("source")
        return source if isinstance(source, dict) else {}
