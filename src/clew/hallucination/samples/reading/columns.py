"""What the columns of a sample store must be, whoever wrote it."""

from functools import cache, partial

import pyarrow as pa

from clew.hallucination.samples.making.config import Kind, SampleShape
from clew.hallucination.samples.making.rows import sample_schema
from clew.hallucination.samples.making.source import NUMBERS, TEXTS, SourceShape
from clew.hallucination.traces.schema import check_fields, item_sizes, shaped
from clew.storage import SchemaCheck

_BY_LAYER = ("sequence", "lookback", "log_diagonal_all", "laplacian_answer", "node_mean")


def check_samples(kind: Kind) -> SchemaCheck:
    """A check that raises ValueError if a shard does not have the columns of this kind: an id is
    missing, or a column has another type or shape than the sizes of the store require."""
    return partial(_check, kind)


def _check(kind: Kind, schema: pa.Schema) -> None:
    fields = {field.name: field for field in _fields(kind, *_read_sizes(kind, schema))}
    [width] = item_sizes(schema, "edge_attr", 1)
    if kind == "graphs" and width:  # converted graphs may have any number of features per edge
        attr = pa.list_(pa.list_(pa.float16(), width))
        fields["edge_attr"] = shaped("edge_attr", attr, "edges", width)
    check_fields(schema, fields.values())


def _read_sizes(kind: Kind, schema: pa.Schema) -> tuple[int, int, int, int]:
    """Layers, states, heads and features, from the columns that have them."""

    def first(axis: int, *names: str) -> int:
        sizes = (item_sizes(schema, name, 2)[axis] for name in names)
        return next(filter(None, sizes), 0)

    [features] = item_sizes(schema, "nodes", 1)
    if kind == "graphs":
        return item_sizes(schema, "node_counts", 1)[0], 1, 1, features
    if kind == "heads":
        return features, 1, 1, 1
    return (
        first(0, *_BY_LAYER, "state_mean"),
        first(1, "sequence", "state_mean"),
        first(1, "lookback", "log_diagonal_all", "laplacian_answer"),
        first(1, "node_mean", "node_max", "node_prompt"),
    )


@cache
def _fields(kind: Kind, layers: int, dim: int, heads: int, features: int) -> tuple[pa.Field, ...]:
    source = SourceShape(
        layers=layers,
        dim=dim,
        node_dim=features,
        edges_per_token=0,
        heads=heads,
        has_maps=False,
        extras=frozenset((*TEXTS, *NUMBERS)),
    )
    shape = SampleShape(source=source, features=features, top_k=0, attn_threshold=0)
    return tuple(sample_schema(kind, shape))
