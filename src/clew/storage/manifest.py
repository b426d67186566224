"""manifest.json: what a store is, how it was made, and which shards are finished."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa

from clew.errors import OtherVersionError, SettingsMismatchError, StoreError
from clew.settings import find_differences
from clew.storage.writing import replace_file

MANIFEST_NAME = "manifest.json"
FORMAT = "clew-store"
SCHEMA_VERSION = 1
ORIGIN_KEY = b"clew"
_UNTOUCHED = "The shards beside it are untouched; a repair rebuilds the manifest from them."
_ORIGIN_FIELDS = ("kind", "settings", "rows_per_shard", "planned_rows", "clew_version", "created")


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One finished shard: its file, its row count, and the hash of its bytes."""

    batch_number: int
    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A store's description of itself. `settings` identify it: a run with different ones is
    refused."""

    kind: str
    settings: dict[str, Any]
    rows_per_shard: int
    planned_rows: int | None
    shards: tuple[ShardEntry, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    skipped: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    clew_version: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def shard(self, batch_number: int) -> ShardEntry | None:
        return next((s for s in self.shards if s.batch_number == batch_number), None)


def describe_in_schema(schema: pa.Schema, manifest: Manifest) -> pa.Schema:
    """The schema with the manifest's settings in its metadata: shards describe themselves."""
    origin = {name: getattr(manifest, name) for name in _ORIGIN_FIELDS}
    return schema.with_metadata({ORIGIN_KEY: json.dumps(origin, ensure_ascii=False).encode()})


def manifest_from_schema(schema: pa.Schema) -> Manifest | None:
    """The manifest, without its shards, that `describe_in_schema` stored in a shard."""
    origin = (schema.metadata or {}).get(ORIGIN_KEY)
    return Manifest(**json.loads(origin)) if origin else None


def shard_name(batch_number: int) -> str:
    """The file name of a shard: four digits as in legacy files, more when needed."""
    return f"batch_{batch_number:04d}.arrow"


def read_manifest(store: Path) -> Manifest:
    """Reads a store's manifest; raises StoreError when it is missing or invalid."""
    path = store / MANIFEST_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _explain_missing(store) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): check its permissions."
        ) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}). {_UNTOUCHED}", action="repair", store=store
        ) from None
    return parse_manifest(raw, path)


def parse_manifest(raw: Any, path: Path) -> Manifest:
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(
            f'{path} is not a clew manifest (it has no "format": "{FORMAT}"). Check the path.'
        )
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise OtherVersionError(
            f"{path} has schema version {raw.get('schema_version')}, but this version of clew "
            f"reads version {SCHEMA_VERSION}. Use the version of clew that wrote it: "
            f"{raw.get('clew_version', 'unknown')}."
        )
    raw = dict(raw)
    try:
        raw["shards"] = tuple(ShardEntry(**entry) for entry in raw.get("shards", ()))
        raw["skipped"] = tuple(raw.get("skipped", ()))
        raw["notes"] = tuple(raw.get("notes", ()))
        manifest = Manifest(**raw)
        _check_fields(manifest)
        return manifest
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{path} is damaged ({error}). {_UNTOUCHED}", action="repair", store=path.parent
        ) from None


def _check_fields(manifest: Manifest) -> None:
    """Validate a manifest; raises ValueError. Above all, no file name may point outside the store,
    because a repair renames files."""
    for shard in manifest.shards:
        if shard.file != shard_name(shard.batch_number):
            raise ValueError(
                f"shard {shard.batch_number} has the unexpected file name {shard.file!r:.80}"
            )
        if not all(_is_count(number) for number in (shard.rows, shard.bytes)):
            raise ValueError(f"{shard.file}: {shard.rows!r:.20} rows, {shard.bytes!r:.20} bytes")
    for name in manifest.files:
        if Path(name).name != name or not isinstance(manifest.files[name], str):
            raise ValueError(f"invalid file name {name!r:.80}")
    if not _is_count(manifest.rows_per_shard) or manifest.rows_per_shard == 0:
        raise ValueError(f"rows_per_shard is {manifest.rows_per_shard!r:.20}")
    if manifest.planned_rows is not None and not _is_count(manifest.planned_rows):
        raise ValueError(f"planned_rows is {manifest.planned_rows!r:.20}")
    if not all(isinstance(value, dict) for value in (manifest.settings, *manifest.skipped)):
        raise ValueError("settings or skipped have an unexpected format")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def write_manifest(store: Path, manifest: Manifest) -> None:
    """Replaces the manifest atomically: readers see the old one or the new one, never a partial
    file."""
    replace_file(
        store / MANIFEST_NAME,
        (json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n").encode(),
    )


def update_manifest(store: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Reads, changes and replaces the manifest under a lock that other processes respect."""
    with manifest_lock(store):
        manifest = change(read_manifest(store))
        write_manifest(store, manifest)
    return manifest


def manifest_lock(store: Path) -> filelock.BaseFileLock:
    """The lock held briefly while the manifest changes."""
    return filelock.FileLock(store / ".manifest.lock")


def _explain_missing(store: Path) -> StoreError:
    if not store.exists():
        return StoreError(
            f'there is no store at "{store}": the folder does not exist. Check the path.'
        )
    if not store.is_dir():
        return StoreError(f'"{store}" is a file: give the folder of the store.')
    if any(store.glob("batch_*.arrow*")):
        return StoreError(
            f'"{store}" has shards but no {MANIFEST_NAME}; a repair rebuilds it from them.',
            action="repair",
            store=store,
        )
    if any(any(store.glob(f"{folder}*{end}")) for folder in ("", "*/") for end in (".pkl*", ".pt")):
        return StoreError(
            f'"{store}" contains legacy files, not a clew store',
            action="convert",
            store=store,
        )
    return StoreError(f'"{store}" is not a clew store: it has no {MANIFEST_NAME}. Check the path.')


def refuse_other_settings(
    store: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: tuple[str, ...]
) -> None:
    """Compare the settings of a store and a run: raises SettingsMismatchError with both values of
    every difference. Names that start with one of `may_differ` are ignored."""
    different = find_differences(before, now, may_differ)
    if different:
        raise SettingsMismatchError(
            f'the store "{store}" was started with different settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same settings to resume it, or another `out` to start a new one."
        )
