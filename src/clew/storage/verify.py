"""Check a store against its manifest: damaged, foreign, missing and half-written shards, and which
rows have not been created yet."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from clew.base.errors import StoreError
from clew.base.texts import counted
from clew.base.urls import UrlPath
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    has_manifest,
    read_manifest,
    shard_name,
)
from clew.storage.origin import ID_COLUMN, find_foreign, find_foreign_ids, has_fixed_ids
from clew.storage.places import open_place
from clew.storage.reader import ShardReader
from clew.storage.reading import hash_file
from clew.storage.uploading import numbers_with_pieces, unfinished_pieces
from clew.storage.working_copy import fetched
from clew.storage.writer import describe_irregular, find_foreign_file, read_intact_batches

OnShard = Callable[[str, int, int], None]
_SHARD_NAME = re.compile(r"(batch_(\d{1,12})\.arrow)(\.part|\.recovered)?", re.ASCII)

ProblemKind = Literal["missing", "damaged", "rows", "foreign", "unlisted", "part", "gap", "file"]


# Shards that are listed one by one; the rest is counted.
_MAX_GAPS = 100
# Levels of folders in which stores are looked for: samples are in PROJECT/SAMPLES/KIND.
_DEEPEST = 2


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem with a store. `lost_rows` is the number of rows to create again."""

    kind: ProblemKind
    file: str
    message: str
    batch_number: int | None = None
    lost_rows: int = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether running the command that wrote the store again fixes the problem."""
        return self.kind in ("part", "gap")


def find_stores(folder: Path) -> list[Path]:
    """The store itself, or the stores in a folder: those that "clew preprocess" and "clew convert"
    put there, or those of a whole project; the folder itself if it has none, so that opening it
    raises the error."""
    return [*_stores_in(folder, _DEEPEST)] or [folder]


def _stores_in(folder: Path, levels: int) -> Iterator[Path]:
    if has_manifest(folder):
        yield folder
    elif levels:
        for name in open_place(folder).folders():
            yield from _stores_in(folder / name, levels - 1)


def verify_store(store: Path, on_shard: OnShard | None = None) -> list[Problem]:
    """Checks hashes, row counts, gaps and half-written files, and that every row belongs to this
    store and is there once; reads every byte once.

    `on_shard(file, number, total)` is called before each shard; `number` counts from 1. Of a store
    at a URL, one shard at a time is on this machine.
    """
    manifest = read_manifest(store)
    problems: list[Problem] = []
    shards = sorted(manifest.shards, key=lambda s: s.batch_number)
    for number, shard in enumerate(shards, start=1):
        if on_shard is not None:
            on_shard(shard.file, number, len(shards))
        with fetched(store, shard.file) as path:
            found = _check_shard(path, shard, manifest)
        if found is not None:
            problems.append(_problem(shard, *found))
    if not problems and not has_fixed_ids(manifest):
        problems += _check_shared_ids(store, shards)
    extra = [*_check_extra_files(store, manifest, {problem.batch_number for problem in problems})]
    gaps = _list_gaps(manifest, reported={problem.batch_number for problem in extra})
    return [*problems, *extra, *_check_side_files(store, manifest), *gaps]


def way_on(manifest: Manifest) -> str:
    """How to create the missing rows of a store; only a capture plans their number in advance."""
    if manifest.planned_rows is not None:
        return "run the same extraction again"
    # The manifest of a photo cache has the program's name in it.
    command = str(manifest.settings.get("command", "convert")).removeprefix("clew ")
    return f'run "clew {command}" again'


def _problem(shard: ShardEntry, kind: ProblemKind, state: str, lost_rows: int) -> Problem:
    return Problem(
        kind=kind,
        file=shard.file,
        batch_number=shard.batch_number,
        lost_rows=lost_rows,
        message=f"shard {shard.file} {state}",
    )


def _check_shard(
    path: Path, shard: ShardEntry, manifest: Manifest
) -> tuple[ProblemKind, str, int] | None:
    """The kind of the problem, the state of the shard and the rows that are lost."""
    number, rows = shard.batch_number, counted(shard.rows, "row")
    reason, damage = describe_irregular(path), None
    if reason is None and not path.exists():
        return "missing", f"is missing; the manifest says it has {rows}", shard.rows
    if reason is None:
        damage = _find_damage(path, shard)
    if reason is None and damage is None:
        try:
            reader = ShardReader(path)
            reason = find_foreign(reader.schema, manifest, number, listed=True)
            ids = reader.read_ids()
            reason = reason or find_foreign_ids(ids, manifest, number)
            if reason is None and len(ids) == shard.rows:
                return None
            found = counted(len(ids), "row")
        except StoreError as error:
            damage = f"cannot be used ({error.text})"
    if damage is not None:
        reason = find_foreign_file(path, manifest, number, listed=True)
        reason = reason or _find_foreign_rows(path, manifest, number)
    if reason is not None:
        return "foreign", f"{reason}: it is not part of this store", shard.rows
    if damage is None:
        return "rows", f"has {found}, but the manifest says {shard.rows}", 0
    intact = count_intact(path)
    state = f"{damage}; {intact} of its {rows} are intact"
    return "damaged", state, max(0, shard.rows - intact)


def _find_damage(path: Path, shard: ShardEntry) -> str | None:
    if (found := path.stat().st_size) != shard.bytes:
        return f"has {found:,} bytes instead of {shard.bytes:,}"
    changed = hash_file(path) != shard.sha256
    return "has changed content (SHA-256 mismatch)" if changed else None


def _find_foreign_rows(path: Path, manifest: Manifest, number: int) -> str | None:
    """Why the intact rows of a file are not those of shard `number`, None if they are."""
    for batch in read_intact_batches(path):
        if ID_COLUMN not in batch.schema.names or batch.schema.field(ID_COLUMN).type != pa.int64():
            return f'has no column "{ID_COLUMN}" of integers'
        reason = find_foreign_ids(batch.column(ID_COLUMN).drop_null().to_numpy(), manifest, number)
        if reason is not None:
            return reason
    return None


def _check_shared_ids(store: Path, shards: list[ShardEntry]) -> Iterator[Problem]:
    """Rows that two shards have. Only shards whose ids overlap are compared row by row."""
    seen: list[tuple[int, int, ShardEntry]] = []
    for shard in shards:
        ids = _read_ids(store, shard)
        if not len(ids):
            continue
        first, last = int(ids.min()), int(ids.max())
        for other_first, other_last, other in seen:
            if other_first <= last and first <= other_last:
                shared = np.intersect1d(ids, _read_ids(store, other))
                if len(shared):
                    state = f"has {counted(len(shared), 'row')} that {other.file} has too"
                    yield _problem(
                        shard, "foreign", f"{state}: it is not part of this store", shard.rows
                    )
                    break
        seen.append((first, last, shard))


def _read_ids(store: Path, shard: ShardEntry) -> np.ndarray:
    with fetched(store, shard.file) as path:
        return ShardReader(path).read_ids().copy()


def _check_extra_files(
    store: Path, manifest: Manifest, damaged: Collection[int | None]
) -> Iterator[Problem]:
    listed = {shard.file for shard in manifest.shards}
    complete = {
        shard.batch_number
        for shard in manifest.shards
        if manifest.planned_rows is not None
        and shard.batch_number not in damaged
        and shard.rows >= expected_rows(manifest, shard.batch_number)
    }
    known = {*complete}
    for name in shard_files(store):
        number = batch_number_of(name)
        if number is not None and name not in listed:
            known.add(number)
            with fetched(store, name) as path:
                kind, state = _check_extra(path, manifest, number, is_over=number in complete)
            message = f"{name} {state}"
            yield Problem(kind=kind, file=name, batch_number=number, message=message)
    for number in numbers_with_pieces(store):  # at a URL, only record batches of them are there
        if number not in known:
            count = len(unfinished_pieces(store, number).names())
            kept = f"{counted(count, 'record batch', 'record batches')} kept"
            message = f"{shard_name(number)} is half-written, with {kept}: {way_on(manifest)}"
            message += " to finish it"
            yield Problem(
                kind="part", file=shard_name(number), batch_number=number, message=message
            )


def _check_extra(
    path: Path, manifest: Manifest, number: int, *, is_over: bool
) -> tuple[ProblemKind, str]:
    reason = describe_irregular(path) or find_foreign_file(path, manifest, number)
    reason = reason or _find_foreign_rows(path, manifest, number)
    if reason is not None:
        return "foreign", f"{reason}: it is not part of this store"
    if is_over:  # no extraction would ever finish it
        return "foreign", f"is left over: shard {shard_name(number)} is complete"
    if path.suffix == ".arrow":
        return "unlisted", "is not in the manifest"
    rows = counted(count_intact(path), "complete row")
    to_do = "to finish it" if manifest.planned_rows is not None else "to re-create it"
    return "part", f"is half-written, with {rows}: {way_on(manifest)} {to_do}"


def shard_files(store: Path) -> list[str]:
    """The names of all files that look like shards or half-written ones."""
    if isinstance(store, UrlPath):
        return open_place(store).names("batch_")
    return sorted(path.name for path in store.glob("batch_*.arrow*"))


def _check_side_files(store: Path, manifest: Manifest) -> Iterator[Problem]:
    for name, sha256 in manifest.files.items():
        with fetched(store, name) as path:
            state = describe_irregular(path)
            if state is None and not path.exists():
                state = "is missing"
            if state is None and hash_file(path) != sha256:
                state = "has changed since it was written"
        if state is not None:
            message = (
                f"{name} {state}: restore it from a backup of the store; traces created with a "
                "different one would not match those in this store"
            )
            yield Problem(kind="file", file=name, message=message)


def _list_gaps(manifest: Manifest, reported: Collection[int | None]) -> Iterator[Problem]:
    """The first shards with missing rows, and the number of missing rows beyond them. Shards in
    `reported` have a file with a problem of its own."""
    planned, again = manifest.planned_rows, way_on(manifest)
    made = {shard.batch_number: shard.rows for shard in manifest.shards}
    expected = _rows_of_sources(manifest)
    if planned is not None:
        numbers = {*made, *_first_unmade(manifest, {*made, *reported})}
        expected = {n: expected_rows(manifest, n) for n in numbers}
    gaps = {
        number: rows - made.get(number, 0)
        for number, rows in sorted(expected.items())
        if rows > made.get(number, 0) and number not in reported
    }
    for number, missing in itertools.islice(gaps.items(), _MAX_GAPS):
        state = f"({counted(missing, 'row')}) has not been created yet"
        if planned is None:
            rows = counted(expected[number], "row")
            state = f"is missing {missing} of the {rows} in its source file"
        yield Problem(
            kind="gap",
            file=shard_name(number),
            batch_number=number,
            lost_rows=missing,
            message=f"shard {number} {state}: {again}",
        )
    if planned is None or len(gaps) < _MAX_GAPS:
        return
    here = sum(min(rows, expected_rows(manifest, n)) for n, rows in made.items())
    in_part = {n for n in reported if n is not None and n not in made}
    here += sum(expected_rows(manifest, n) for n in in_part)
    more = planned - here - sum(itertools.islice(gaps.values(), _MAX_GAPS))
    if more > 0:
        message = f"{more:,} more rows have not been created yet: {again}"
        yield Problem(kind="gap", file=MANIFEST_NAME, lost_rows=more, message=message)


def batch_number_of(name: str) -> int | None:
    """The number of a shard or a half-written one; None for any other file."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None or match[1] != shard_name(int(match[2])):
        return None
    return int(match[2])


def count_intact(path: Path) -> int:
    return sum(batch.num_rows for batch in read_intact_batches(path))


def expected_rows(manifest: Manifest, batch_number: int) -> int:
    """The rows a shard must have: as planned, or as many valid records as its source had."""
    planned, size = manifest.planned_rows, manifest.rows_per_shard
    if planned is not None:
        return max(0, min(size, planned - batch_number * size))
    return _rows_of_sources(manifest).get(batch_number, 0)


def _rows_of_sources(manifest: Manifest) -> dict[int, int]:
    unfit = Counter(skip.get("file") for skip in manifest.skipped if skip.get("record") is not None)
    return {
        number: source["records"] - unfit[source["file"]]
        for number, source in manifest.sources.items()
        if "records" in source
    }


def _first_unmade(manifest: Manifest, known: Collection[int | None]) -> Iterator[int]:
    """The first shards without a file; a manifest may plan more than could ever be listed."""
    count = -(-(manifest.planned_rows or 0) // manifest.rows_per_shard)
    return itertools.islice((n for n in range(count) if n not in known), _MAX_GAPS)
