"""What samples are made from: traces, scores and settings, read and checked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.hallucination.labels import (
    Scores,
    SpanLabels,
    read_scores,
    read_span_labels,
    spans_beside,
)
from clew.hallucination.samples.making.answers import answer_fields
from clew.hallucination.samples.making.config import Kind, PreprocessConfig, SampleShape
from clew.hallucination.samples.making.graphs import HEAD_THRESHOLD
from clew.hallucination.samples.making.jobs import (
    ShardJob,
    plan_jobs,
)
from clew.hallucination.samples.making.labeled import (
    LabeledShard,
    label_shards,
)
from clew.hallucination.samples.making.source import NUMBERS, TOKEN_LABELS, TraceSource
from clew.hallucination.samples.making.store import SampleStore
from clew.hallucination.traces.schema import BY_HEAD, DIAGONALS, EIGENVALUES
from clew.storage.manifest import has_manifest
from clew.storage.mirror import open_folder


@dataclass(frozen=True, kw_only=True)
class SampleInput:
    """What samples are made from, checked; `notes` say what a user should know about it."""

    config: PreprocessConfig
    source: TraceSource
    spans: SpanLabels | None
    shape: SampleShape
    scores: Scores
    shards: Sequence[LabeledShard]
    notes: tuple[str, ...]

    def open_stores(self) -> list[SampleStore]:
        return _open_stores(self.config, self.source, self.shape, self.scores, self.spans)

    def plan(self, stores: Sequence[SampleStore]) -> list[ShardJob]:
        return plan_jobs(self.source, self.shards, self.shape, stores, self.spans)


def read_input(config: PreprocessConfig) -> SampleInput:
    source = TraceSource(
        open_folder(config.store, cache_dir=config.cache_dir, cache_size=config.cache_size)
    )
    spans = _read_spans(config, source)
    shape = choose_shape(config, source, with_spans=spans is not None)
    config = choose_kinds(config, shape)
    _refuse_store_as_out(config.out)
    scores = read_scores(
        config.scores_file, score_column=config.score_column, higher_is=config.higher_is
    )
    shards, notes = label_shards(
        source.read_tables(),
        scores,
        threshold=config.score_threshold,
        skip_unlabeled=config.skip_unlabeled,
        refused=config.refused,
    )
    lacking = (*_describe_unfinished(source), *_describe_lacking(config, source))
    return SampleInput(
        config=config,
        source=source,
        spans=spans,
        shape=shape,
        scores=scores,
        shards=shards,
        notes=(*scores.notes, *notes, *lacking),
    )


def _read_spans(config: PreprocessConfig, source: TraceSource) -> SpanLabels | None:
    """The span labels, if there are any. Raises InputError if tokens cannot be labeled by them."""
    beside = spans_beside(config.scores_file)
    path = config.spans_file or (beside if beside.exists() else None)
    if path is None:
        return None
    if not source.shape.has_token_ends:
        raise InputError(
            f'the traces of "{source.path}" do not say where tokens end in the text of the answer: '
            'run "clew extract" on questions with a column "answer_parts", or remove the file.',
            setting="spans_file",
            value=path,
        )
    return read_span_labels(path)


def choose_shape(
    config: PreprocessConfig, source: TraceSource, *, with_spans: bool = False
) -> SampleShape:
    """What goes into the samples; raises InputError if more is requested than is stored."""
    stored = source.shape
    if with_spans:
        stored = replace(stored, extras=stored.extras | {TOKEN_LABELS})
    if config.node_dim is not None and config.node_dim > stored.node_dim:
        raise InputError(
            f'"{source.path}" has only {stored.node_dim} values per node. Use at most '
            f'{stored.node_dim}, or run "clew extract" with a larger `node_dim`.',
            setting="node_dim",
            value=config.node_dim,
        )
    top_k = config.top_k or stored.edges_per_token
    if top_k > stored.edges_per_token and not stored.has_maps:
        raise InputError(
            f'"{source.path}" has only {stored.edges_per_token} edges per token. Use at most '
            f'{stored.edges_per_token}, or run "clew extract" with a larger `edges_per_token` '
            'or with `keep="full"`.',
            setting="top_k",
            value=top_k,
        )
    return SampleShape(
        source=stored,
        features=config.node_dim or stored.node_dim,
        top_k=top_k,
        attn_threshold=config.attn_threshold,
    )


def choose_kinds(config: PreprocessConfig, shape: SampleShape) -> PreprocessConfig:
    """The config without the kinds that the traces cannot provide; raises InputError if none
    remain."""
    kinds = tuple(filter(shape.can_make, config.kinds))
    if not kinds:
        raise InputError(
            f'"{config.store}" has no attention maps, so only sequences, graphs and answers can '
            "be created from it: omit one of `sequences=False`, `graphs=False` and "
            '`answers=False`, or run "clew extract" with `keep="full"`.'
        )
    return replace(config, kinds=kinds)


def _describe_lacking(config: PreprocessConfig, source: TraceSource) -> Iterator[str]:
    of_heads = BY_HEAD if EIGENVALUES in source.manifest.settings else DIAGONALS
    lacking = [name for name in (*NUMBERS, *of_heads) if name not in source.shape.extras]
    if "answers" in config.kinds and lacking:
        yield (
            f"not all traces of {source.path} have {' and '.join(lacking)}: the answers are "
            "created without the fields derived from these"
        )


def _describe_unfinished(source: TraceSource) -> Iterator[str]:
    planned, rows = source.manifest.planned_rows, source.manifest.rows
    if planned is not None and rows < planned:
        yield (
            f"{source.path} has {rows:,} of its {planned:,} planned traces: when it is "
            "complete, run the same command again to add the rest"
        )


def _refuse_store_as_out(out: Path) -> None:
    if has_manifest(out):
        raise InputError(
            f"this is a store. Choose a folder for the samples, for example "
            f'"{out.with_name("preprocessed_data")}".',
            setting="out",
            value=out,
        )


def _open_stores(
    config: PreprocessConfig,
    source: TraceSource,
    shape: SampleShape,
    scores: Scores,
    spans: SpanLabels | None,
) -> list[SampleStore]:
    told = {"file": scores.path.name, "sha256": scores.sha256}
    if spans is not None:
        told |= {"spans_file": spans.path.name, "spans_sha256": spans.sha256}
    settings = {
        "source": source.identity,
        "scores": told,
        "score_threshold": config.score_threshold,
        "attn_threshold": shape.attn_threshold,
        "top_k": shape.top_k,
        "node_dim": shape.features,
        "split": str(config.shares),
        "split_by": config.split_by,
        # Not where it is the default: folders of earlier versions do not have it.
        **({} if config.refused == "exclude" else {"refused": config.refused}),
        "shape": {
            "layers": shape.source.layers,
            "dim": shape.source.dim,
            "features": shape.features,
            "edge_features": 1,
        },
    }
    own: dict[Kind, dict[str, Any]] = {
        "answers": {"columns": [field.name for field in answer_fields(shape)]},
        "heads": {"head_threshold": HEAD_THRESHOLD},
    }
    size = source.manifest.rows_per_shard
    return [
        SampleStore(config.out / kind, kind, {**settings, **own.get(kind, {})}, size)
        for kind in config.kinds
    ]
