"""One sample store being written: started or resumed, shard by shard."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int

from clew.base.errors import SettingsMismatchError, StoreError
from clew.base.typed_json import Count, read_as
from clew.base.urls import UrlPath
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.source import Kind, ShardTable
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    changing_manifest,
    has_manifest,
    read_manifest,
    refuse_other_settings,
    update_manifest,
    write_manifest,
)
from clew.storage.origin import describe_in_schema
from clew.storage.places import open_place
from clew.storage.reader import ShardReader, open_shard
from clew.storage.uploading import open_writer
from clew.storage.working_copy import fetched
from clew.storage.writer import ShardWriter
from clew.version import __version__

COMMAND = "preprocess"
# What may differ when a store is resumed: it grows, and so does the scores file; a moved trace
# store is still the same.
_MAY_DIFFER = ("sources", "scores.", "source.")


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """The contents of a finished sample shard."""

    global_example_id: Int[np.ndarray, " rows"]
    question_id: list[str]
    label: Float32[np.ndarray, " rows"]
    score: Float32[np.ndarray, " rows"]


class SampleStore:
    """A store of one kind of samples; every shard is built from the trace shard with its number."""

    def __init__(
        self, path: Path, kind: Kind, settings: Mapping[str, Any], rows_per_shard: int
    ) -> None:
        """Open the store, or prepare a new one. Raises SettingsMismatchError, with both values, if
        it was started with different settings."""
        self.path, self.kind = path, kind
        wanted = {"command": COMMAND, **settings, "sources": []}
        if not has_manifest(path):
            _refuse_foreign_folder(path)
            manifest = Manifest(
                kind=kind,
                settings=wanted,
                rows_per_shard=rows_per_shard,
                planned_rows=None,
                clew_version=__version__,
            )
        else:
            manifest = read_manifest(path)
            _refuse_other_settings(path, manifest, kind, wanted)
            _check_skips(path, manifest)
            settings = {**wanted, "sources": manifest.settings.get("sources", [])}
            manifest = replace(manifest, settings=settings)
        self.manifest = manifest
        self._entering = threading.Lock()
        self._made: dict[int, StoredRows] = {}

    def begin(self) -> None:
        """Create the store on disk, with the settings of this run."""
        write_manifest(self.path, self.manifest)

    def reload(self) -> None:
        """Read what other processes have written."""
        self.manifest = read_manifest(self.path)

    def numbers(self) -> list[int]:
        """The finished batches, including those without a usable row."""
        return list(self.manifest.sources)

    def stored_rows(self, batch_number: int) -> StoredRows:
        """The rows of a finished shard; empty if it does not exist."""
        if batch_number in self._made:
            return self._made[batch_number]
        shard = self.manifest.shard(batch_number)
        if shard is None:
            return _read_rows(None)
        with fetched(self.path, shard.file) as file:
            if not file.exists():
                return _read_rows(None)
            return _read_rows(open_shard(file.parent, shard, self.manifest, check_samples))

    def spans_digest(self, batch_number: int) -> str | None:
        """That of the span labels which the shard was made with; None if it has none."""
        return self.manifest.sources.get(batch_number, {}).get("spans")

    def unusable_rows(self, file: str) -> list[int]:
        """The unusable rows of a trace shard, by position."""
        entries = [skip for skip in self.manifest.skipped if skip["file"] == file]
        return [skip["record"] for skip in entries if not is_unlabeled(skip)]

    def has(self, table: ShardTable, labeled: Sequence[int]) -> bool:
        """Whether the shard was built from these traces and contains all that have a score."""
        entry = table.entry
        source = self.manifest.sources.get(entry.batch_number, {})
        if source.get("sha256") != entry.sha256:
            return False
        ids = table.global_example_id
        stored = self.stored_rows(entry.batch_number).global_example_id.tolist()
        rows = [row for row in self.unusable_rows(entry.file) if row < len(ids)]
        unusable = ids[rows].tolist()
        return sorted([*stored, *unusable]) == sorted(ids[list(labeled)].tolist())

    def begin_shard(self, schema: pa.Schema, entry: ShardEntry) -> ShardWriter:
        """A writer for the shard. What an interrupted run left is dropped: writing it again takes
        as long as checking and copying it, and produces the same file."""
        settings = {**self.manifest.settings, "sources": [_origin(entry)]}
        described = describe_in_schema(schema, replace(self.manifest, settings=settings))
        return open_writer(
            self.path,
            entry.batch_number,
            described,
            id_column="global_example_id",
            start_over=True,
        )

    def finish_shard(self, writer: ShardWriter) -> ShardEntry:
        """Close a shard, and remember its rows: at a URL they would have to be fetched again.
        Raises StoreError if another worker has taken it over."""
        entry = writer.complete()
        self._made[entry.batch_number] = _read_rows(ShardReader(writer.part))
        with changing_manifest(self.path):
            if not writer.is_current:
                raise StoreError(f"{entry.file} in {self.path} was taken over by another process.")
            writer.put_in_place()
        return entry

    def enter(
        self,
        made: ShardEntry | None,
        entry: ShardEntry,
        skipped: Sequence[Mapping[str, Any]],
        spans: str | None = None,
    ) -> None:
        """Register the shard, its source and its skipped rows in one step. `made` is None if no row
        of the source could be used; `spans` is the digest of the rows' span labels."""
        number = entry.batch_number

        def change(manifest: Manifest) -> Manifest:
            shards = [s for s in manifest.shards if s.batch_number != number]
            shards += [made] if made is not None else []
            others = [skip for skip in manifest.skipped if skip["file"] != entry.file]
            origin = _origin(entry) | ({} if spans is None else {"spans": spans})
            sources = manifest.sources | {number: origin}
            return replace(
                manifest,
                shards=tuple(sorted(shards, key=attrgetter("batch_number"))),
                settings={**manifest.settings, "sources": [sources[n] for n in sorted(sources)]},
                skipped=tuple(
                    sorted([*others, *map(dict, skipped)], key=itemgetter("file", "record"))
                ),
            )

        with self._entering:
            self.manifest = update_manifest(self.path, change)


def _origin(entry: ShardEntry) -> dict[str, Any]:
    return {
        "batch_number": entry.batch_number,
        "file": entry.file,
        "sha256": entry.sha256,
        "records": entry.rows,
    }


def _read_rows(reader: ShardReader | None) -> StoredRows:
    def read(name: str, kind: Any) -> np.ndarray:
        # A copy: the file may be on this machine for a moment only.
        return np.array(reader.read_column(name)) if reader else np.zeros(0, kind)

    return StoredRows(
        global_example_id=read("global_example_id", np.int64),
        question_id=reader.read_column("question_id").to_pylist() if reader else [],
        label=read("label", np.float32),
        score=read("score", np.float32),
    )


def _refuse_foreign_folder(path: Path) -> None:
    """Raises StoreError if a folder is not empty and not a store, so that nothing is mixed up."""
    if isinstance(path, UrlPath):
        names = open_place(path).names()
    else:
        names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    # A run killed while writing its first manifest leaves a .tmp file.
    entries = [name for name in names if not name.startswith(".") and not name.endswith(".tmp")]
    if any(name.startswith("batch_") and ".arrow" in name for name in entries):
        raise StoreError(f'"{path}" has shards but no {MANIFEST_NAME}', action="repair", store=path)
    if entries:
        raise StoreError(
            f'"{path}" is neither empty nor a clew store (it contains {", ".join(entries[:3])}'
            f"{', ...' if len(entries) > 3 else ''}): choose another `out`."
        )


class _SkippedTrace(TypedDict):
    file: str
    record: Count
    question_id: str
    reason: str
    unlabeled: NotRequired[bool]
    label: NotRequired[str]


def _check_skips(path: Path, manifest: Manifest) -> None:
    try:
        read_as(list[_SkippedTrace], list(manifest.skipped), "skipped")
    except ValueError as error:
        raise StoreError(
            f"{path / MANIFEST_NAME} is damaged ({error}): restore it from a backup, or preprocess "
            "again into another folder."
        ) from None


def is_refused(skip: Mapping[str, Any]) -> bool:
    """Whether the trace was skipped since the model declined to answer."""
    return skip.get("label") == "refused"


def is_unlabeled(skip: Mapping[str, Any]) -> bool:
    """Whether the trace was skipped for lack of a score; earlier stores spell the key otherwise."""
    return bool(skip.get("unlabelled", skip.get("unlabeled", False)))


def _refuse_other_settings(
    path: Path, manifest: Manifest, kind: Kind, settings: Mapping[str, Any]
) -> None:
    if manifest.kind != kind or manifest.settings.get("command") != COMMAND:
        raise SettingsMismatchError(
            f'"{path}" is a store of {manifest.kind} that "clew preprocess" did not write: choose '
            f"another `out`."
        )
    _refuse_other_source(path, manifest.settings.get("source", {}), settings["source"])
    refuse_other_settings(path, manifest.settings, settings, _MAY_DIFFER)


def _refuse_other_source(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before.get("sha256") != now["sha256"]:
        old, new = (f'"{s.get("store")}" (model {s.get("model")})' for s in (before, now))
        raise SettingsMismatchError(
            f'"{path}" was created from the traces of {old}, but the traces of {new} have '
            "different settings: choose another `out`."
        )
