"""Check a store against its manifest, and repair what can be repaired."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from clew.errors import OtherVersionError, StoreError
from clew.storage.hashing import hash_file
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    manifest_from_schema,
    read_manifest,
    shard_name,
    update_manifest,
    write_manifest,
)
from clew.storage.reader import ShardReader
from clew.storage.writer import ShardWriter, read_intact_batches
from clew.storage.writing import put_in_place

OnShard = Callable[[str, int, int], None]
_SHARD_NAME = re.compile(r"(batch_(\d+)\.arrow)(\.part|\.recovered)?")
# The ID column, which every store has.
_ID_COLUMN = "global_example_id"

ProblemKind = Literal["missing", "damaged", "rows", "unlisted", "part", "gap", "file"]


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
    """The store itself, or the stores that "clew preprocess" and "clew convert" put in a folder;
    the folder itself if it has none, so that opening it raises the error."""
    inner = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}"))
    return [folder] if (folder / MANIFEST_NAME).exists() or not inner else inner


def verify_store(store: Path, on_shard: OnShard | None = None) -> list[Problem]:
    """Checks hashes, row counts, gaps and half-written files; reads every byte once.

    `on_shard(file, number, total)` is called before each shard; `number` counts from 1.
    """
    manifest = read_manifest(store)
    problems: list[Problem] = []
    shards = sorted(manifest.shards, key=lambda s: s.batch_number)
    for number, shard in enumerate(shards, start=1):
        if on_shard is not None:
            on_shard(shard.file, number, len(shards))
        problem = _check_shard(store, shard)
        if problem:
            problems.append(problem)
    extra = _check_extra_files(store, manifest)
    problems += extra
    problems += _check_side_files(store, manifest)
    problems += _check_gaps(manifest, reported={problem.batch_number for problem in extra})
    return problems


def way_on(manifest: Manifest) -> str:
    """How to create the missing rows of a store; only a capture plans their number in advance."""
    if manifest.planned_rows is not None:
        return "run the same extraction again"
    # The manifest of a photo cache has the program's name in it.
    command = str(manifest.settings.get("command", "convert")).removeprefix("clew ")
    return f'run "clew {command}" again'


def expected_rows(manifest: Manifest) -> dict[int, int]:
    """The rows each shard must have: as planned, or as many valid records as its source had."""
    planned, size = manifest.planned_rows, manifest.rows_per_shard
    if planned is not None:
        return {n: min(size, planned - n * size) for n in range(-(-planned // size))}
    unfit = Counter(skip.get("file") for skip in manifest.skipped if skip.get("record") is not None)
    return {
        source["batch_number"]: source["records"] - unfit[source["file"]]
        for source in manifest.settings.get("sources", ())
        if "records" in source
    }


def ensure_manifest(store: Path) -> str | None:
    """Rebuilds the manifest from the shards if it is missing or unreadable, and says so if it did.

    Other half-written files are left to `verify_store` and the next run.
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
    schemas = [schema for path in shards if (schema := _read_schema(path)) is not None]
    origins = [origin for schema in schemas if (origin := _read_origin(schema)) is not None]
    if origins:
        with writer_lock(store, Part()):
            files = {
                side.name: hash_file(side)
                for side in sorted(store.glob("*.arrow"))
                if not side.name.startswith("batch_")
            }
            write_manifest(store, replace(_join_origins(origins), files=files))
        return "the manifest was missing or unreadable: rebuilt it from the shards"
    raise StoreError(f"{store} has no readable manifest, and {_no_origin(schemas, len(shards))}")


def _read_schema(path: Path) -> pa.Schema | None:
    try:
        return ShardReader(path).schema
    except StoreError:
        return None


def _read_origin(schema: pa.Schema) -> Manifest | None:
    try:
        return manifest_from_schema(schema)
    except (ValueError, TypeError):  # flipped bytes
        return None


def _join_origins(origins: Sequence[Manifest]) -> Manifest:
    """The manifest rebuilt from those stored in the shards. Shards written before the store grew
    plan fewer rows; converted shards name their source."""
    manifest = max(origins, key=lambda origin: origin.planned_rows or 0)
    if "sources" not in manifest.settings:
        return manifest
    known = {
        source["batch_number"]: source
        for origin in origins
        for source in origin.settings.get("sources", ())
    }
    sources = [known[number] for number in sorted(known)]
    return replace(manifest, settings={**manifest.settings, "sources": sources})


def _no_origin(readable: Sequence[pa.Schema], shards: int) -> str:
    if not readable:
        return (
            f"none of its shards ({shards}) can be read either: restore it from a backup, or "
            "extract or convert again into another folder."
        )
    return (
        f"its shards do not record how they were created: {len(readable)} of {shards} can be "
        "read, but a manifest cannot be built from them. Restore manifest.json from a backup, or "
        "extract or convert again into another folder."
    )


def repair_store(store: Path, problems: list[Problem] | None = None) -> list[str]:
    """Keeps every intact record batch and drops what is damaged; returns what was done.

    `problems` are those that `verify_store` found; without them it runs that check first. Damaged
    shards become `.part` files: the next run of the same extraction reuses their intact rows and
    creates the lost ones again. A conversion never resumes from a `.part`, so the damaged shards of
    a converted store are rewritten at once from their intact rows.
    """
    done: list[str] = []
    if problems is None:
        rebuilt = ensure_manifest(store)
        done += [rebuilt] if rebuilt else []
        problems = verify_store(store)
    with writer_lock(store, Part()):
        return done + [line for problem in problems for line in _repair_one(store, problem)]


def _check_shard(store: Path, shard: ShardEntry) -> Problem | None:
    path = store / shard.file
    if not path.exists():
        return Problem(
            kind="missing",
            file=shard.file,
            batch_number=shard.batch_number,
            lost_rows=shard.rows,
            message=f"shard {shard.file} is missing; the manifest says it has {_rows(shard.rows)}",
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
            message=f"shard {shard.file} has {_rows(rows)}, but the manifest says {shard.rows}",
        )
    intact = _count_intact(path)
    what = (
        f"{found_bytes:,} bytes instead of {shard.bytes:,}"
        if found_bytes != shard.bytes
        else "changed content (SHA-256 mismatch)"
    )
    return Problem(
        kind="damaged",
        file=shard.file,
        batch_number=shard.batch_number,
        lost_rows=shard.rows - intact,
        message=f"shard {shard.file} has {what}; {intact} of its {_rows(shard.rows)} are intact",
    )


def _check_extra_files(store: Path, manifest: Manifest) -> list[Problem]:
    listed = {shard.file for shard in manifest.shards}
    to_do = "to finish it" if manifest.planned_rows is not None else "to re-create it"
    problems = []
    for path in sorted(store.glob("batch_*.arrow*")):
        number = _batch_number(path)
        if number is None or path.name in listed:
            continue
        kind: ProblemKind = "unlisted" if path.suffix == ".arrow" else "part"
        state = "is not in the manifest"
        if kind == "part":
            rows = _rows(_count_intact(path), "complete")
            state = f"is half-written, with {rows}: {way_on(manifest)} {to_do}"
        message = f"{path.name} {state}"
        problems.append(Problem(kind=kind, file=path.name, batch_number=number, message=message))
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
                    message=(
                        f"{name} {state}: restore it from a backup of the store; traces created "
                        "with a different one would not match those in this store"
                    ),
                )
            )
    return problems


def _check_gaps(manifest: Manifest, reported: Collection[int | None]) -> list[Problem]:
    """Rows that no file has; batches in `reported` have a file with a problem of its own."""
    made = {shard.batch_number: shard.rows for shard in manifest.shards}
    problems = []
    for number, rows in expected_rows(manifest).items():
        missing = rows - made.get(number, 0)
        if missing > 0 and number not in reported:
            problems.append(
                Problem(
                    kind="gap",
                    file=shard_name(number),
                    batch_number=number,
                    lost_rows=missing,
                    message=f"{_describe_gap(manifest, number, missing, rows)}: {way_on(manifest)}",
                )
            )
    return problems


def _describe_gap(manifest: Manifest, number: int, missing: int, rows: int) -> str:
    if manifest.planned_rows is None:
        return f"shard {number} is missing {missing} of the {_rows(rows)} in its source file"
    return f"shard {number} ({_rows(missing)}) has not been created yet"


def _repair_one(store: Path, problem: Problem) -> list[str]:
    path = store / problem.file
    lost = (
        f"{_rows(problem.lost_rows)} lost, to be re-created" if problem.lost_rows else "none lost"
    )
    if problem.kind == "missing":
        _forget_shard(store, problem.batch_number)
        return [f"removed {problem.file} from the manifest; {lost}"]
    if problem.kind in ("damaged", "rows"):
        return [f"{_keep_intact_rows(store, path)}; {lost}"]
    if problem.kind == "unlisted":
        return [_adopt_shard(store, path)]
    return []


def _keep_intact_rows(store: Path, path: Path) -> str:
    """Turn a damaged shard back into a `.part` file, or rewrite it if no run resumes from `.part`
    files."""
    number = _batch_number(path)
    assert number is not None  # files with other names are not looked at
    first = next(read_intact_batches(path), None)
    kept = _rows(_count_intact(path), "intact")
    if read_manifest(store).planned_rows is None and first is not None:
        # The writer takes over the intact rows of the old file, then replaces it.
        writer = ShardWriter(store, number, first.schema, id_column=_ID_COLUMN)
        add_shard(store, writer.finish())
        return f"rewrote {path.name} with its {kept}"
    # First the manifest, then the rename: a crash in between leaves an unlisted shard, which the
    # next run recovers just the same.
    _forget_shard(store, number)
    put_in_place(path, path.with_suffix(".arrow.part"))
    return f"marked {path.name} as half-written, keeping its {kept}"


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
    # The manifest has no hash for it: only the checksums of its record batches can tell.
    if rows != _count_intact(path):
        return f"{_keep_intact_rows(store, path)}: it was incomplete"
    entry = ShardEntry(
        batch_number=int(path.stem.split("_")[1]),
        file=path.name,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=hash_file(path),
    )
    add_shard(store, entry)
    return f"added {path.name} with {_rows(rows)} to the manifest"


def _batch_number(path: Path) -> int | None:
    """The number of a shard or a half-written one; None for any other file."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or match[1] != shard_name(int(match[2])):
        return None
    return int(match[2])


def _count_intact(path: Path) -> int:
    return sum(batch.num_rows for batch in read_intact_batches(path))


def _rows(count: int, state: str = "") -> str:
    noun = "row" if count == 1 else "rows"
    return " ".join(filter(None, (str(count), state, noun)))


def add_shard(store: Path, entry: ShardEntry) -> Manifest:
    """Adds a finished shard to the manifest, replacing an older entry with the same number."""

    def add(manifest: Manifest) -> Manifest:
        others = tuple(s for s in manifest.shards if s.batch_number != entry.batch_number)
        shards = sorted((*others, entry), key=lambda s: s.batch_number)
        return replace(manifest, shards=tuple(shards))

    return update_manifest(store, add)
