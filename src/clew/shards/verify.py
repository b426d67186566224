"""Hold a store against its manifest, and put right what can be put right."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from clew.errors import OtherVersionError, StoreError
from clew.shards.hashing import hash_file
from clew.shards.lock import Part, writer_lock
from clew.shards.manifest import (
    Manifest,
    ShardEntry,
    manifest_from_schema,
    read_manifest,
    shard_name,
    update_manifest,
    write_manifest,
)
from clew.shards.reader import ShardReader
from clew.shards.writer import read_intact_batches

ProblemKind = Literal["missing", "damaged", "rows", "unlisted", "part", "gap", "file"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a store. `lost_rows` is what must be made again."""

    kind: ProblemKind
    file: str
    message: str
    batch_number: int | None = None
    lost_rows: int = 0


def verify_store(store: Path, on_shard: Callable[[str], None] = lambda _: None) -> list[Problem]:
    """Check hashes, row counts, gaps and half-written files; reads every byte once."""
    manifest = read_manifest(store)
    problems: list[Problem] = []
    for shard in sorted(manifest.shards, key=lambda s: s.batch_number):
        on_shard(shard.file)
        problem = _check_shard(store, shard)
        if problem:
            problems.append(problem)
    problems += _check_extra_files(store, manifest)
    problems += _check_side_files(store, manifest)
    problems += _check_gaps(manifest)
    return problems


def ensure_manifest(store: Path) -> str | None:
    """Build the manifest anew from the shards when it is gone or unreadable; says so if it was.

    The half-written state of other files is left to `verify_store` and the next run.
    """
    try:
        read_manifest(store)
        return None
    except OtherVersionError:
        raise
    except StoreError:
        shards = sorted(store.glob("batch_*.arrow")) if store.is_dir() else []
        if not shards:
            raise
    origins = [origin for path in shards if (origin := _origin_of(path)) is not None]
    if origins:
        # Shards made before the store grew know of fewer rows.
        manifest = max(origins, key=lambda origin: origin.planned_rows or 0)
        with writer_lock(store, Part()):
            files = {
                side.name: hash_file(side)
                for side in sorted(store.glob("*.arrow"))
                if not side.name.startswith("batch_")
            }
            write_manifest(store, replace(manifest, files=files))
        return "the manifest was gone or unreadable: built it anew from the shards"
    raise StoreError(
        f"{store} has no readable manifest, and none of its {len(shards)} shards can be read "
        f"either: restore it from a copy, or capture again into another folder."
    )


def _origin_of(path: Path) -> Manifest | None:
    try:
        return manifest_from_schema(ShardReader(path).schema)
    except StoreError:
        return None


def repair_store(store: Path, problems: list[Problem]) -> list[str]:
    """Keep every intact record batch, forget what is damaged; returns what was done.

    Damaged shards become `.part` files: the next run of the same extraction takes over their
    intact rows and makes the lost ones again.
    """
    with writer_lock(store, Part()):
        return [line for problem in problems for line in _repair_one(store, problem)]


def _check_shard(store: Path, shard: ShardEntry) -> Problem | None:
    path = store / shard.file
    if not path.exists():
        return Problem(
            kind="missing",
            file=shard.file,
            batch_number=shard.batch_number,
            lost_rows=shard.rows,
            message=f"shard {shard.file} is missing; the manifest says it has {shard.rows} rows",
        )
    found_bytes = path.stat().st_size
    if found_bytes == shard.bytes and hash_file(path) == shard.sha256:
        rows = ShardReader(path).count_rows()
        if rows == shard.rows:
            return None
        return Problem(
            kind="rows",
            file=shard.file,
            batch_number=shard.batch_number,
            message=f"shard {shard.file} has {rows} rows, the manifest says {shard.rows}",
        )
    intact = sum(batch.num_rows for batch in read_intact_batches(path))
    what = (
        f"{found_bytes:,} bytes instead of {shard.bytes:,}"
        if found_bytes != shard.bytes
        else "other bytes than when it was written (SHA-256 differs)"
    )
    return Problem(
        kind="damaged",
        file=shard.file,
        batch_number=shard.batch_number,
        lost_rows=shard.rows - intact,
        message=f"shard {shard.file} has {what}; {intact} of its {shard.rows} rows are intact",
    )


def _check_extra_files(store: Path, manifest: Manifest) -> list[Problem]:
    listed = {shard.file for shard in manifest.shards}
    problems = []
    for path in sorted(store.glob("batch_*.arrow*")):
        if path.suffix in (".part", ".recovered"):
            rows = sum(batch.num_rows for batch in read_intact_batches(path))
            problems.append(
                Problem(
                    kind="part",
                    file=path.name,
                    message=f"{path.name} is half-written, with {rows} complete rows: "
                    "run the same extraction again to finish it",
                )
            )
        elif path.name not in listed:
            problems.append(
                Problem(
                    kind="unlisted",
                    file=path.name,
                    message=f"{path.name} is not in the manifest",
                )
            )
    return problems


def _check_side_files(store: Path, manifest: Manifest) -> list[Problem]:
    problems = []
    for name, sha256 in manifest.files.items():
        path = store / name
        if not path.exists() or hash_file(path) != sha256:
            state = "is missing" if not path.exists() else "has changed since it was written"
            problems.append(
                Problem(
                    kind="file",
                    file=name,
                    message=f"{name} {state}: restore it from a copy of the store; traces made "
                    "with another one would not fit those that are here",
                )
            )
    return problems


def _check_gaps(manifest: Manifest) -> list[Problem]:
    if manifest.planned_rows is None:
        return []
    made = {shard.batch_number: shard.rows for shard in manifest.shards}
    size = manifest.rows_per_shard
    problems = []
    for number in range(-(-manifest.planned_rows // size)):
        missing = min(size, manifest.planned_rows - number * size) - made.get(number, 0)
        if missing > 0:
            problems.append(
                Problem(
                    kind="gap",
                    file=shard_name(number),
                    batch_number=number,
                    lost_rows=missing,
                    message=f"batch {number} ({missing} rows) has not been made yet: "
                    "run the same extraction again",
                )
            )
    return problems


def _repair_one(store: Path, problem: Problem) -> list[str]:
    path = store / problem.file
    if problem.kind == "missing":
        _forget_shard(store, problem.batch_number)
        return [f"took {problem.file} off the manifest; {problem.lost_rows} rows to make again"]
    if problem.kind in ("damaged", "rows"):
        # First the manifest, then the rename: a crash in between leaves an unlisted shard,
        # which the next run recovers just the same.
        _forget_shard(store, problem.batch_number)
        os.replace(path, path.with_suffix(".arrow.part"))
        return [
            f"set {problem.file} back to half-written; its intact rows are kept, "
            f"{problem.lost_rows} to make again"
        ]
    if problem.kind == "unlisted":
        return [_adopt_shard(store, path)]
    return []


def _forget_shard(store: Path, batch_number: int | None) -> None:
    def forget(manifest: Manifest) -> Manifest:
        kept = tuple(s for s in manifest.shards if s.batch_number != batch_number)
        return replace(manifest, shards=kept)

    update_manifest(store, forget)


def _adopt_shard(store: Path, path: Path) -> str:
    try:
        rows = ShardReader(path).count_rows()
    except (StoreError, pa.ArrowException):
        rows = -1
    # The manifest knows no hash of it: only the checksums of its record batches can tell.
    if rows != sum(batch.num_rows for batch in read_intact_batches(path)):
        os.replace(path, path.with_suffix(".arrow.part"))
        return f"set {path.name} back to half-written: it is not complete"
    entry = ShardEntry(
        batch_number=int(path.stem.split("_")[1]),
        file=path.name,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=hash_file(path),
    )
    add_shard(store, entry)
    return f"added {path.name} with {rows} rows to the manifest"


def add_shard(store: Path, entry: ShardEntry) -> Manifest:
    """Enter a finished shard into the manifest, in place of an older entry of the same number."""

    def add(manifest: Manifest) -> Manifest:
        others = tuple(s for s in manifest.shards if s.batch_number != entry.batch_number)
        shards = sorted((*others, entry), key=lambda s: s.batch_number)
        return replace(manifest, shards=tuple(shards))

    return update_manifest(store, add)
