"""The store of features: one row per photo and view, found again by the photo's digest."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from clew.patterns.cache.rows import ID, RowStore
from clew.patterns.features.frozen import Form
from clew.patterns.networks.lite0 import FEATURES, STAGE_CHANNELS
from clew.patterns.networks.pretrained import LITE0_DIGEST
from clew.storage import StoreReader, read_manifest
from clew.storage.manifest import has_manifest

KIND = "features"
STAGES = sum(STAGE_CHANNELS[:-1])
_ADVICE = "Free some space and run the same command again."
_ROW_BYTES = 4 * (FEATURES + STAGES)
# Changes when features are computed differently: old ones would not match new ones.
_METHOD = "pooled stages, views 1"

Key = tuple[str, int]


def feature_schema() -> pa.Schema:
    values = {"embedding": FEATURES, "stages": STAGES}
    columns = {ID: pa.int64(), "digest": pa.string(), "view": pa.int32()}
    columns |= {name: pa.list_(pa.float32(), width) for name, width in values.items()}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


class FeatureStore(RowStore):
    """The store of one size. All of its rows were computed by the network in one `form`, since
    forms differ in the last bits."""

    def __init__(self, path: Path, *, size: int, flip: bool, form: Form) -> None:
        super().__init__(
            path,
            feature_schema(),
            kind=KIND,
            identity={
                "size": size,
                "flip": flip,
                "form": form,
                "weights": LITE0_DIGEST,
                "method": _METHOD,
            },
            row_bytes=_ROW_BYTES,
            work="computed the features",
            advice=_ADVICE,
        )

    def keys(self) -> list[Key]:
        """Digest and view of every row."""
        if not self.exists():
            return []
        reader = self._open()
        return [key for number in range(len(reader.shards)) for key in _read_keys(reader, number)]

    def read(self, keys: Sequence[Key]) -> tuple[np.ndarray, np.ndarray]:
        """The embeddings `[keys, 1280]` and stages `[keys, 496]` of these rows."""
        places = {key: place for place, key in enumerate(keys)}
        embedding = np.empty((len(keys), FEATURES), np.float32)
        stages = np.empty((len(keys), STAGES), np.float32)
        reader = self._open()
        for number in range(len(reader.shards)):
            found = [places.get(key, -1) for key in _read_keys(reader, number)]
            rows = np.flatnonzero(np.array(found, np.int64) >= 0)
            into = np.array(found, np.int64)[rows]
            for name, out in (("embedding", embedding), ("stages", stages)):
                out[into] = _read_values(reader, number, name, out.shape[1])[rows]
        return embedding, stages

    def _open(self) -> StoreReader:
        self.refuse_other(read_manifest(self.path))
        return StoreReader(self.path, max_open=1)


def find_form(path: Path) -> str | None:
    """The form that the rows of a store were computed in; None if there is none yet."""
    return read_manifest(path).settings.get("form") if has_manifest(path) else None


def build_rows(
    keys: Sequence[Key],
    first_id: int,
    embedding: Float32[np.ndarray, "rows 1280"],
    stages: Float32[np.ndarray, "rows 496"],
) -> pa.RecordBatch:
    schema = feature_schema()
    columns = [
        pa.array(np.arange(first_id, first_id + len(keys))),
        pa.array([digest for digest, _ in keys], pa.string()),
        pa.array([view for _, view in keys], pa.int32()),
        *(_as_lists(values) for values in (embedding, stages)),
    ]
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _as_lists(values: Float32[np.ndarray, "rows width"]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _read_keys(reader: StoreReader, number: int) -> list[Key]:
    read = reader.shard(number).read_column
    return list(zip(read("digest").to_pylist(), read("view").to_pylist(), strict=True))


def _read_values(
    reader: StoreReader, number: int, name: str, width: int
) -> Float32[np.ndarray, "rows width"]:
    chunks = reader.shard(number).read_column(name).chunks
    flat = [chunk.flatten().to_numpy() for chunk in chunks]
    return np.concatenate([np.zeros(0, np.float32), *flat]).reshape(-1, width)
