"""Shards whose columns are not those of their kind of store are refused when they are opened."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import StoreError
from clew.datasets import Loader, PreprocessedGNNMapDataset, PreprocessedGridsMapDataset
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.source import KINDS
from clew.hallucination.traces.schema import (
    EvaluationShape,
    TraceShape,
    check_traces,
    trace_schema,
)
from clew.storage.manifest import Manifest
from clew.storage.reader import ShardReader
from tests.samples import write_samples
from tests.stores import edit_json_file, new_manifest

TRACES = replace(new_manifest(), kind="traces")
SIZES = TraceShape(layers=3, dim=8, heads=2, node_dim=4, edges_per_token=5)
EVALUATION = EvaluationShape(phrasings=3, layers=2, draws=4)
SCHEMA = trace_schema(SIZES, "full", evaluation=EVALUATION)


def other_types(kind: pa.DataType) -> list[pa.DataType]:
    inner = [kind.value_type] if isinstance(kind, pa.ListType | pa.FixedSizeListType) else []
    return [pa.int8(), pa.string(), pa.list_(kind), pa.list_(kind, 0), *inner]


def with_type(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    at = schema.get_field_index(name)
    return schema.set(at, schema.field(at).with_type(kind))


def assert_refuses_other_types(
    check: Callable[[pa.Schema, Manifest], object], schema: pa.Schema, manifest: Manifest
) -> None:
    check(schema, manifest)
    for field in schema:
        for kind in other_types(field.type):
            if kind != field.type:
                with pytest.raises(ValueError, match="with the (type|shape)"):
                    check(with_type(schema, field.name, kind), manifest)


def test_every_column_of_a_trace_has_its_type() -> None:
    assert_refuses_other_types(check_traces, SCHEMA, TRACES)


@pytest.mark.parametrize("shape", [b"", b"a", b"3,8,9", b"-1,tokens", b"\xff", b"9" * 30])
@pytest.mark.parametrize("name", ["nodes", "lookback", "attentions", "token_logprobs"])
def test_shape_of_a_trace_column_follows_from_its_sizes(name: str, shape: bytes) -> None:
    at = SCHEMA.get_field_index(name)
    with pytest.raises(ValueError, match=r"with the (type|shape)"):
        check_traces(SCHEMA.set(at, SCHEMA.field(at).with_metadata({b"shape": shape})), TRACES)


def test_sizes_in_the_manifest_are_those_of_the_columns() -> None:
    said = {**TRACES.settings, "shape": {"layers": 4}}
    with pytest.raises(ValueError, match="has layers=3, but the manifest says 4"):
        check_traces(SCHEMA, replace(TRACES, settings=said))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples") / "all"
    return write_samples(folder, shards=1, rows=12, answers=True, heads=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_a_sample_has_its_type(samples: Path, kind: str) -> None:
    schema = ShardReader(samples / kind / "batch_0000.arrow").schema
    assert_refuses_other_types(check_samples, schema, replace(TRACES, kind=kind))


def edit(folder: Path, column: str, change: Callable[[np.ndarray], None]) -> None:
    """Changes the values of a column of graphs/ in the file."""
    shard = folder / "graphs" / "batch_0000.arrow"
    reader = ShardReader(shard)
    base, values = reader.content.address, reader.read_column(column).chunk(0)
    while hasattr(values.type, "value_type"):
        values = values.flatten()
    changed = values.to_numpy().copy()
    change(changed)
    with shard.open("r+b") as file:
        file.seek(values.buffers()[1].address - base + values.offset * changed.itemsize)
        file.write(changed.tobytes())


@pytest.mark.parametrize("column", ["edge_source", "edge_target", "node_counts", "edge_counts"])
@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_graphs_whose_numbers_do_not_match_are_refused(
    tmp_path: Path, column: str, value: int
) -> None:
    folder = write_samples(tmp_path / "s", shards=1, rows=12, batch_rows=12)
    edit(folder, column, lambda values: values.__setitem__(0, value))
    with pytest.raises(StoreError, match=r"sample 0 of .* has .*clew preprocess"):
        next(iter(Loader(PreprocessedGNNMapDataset(folder, flat=True), 12)))
    if column == "node_counts":
        with pytest.raises(StoreError, match="is not a grid"):
            next(iter(Loader(PreprocessedGridsMapDataset(folder), 12)))


def test_store_that_claims_another_kind_is_refused(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "s", shards=1, rows=12, layers=3, answers=True)
    manifest = folder / "answers" / "manifest.json"
    edit_json_file(manifest, lambda text: text.replace('"kind": "answers"', '"kind": "graphs"'))
    with pytest.raises(StoreError, match="contains graphs, not answers"):
        AnswerFeatures(folder)
