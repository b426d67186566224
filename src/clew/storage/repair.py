"""Repair a store: keep every intact row, rebuild a lost manifest, move aside what is foreign."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from clew.base.errors import OtherVersionError, StoreError
from clew.base.texts import counted
from clew.base.urls import UrlPath
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    changing_manifest,
    manifest_lock,
    read_manifest,
    update_manifest,
    write_manifest,
)
from clew.storage.origin import ID_COLUMN, find_other_store, read_origin
from clew.storage.place import AccessDeniedError, UnreachableError
from clew.storage.places import open_place
from clew.storage.reader import ShardReader
from clew.storage.reading import hash_file, irregular_kind
from clew.storage.uploading import UploadingWriter, open_writer, unfinished_pieces
from clew.storage.verify import (
    Problem,
    batch_number_of,
    count_intact,
    shard_files,
    verify_store,
)
from clew.storage.working_copy import fetched
from clew.storage.writer import ShardWriter, describe_irregular, read_intact_batches, read_schema
from clew.storage.writing import put_in_place, sync_folder


def ensure_manifest(store: Path) -> str | None:
    """Rebuilds the manifest from the shards if it is missing or unreadable, and says so if it did.

    Other half-written files are left to `verify_store` and the next run.
    """
    try:
        read_manifest(store)
        return None
    except (OtherVersionError, AccessDeniedError, UnreachableError):
        raise
    except StoreError:
        shards = [name for name in shard_files(store) if name.endswith(".arrow")]
        if not shards or not _can_replace(store / MANIFEST_NAME):
            raise
    found = (_read_schema(store, name) for name in shards)
    schemas = [schema for schema in found if schema is not None]
    origins = [origin.manifest for schema in schemas if (origin := read_origin(schema)) is not None]
    if not origins:
        raise StoreError(
            f"{store} has no readable manifest, and {_no_origin(len(schemas), len(shards))}"
        )
    with writer_lock(store, Part()), changing_manifest(store):
        write_manifest(store, _rebuild(store, origins))
    return "the manifest was missing or unreadable: rebuilt it from the shards"


def _read_schema(store: Path, name: str) -> pa.Schema | None:
    with fetched(store, name) as path:
        return read_schema(path) if describe_irregular(path) is None else None


def _can_replace(manifest: Path) -> bool:
    """Whether it is missing, or a file whose content was read. One that may not be read is kept."""
    return irregular_kind(manifest) is None and (
        not manifest.exists() or os.access(manifest, os.R_OK)
    )


def _rebuild(store: Path, origins: Sequence[Manifest]) -> Manifest:
    manifest = _join_origins(_largest_group(origins))
    found: dict[str, str] = {}
    for name in open_place(store).names():
        if name.endswith(".arrow") and not name.startswith("batch_"):
            with fetched(store, name) as side:
                found[name] = hash_file(side)
    return replace(manifest, files={**found, **manifest.files})


def _largest_group(origins: Sequence[Manifest]) -> list[Manifest]:
    """The origins of one store: that of most shards. Others are reported as foreign later."""
    groups: list[list[Manifest]] = []
    for origin in origins:
        group = next((g for g in groups if find_other_store(origin, g[0]) is None), None)
        if group is None:
            groups.append([origin])
        else:
            group.append(origin)
    return max(groups, key=len)


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


def _no_origin(readable: int, shards: int) -> str:
    if not readable:
        return (
            f"none of its shards ({shards}) can be read either: restore it from a backup, or "
            "extract or convert again into another folder."
        )
    return (
        f"its shards do not record how they were created: {readable} of {shards} can be "
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
    # Foreign files first: damaged shards are renamed to names that these may occupy.
    ordered = sorted(problems, key=lambda problem: problem.kind != "foreign")
    with writer_lock(store, Part()):
        return done + [line for problem in ordered for line in _repair_one(store, problem)]


def _repair_one(store: Path, problem: Problem) -> list[str]:
    rows = counted(problem.lost_rows, "row")
    lost = f"{rows} lost, to be re-created" if problem.lost_rows else "none lost"
    if problem.kind == "missing":
        _forget_shard(store, problem.batch_number)
        return [f"removed {problem.file} from the manifest; {lost}"]
    if problem.kind == "foreign":
        return [f"{_move_aside(store, problem.file)}; {lost}"]
    if problem.kind in ("damaged", "rows"):
        with fetched(store, problem.file) as path:
            return [f"{_keep_intact_rows(store, path)}; {lost}"]
    if problem.kind == "unlisted":
        with fetched(store, problem.file) as path:
            return [_adopt_shard(store, path)]
    return []


def _move_aside(store: Path, file: str) -> str:
    """Rename what is not this store's, under a name that clew does not look at. A link is renamed,
    not followed."""
    number = batch_number_of(file)
    entry = None if number is None else read_manifest(store).shard(number)
    if entry is not None and entry.file == file:
        _forget_shard(store, number)
    names = (f"{file}.foreign{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    if isinstance(store, UrlPath):
        aside = _move_object(store, file, names)
    else:
        aside = next(name for name in names if not os.path.lexists(store / name))
        os.rename(store / file, store / aside)
        sync_folder(store)
    return f"moved {file}, which is not part of this store, to {aside}"


def _move_object(store: Path, file: str, names: Iterator[str]) -> str:
    place = open_place(store)
    with fetched(store, file) as path:
        aside = next(name for name in names if place.create(name, path))
    place.delete(file)
    return aside


def _keep_intact_rows(store: Path, path: Path) -> str:
    """Turn a damaged shard back into a `.part` file, or rewrite it if no run resumes from `.part`
    files. A link is rewritten too: nothing is ever written through one."""
    number = batch_number_of(path.name)
    assert number is not None  # files with other names are not looked at
    first = next(read_intact_batches(path), None)
    kept = counted(count_intact(path), "intact row")
    rewrite = read_manifest(store).planned_rows is None or path.is_symlink()
    if rewrite and first is not None:
        # The writer takes over the intact rows of the old file, then replaces it.
        writer = open_writer(store, number, first.schema, id_column=ID_COLUMN)
        add_shard(store, writer.finish())
        return f"rewrote {path.name} with its {kept}"
    if path.is_symlink():
        return _move_aside(store, path.name)
    # First the manifest, then the rename: a crash in between leaves an unlisted shard, which the
    # next run recovers just the same.
    _forget_shard(store, number)
    if isinstance(store, UrlPath):
        _keep_as_piece(store, number, path)
    elif not os.path.lexists(path.with_suffix(".arrow.part")):
        # The next run takes over the rows of both.
        put_in_place(path, path.with_suffix(".arrow.part"))
    return f"marked {path.name} as half-written, keeping its {kept}"


def _keep_as_piece(store: Path, number: int, path: Path) -> None:
    """Without the permission to delete, the object stays: the next run takes over its rows too, and
    replaces it."""
    unfinished_pieces(store, number).create("000000-damaged.part", path)
    with suppress(AccessDeniedError):
        open_place(store).delete(path.name)


def _forget_shard(store: Path, batch_number: int | None) -> None:
    def forget(manifest: Manifest) -> Manifest:
        kept = tuple(s for s in manifest.shards if s.batch_number != batch_number)
        return replace(manifest, shards=kept)

    update_manifest(store, forget)


def _adopt_shard(store: Path, path: Path) -> str:
    try:
        rows = ShardReader(path).count_rows()
    except StoreError:
        rows = -1
    # The manifest has no hash for it: only the checksums of its record batches can tell.
    if rows != count_intact(path):
        return f"{_keep_intact_rows(store, path)}: it was incomplete"
    entry = ShardEntry(
        batch_number=int(path.stem.split("_")[1]),
        file=path.name,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=hash_file(path),
    )
    add_shard(store, entry)
    return f"added {path.name} with {counted(rows, 'row')} to the manifest"


def add_shard(store: Path, entry: ShardEntry) -> Manifest:
    """Adds a finished shard to the manifest, replacing an older entry with the same number."""
    return update_manifest(store, lambda manifest: with_shard(manifest, entry))


def with_shard(manifest: Manifest, entry: ShardEntry, notes: Sequence[str] = ()) -> Manifest:
    """The manifest with a finished shard, and with the notes that it does not have yet."""
    others = tuple(s for s in manifest.shards if s.batch_number != entry.batch_number)
    shards = sorted((*others, entry), key=lambda s: s.batch_number)
    new = tuple(note for note in notes if note not in manifest.notes)
    return replace(manifest, shards=tuple(shards), notes=(*manifest.notes, *new))


def commit_shard(
    store: Path, writer: ShardWriter, entry: ShardEntry, notes: Sequence[str] = ()
) -> bool:
    """Adds the shard that a writer has completed, unless another worker has finished it or taken it
    over (False): what this one wrote is then dropped."""
    if isinstance(writer, UploadingWriter):
        return _commit_upload(store, writer, entry, notes)
    with manifest_lock(store):
        manifest = read_manifest(store)
        if not writer.is_current or _is_listed(manifest, entry):
            writer.drop()
            return False
        writer.put_in_place()
        write_manifest(store, with_shard(manifest, entry, notes))
    return True


def _is_listed(manifest: Manifest, entry: ShardEntry) -> bool:
    listed = manifest.shard(entry.batch_number)
    return listed is not None and listed.rows >= entry.rows


def _commit_upload(
    store: Path, writer: UploadingWriter, entry: ShardEntry, notes: Sequence[str]
) -> bool:
    manifest = read_manifest(store)
    if _is_listed(manifest, entry):
        writer.drop()
        return False
    put = writer.upload(entry, grows=manifest.shard(entry.batch_number) is not None)

    def add(manifest: Manifest) -> Manifest:
        return manifest if _is_listed(manifest, put) else with_shard(manifest, put, notes)

    manifest = update_manifest(store, add)
    writer.clear()
    return manifest.shard(put.batch_number) == put
