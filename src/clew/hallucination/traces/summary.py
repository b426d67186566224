"""A store's contents, from its manifest and its small columns; the large ones are not read."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.texts import bytes_text, counted
from clew.hallucination.traces.schema import CONTEXT, check_traces
from clew.storage.reader import StoreReader

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Minimum, median, mean and maximum of a count."""

    min: int
    median: float
    mean: float
    max: int

    @classmethod
    def of(cls, values: np.ndarray) -> "Spread":
        return cls(
            min=int(values.min()),
            median=float(np.median(values)),
            mean=float(values.mean()),
            max=int(values.max()),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class StoreSummary:
    """Totals, one row per batch, statistics, examples and settings of a store."""

    path: str
    kind: str
    rows: int
    planned_rows: int | None
    bytes: int
    bytes_per_row: float
    batches: list[dict[str, Any]]
    columns: dict[str, str]
    settings: dict[str, Any]
    skipped: list[dict[str, Any]]
    notes: list[str]
    clew_version: str
    tokens: Spread | None = None
    answer_tokens: Spread | None = None
    stop_reasons: dict[str, int] | None = None
    empty_answers: int | None = None
    examples: list[dict[str, Any]] | None = None
    compared: Any = None  # the `PickleComparison`, if one was asked for

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        shards = counted(len(self.batches), "shard")
        size = f"{self.rows:,} {self.kind} in {shards}, {bytes_text(self.bytes)}"
        return f"StoreSummary({size}; {self.path})"


def summarize_store(path: str | Path) -> StoreSummary:
    """Summarize a store; raises StoreError if it is not one."""
    store = StoreReader(path)
    manifest = store.manifest
    extra = _summarize_traces(store.path) if manifest.kind == "traces" and store.shards else {}
    return StoreSummary(
        path=f"{path}",
        kind=manifest.kind,
        rows=manifest.rows,
        planned_rows=manifest.planned_rows,
        bytes=manifest.bytes,
        bytes_per_row=manifest.bytes / manifest.rows if manifest.rows else 0.0,
        batches=[asdict(shard) for shard in store.shards],
        columns=_columns(store),
        settings=manifest.settings,
        skipped=list(manifest.skipped),
        notes=list(manifest.notes),
        clew_version=manifest.clew_version,
        **extra,
    )


def _columns(store: StoreReader) -> dict[str, str]:
    if not store.shards:
        return {}
    return {field.name: str(field.type) for field in store.shard(0).schema}


def _summarize_traces(path: Path) -> dict[str, Any]:
    store = StoreReader(path, check=check_traces)
    tokens, answers, reasons, texts = [], [], [], []
    for index in range(len(store.shards)):
        shard = store.shard(index)
        for column in shard.read_column("tokens").chunks:
            tokens.append(column.value_lengths().to_numpy())
        for column in shard.read_column("prompt_length").chunks:
            answers.append(column.fill_null(0).to_numpy(zero_copy_only=False))
        reasons += shard.read_column("stop_reason").to_pylist()
        texts += shard.read_column("answer").to_pylist()
    counts = np.concatenate(tokens)
    known = [reason for reason in reasons if reason is not None]
    return {
        "tokens": Spread.of(counts),
        "answer_tokens": Spread.of(counts - np.concatenate(answers)),
        "stop_reasons": {reason: known.count(reason) for reason in sorted(set(known))},
        "empty_answers": sum(not text for text in texts),
        "examples": _examples(store),
    }


def _examples(store: StoreReader) -> list[dict[str, Any]]:
    """A few answers, spread over the store."""
    from clew.hallucination.traces.loader import TraceBatchLoader

    loader = TraceBatchLoader(store.path)
    # By position, not by id: batches that another part has not written yet leave gaps in the ids.
    starts = np.cumsum([0, *(shard.rows for shard in store.shards)])
    places = np.linspace(0, starts[-1] - 1, min(_EXAMPLES, starts[-1])).round().astype(int)
    batches = np.searchsorted(starts, places, side="right") - 1
    traces = [
        loader.get_batch(batch)[place - starts[batch]]
        for batch, place in zip(batches, places, strict=True)
    ]
    names = ["global_example_id", "question_id", "question", "answer", "accepted_answers"]
    names += [CONTEXT] if any(CONTEXT in trace for trace in traces) else []
    return [{name: trace[name] for name in names} for trace in traces]
