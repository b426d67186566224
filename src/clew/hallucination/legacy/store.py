"""A store being converted: which source files are in it, which are skipped and why."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from clew.base.errors import InputError, SettingsMismatchError, StoreError
from clew.base.typed_json import read_as
from clew.hallucination.legacy.formats import (
    SampleFormat,
    assign_ids,
    fit_format,
    nameless_id,
    open_format,
)
from clew.hallucination.legacy.reading import FileKind, Samples, load_samples
from clew.hallucination.legacy.records import MalformedRecordError
from clew.hallucination.legacy.unpickling import explain_errors
from clew.hallucination.traces.schema import Keep
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    has_manifest,
    read_manifest,
    shard_name,
    update_manifest,
    write_manifest,
)
from clew.storage.origin import describe_in_schema
from clew.storage.places import open_place
from clew.storage.reading import hash_file
from clew.storage.uploading import open_writer
from clew.storage.verify import expected_rows
from clew.storage.writer import ShardWriter
from clew.version import __version__

COMMAND = "convert"
# The largest batches in legacy files.
_LEAST_ROWS_PER_SHARD = 500
_RECORD_BATCH_BYTES = 64 << 20
# The manifest names each skipped record.
_MAX_SKIPPED_RECORDS, _MAX_SHOWN_ID = 10_000, 200


@dataclass(frozen=True, kw_only=True)
class SkippedSource:
    """A file, or one record of it, that is not in the store, and why."""

    file: str
    reason: str
    record: int | None = None
    question_id: str | None = None

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.file}: {self.reason}"
        return f"{self.file}, record {self.record} ({self.question_id}): {self.reason}"


class Source(NamedTuple):
    """One legacy file; it becomes the shard `batch_number`."""

    path: Path
    batch_number: int


class ConvertedStore:
    """A store at `path` that files of one kind go into, one shard each."""

    def __init__(
        self, path: Path, *, keep: Keep, files: Iterable[Path], max_memory: int | None = None
    ) -> None:
        self.path, self.keep, self._max_memory = path, keep, max_memory
        self._names = {printable(file.name) for file in files}
        self._format: SampleFormat | None = None
        self._manifest: Manifest | None = None
        self._skipped: dict[str, list[SkippedSource]] = {}
        if has_manifest(path):
            self._manifest = read_manifest(path)
            _check_origin(path, self._manifest, keep)

    @property
    def manifest(self) -> Manifest | None:
        """The store's manifest; None until a file has been converted."""
        return self._manifest

    @property
    def skipped(self) -> list[SkippedSource]:
        """Everything skipped, in earlier runs too, except files that were removed since."""
        earlier = (
            [_read_skip(self.path, entry) for entry in self._manifest.skipped]
            if self._manifest
            else []
        )
        kept = [
            skip
            for skip in earlier
            if skip.file not in self._skipped
            and (skip.record is not None or skip.file in self._names)
        ]
        new = [skip for skips in self._skipped.values() for skip in skips]
        return sorted([*kept, *new], key=lambda skip: (skip.file, skip.record or 0))

    def has(self, source: Source) -> bool:
        """Whether all of the file is in the store, not only the rows that a repair could save.
        Raises SettingsMismatchError if the store was made from different content.
        """
        number = source.batch_number
        entry = self._find_source(number)
        if entry is None:
            return False
        with explain_errors(source.path):
            sha256 = hash_file(source.path)
        if entry["sha256"] != sha256:
            raise SettingsMismatchError(
                f'shard {number} of "{self.path}" was converted from "{entry["file"]}" (SHA-256 '
                f'{entry["sha256"][:12]}...), but "{source.path}" has different content: '
                "restore that file, or choose another `out`."
            )
        assert self._manifest is not None
        shard = self._manifest.shard(number)
        whole = shard is not None and shard.rows >= expected_rows(self._manifest, number)
        return whole and open_place(self.path).stat(shard_name(number)) is not None

    def skip(self, path: Path, reason: str) -> None:
        name = printable(path.name)
        self._skipped[name] = [SkippedSource(file=name, reason=printable(reason))]

    def convert(self, source: Source, file_kind: FileKind) -> None:
        """Write the file's shard; raises InputError if the file cannot be used."""
        with explain_errors(source.path):
            sha256 = hash_file(source.path)
        samples = load_samples(source.path, file_kind, self._max_memory)
        form = self._choose_format(samples, source.path)
        assert self._manifest is not None
        size = self._manifest.rows_per_shard
        if len(samples) > size:
            raise InputError(
                f'"{source.path}" has {len(samples)} records, but the store has at most {size} '
                "per shard (set by its first file): convert it separately, into another `out`."
            )
        ids = assign_ids(samples, source.batch_number, size)
        if any(row["question_id"] == nameless_id(row["global_example_id"]) for row in ids):
            form.notes.add("records without a question ID are named record_<global_example_id>")
        name = printable(source.path.name)
        origin = {
            "batch_number": source.batch_number,
            "file": name,
            "sha256": sha256,
            "records": len(samples),
        }
        entry, skips = self._write_shard(form, samples, ids, source, origin)
        self._skipped[name] = skips
        self._enter(form, origin, entry)

    def close(self) -> None:
        """Record in the manifest what was skipped since the last shard."""
        if self._manifest is not None:
            self._change(lambda manifest: manifest)

    def _choose_format(self, samples: Samples, path: Path) -> SampleFormat:
        if self._manifest is None:
            try:
                self._format = fit_format(samples.kind, samples, self.keep)
            except MalformedRecordError as error:
                raise _explain_no_rows(path, len(samples), str(error)) from None
            self._begin(self._format, len(samples))
        assert self._manifest is not None
        if samples.kind != self._manifest.kind:
            raise InputError(
                f'"{path}" contains {samples.kind}, but the previous files contain '
                f"{self._manifest.kind}: put the two kinds into separate folders."
            )
        if self._format is None:
            self._format = open_format(self.path, self._manifest)
        return self._format

    def _begin(self, form: SampleFormat, rows: int) -> None:
        self._manifest = Manifest(
            kind=form.kind,
            settings={"command": COMMAND, **form.settings, "sources": []},
            rows_per_shard=max(_LEAST_ROWS_PER_SHARD, rows),
            planned_rows=None,
            files=form.save(self.path),
            clew_version=__version__,
        )
        write_manifest(self.path, self._manifest)

    def _write_shard(
        self,
        form: SampleFormat,
        samples: Samples,
        ids: Sequence[Mapping[str, Any]],
        source: Source,
        origin: Mapping[str, Any],
    ) -> tuple[ShardEntry, list[SkippedSource]]:
        assert self._manifest is not None
        # Each shard names its source, so that a lost manifest can be rebuilt from the shards.
        settings = {**self._manifest.settings, "sources": [origin]}
        schema = describe_in_schema(form.schema, replace(self._manifest, settings=settings))
        skips: list[SkippedSource] = []
        writer: ShardWriter | None = None
        try:
            for batch in _join_rows(_make_rows(form, samples, ids, origin["file"], skips)):
                # What an interrupted run left is dropped: it may come from another source.
                writer = writer or open_writer(
                    self.path,
                    source.batch_number,
                    schema,
                    id_column="global_example_id",
                    start_over=True,
                )
                writer.write(batch)
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise
        if writer is None:
            raise _explain_no_rows(source.path, len(samples), skips[0].reason)
        return writer.finish(), skips

    def _enter(self, form: SampleFormat, origin: Mapping[str, Any], entry: ShardEntry) -> None:
        """Add the shard and its source to the manifest in one step: a shard without its source
        would be written again."""
        number = entry.batch_number

        def enter(manifest: Manifest) -> Manifest:
            shards = [s for s in manifest.shards if s.batch_number != number] + [entry]
            sources = manifest.sources | {number: dict(origin)}
            return replace(
                manifest,
                shards=tuple(sorted(shards, key=attrgetter("batch_number"))),
                settings={**manifest.settings, "sources": [sources[n] for n in sorted(sources)]},
                notes=tuple(sorted({*manifest.notes, *form.notes})),
            )

        self._change(enter)

    def _change(self, change: Callable[[Manifest], Manifest]) -> None:
        skipped = tuple(asdict(skip) for skip in self.skipped)
        self._manifest = update_manifest(
            self.path, lambda manifest: replace(change(manifest), skipped=skipped)
        )

    def _find_source(self, batch_number: int) -> Mapping[str, Any] | None:
        if self._manifest is None or self._manifest.shard(batch_number) is None:
            return None
        return self._manifest.sources.get(batch_number)


def printable(text: str) -> str:
    """Text that JSON can hold; file names may not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _make_rows(
    form: SampleFormat,
    samples: Samples,
    ids: Sequence[Mapping[str, Any]],
    file: str,
    skips: list[SkippedSource],
) -> Iterator[pa.RecordBatch]:
    for index, (sample, row_ids) in enumerate(zip(samples, ids, strict=True)):
        try:
            yield form.row(sample, row_ids)
        except MalformedRecordError as error:
            if len(skips) == _MAX_SKIPPED_RECORDS:
                raise InputError(
                    f'"{file}": more than {len(skips):,} of its records cannot be converted. The '
                    f"first one: {skips[0].reason}."
                ) from None
            named = row_ids["question_id"][:_MAX_SHOWN_ID]
            skips.append(
                SkippedSource(file=file, reason=str(error), record=index, question_id=named)
            )


def _join_rows(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Group rows into record batches that are efficient to read and small compared to memory."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += row.nbytes
        if size >= _RECORD_BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _explain_no_rows(path: Path, count: int, reason: str) -> InputError:
    if count == 1:
        return InputError(f'"{path}": its only record cannot be converted: {reason}.')
    return InputError(
        f'"{path}": none of its {count} records can be converted. The first one: {reason}.'
    )


def _read_skip(store: Path, entry: dict[str, Any]) -> SkippedSource:
    try:
        return read_as(SkippedSource, entry)
    except ValueError as error:
        raise StoreError(
            f"{store / MANIFEST_NAME} is damaged (skipped: {error}): restore it from a backup, or "
            "convert again into another folder."
        ) from None


def _check_origin(store: Path, manifest: Manifest, keep: Keep) -> None:
    settings = manifest.settings
    if settings.get("command") != COMMAND:
        raise SettingsMismatchError(
            f'"{store}" is a store of {manifest.kind} that "clew convert" did not write: choose '
            f"another `out`."
        )
    if settings.get("keep", keep) != keep:
        raise SettingsMismatchError(
            f'"{store}" was started with `keep="{settings["keep"]}"`, but `keep="{keep}"` was '
            f'requested: resume with `keep="{settings["keep"]}"`, or choose another `out`.'
        )
