"""What the columns of a sample store must be, whoever wrote it."""

from functools import cache

import pyarrow as pa

from clew.base.texts import shortened
from clew.hallucination.samples.making.config import KINDS, Kind, SampleShape
from clew.hallucination.samples.making.rows import sample_schema
from clew.hallucination.samples.making.source import NUMBERS, TEXTS, TOKEN_LABELS, SourceShape
from clew.hallucination.traces.schema import (
    BY_HEAD,
    CONTRAST_TRUE,
    EvaluationShape,
    check_fields,
    check_sizes,
    evaluation_fields,
    id_fields,
    item_sizes,
    read_eigenvalues,
    read_evaluation,
    shaped,
)
from clew.storage import Manifest

_BY_LAYER = ("sequence", "lookback", "log_diagonal_all", "laplacian_answer", "node_mean")


def check_samples(schema: pa.Schema, manifest: Manifest) -> tuple[str, ...]:
    """Raises ValueError if a shard does not have the columns of its kind: an id is missing, or a
    column has another type or shape than the sizes of the store require. Returns the columns that
    have a value in every row."""
    kind = next((kind for kind in KINDS if kind == manifest.kind), None)
    if kind is None:
        raise ValueError(f"contains {shortened(manifest.kind)}, not samples")
    sizes = _read_sizes(kind, schema)
    if kind != "heads":
        check_sizes(dict(zip(("layers", "dim", "heads", "features"), sizes, strict=True)), manifest)
    others = read_eigenvalues(schema), read_evaluation(schema)
    fields = {field.name: field for field in _fields(kind, *sizes, *others)}
    [width] = item_sizes(schema, "edge_attr", 1)
    if kind == "graphs" and width:  # converted graphs may have any number of features per edge
        attr = pa.list_(pa.list_(pa.float16(), width))
        fields["edge_attr"] = shaped("edge_attr", attr, "edges", width)
    check_fields(schema, fields.values())
    return tuple(field.name for field in id_fields())


def _read_sizes(kind: Kind, schema: pa.Schema) -> tuple[int, int, int, int]:
    """Layers, states, heads and features, from the columns that have them."""

    def first(axis: int, *names: str) -> int:
        sizes = (item_sizes(schema, name, 2)[axis] for name in names)
        return next(filter(None, sizes), 0)

    [features] = item_sizes(schema, "nodes", 1)
    if kind == "graphs":
        return item_sizes(schema, "node_counts", 1)[0], 0, 0, features
    if kind == "heads":
        return features, 1, 1, 1
    return (
        first(0, *_BY_LAYER, "state_mean"),
        first(1, "sequence", "state_mean", CONTRAST_TRUE),
        first(1, "lookback", "log_diagonal_all", "laplacian_answer"),
        first(1, "node_mean", "node_max", "node_prompt"),
    )


def _names(evaluation: EvaluationShape, dim: int) -> list[str]:
    return [field.name for field in evaluation_fields(evaluation, dim)]


@cache
def _fields(
    kind: Kind,
    layers: int,
    dim: int,
    heads: int,
    features: int,
    eigenvalues: int,
    evaluation: EvaluationShape,
) -> tuple[pa.Field, ...]:
    source = SourceShape(
        layers=layers,
        dim=dim,
        node_dim=features,
        edges_per_token=0,
        heads=heads,
        has_maps=False,
        extras=frozenset((*TEXTS, *NUMBERS, *BY_HEAD, TOKEN_LABELS, *_names(evaluation, dim))),
        evaluation=evaluation,
        eigenvalues=eigenvalues,
    )
    shape = SampleShape(source=source, features=features, top_k=0, attn_threshold=0)
    return tuple(sample_schema(kind, shape))
