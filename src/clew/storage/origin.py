"""Which store a shard belongs to. Every shard carries the settings of its store and its own number
in the metadata of its schema; rows of another store or number are never taken for this one's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.errors import StoreError
from clew.base.settings import find_differences, with_current_names
from clew.base.texts import for_terminal, shortened
from clew.base.typed_json import read_as
from clew.storage.manifest import Manifest, RowCount, build_manifest
from clew.storage.reading import parse_json

ID_COLUMN = "global_example_id"
_ORIGIN_KEY = b"clew"
_NUMBER = "batch_number"
_STORE = ("kind", "settings", "rows_per_shard", "planned_rows")
_FIELDS = (*_STORE, "files", "clew_version", "created")
# Shards of one store may differ in these: the machine, the name a model was loaded as, what grows
# (scores), and the source of each shard, which is compared by itself.
_MAY_DIFFER = ("machine.", "model.id", "model.revision", "scores.", "source.", "sources")
# Settings that identify the data that a store was made from.
_DATA = ("questions", "source", "sources")
_MAX_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The store that a shard was written for, without its shards, and the shard's number. Shards
    of earlier versions do not have a number."""

    manifest: Manifest
    batch_number: int | None


def describe_in_schema(schema: pa.Schema, manifest: Manifest) -> pa.Schema:
    """The schema with the manifest's settings in its metadata: shards describe themselves."""
    return _with_origin(schema, {name: getattr(manifest, name) for name in _FIELDS})


def number_in_schema(schema: pa.Schema, batch_number: int) -> pa.Schema:
    """A schema from `describe_in_schema`, for one shard. Any other schema stays as it is."""
    origin = (schema.metadata or {}).get(_ORIGIN_KEY)
    if origin is None:
        return schema
    return _with_origin(schema, {**json.loads(origin), _NUMBER: batch_number})


def _with_origin(schema: pa.Schema, origin: Mapping[str, Any]) -> pa.Schema:
    return schema.with_metadata({**(schema.metadata or {}), _ORIGIN_KEY: _encode(origin)})


def _encode(origin: Mapping[str, Any]) -> bytes:
    return json.dumps(origin, ensure_ascii=False).encode()


def read_origin(schema: pa.Schema) -> Origin | None:
    """Where a shard comes from; None if it does not say so, or what it says is damaged."""
    found = (schema.metadata or {}).get(_ORIGIN_KEY)
    if found is None:
        return None
    try:
        raw = parse_json(found)
        number = raw.pop(_NUMBER, None) if isinstance(raw, dict) else None
        number = read_as(RowCount | None, number)
        return Origin(manifest=build_manifest(raw), batch_number=number)
    except ValueError:
        return None


def find_foreign(
    schema: pa.Schema, manifest: Manifest, batch_number: int, *, listed: bool = False
) -> str | None:
    """Why a shard with this schema is not shard `batch_number` of the store, None if it is. A file
    that does not say where it comes from belongs to the store only if the manifest lists it."""
    if _is_as_written(schema, manifest, batch_number):
        return None
    origin = read_origin(schema)
    if origin is None:
        return None if listed else "does not record which store it belongs to"
    return find_other_store(origin.manifest, manifest) or _find_other_number(
        origin, manifest, batch_number
    )


def _is_as_written(schema: pa.Schema, manifest: Manifest, batch_number: int) -> bool:
    """Whether a shard carries exactly what the store writes now, which is usual and faster to
    compare than to parse."""
    origin = {name: getattr(manifest, name) for name in _FIELDS}
    if manifest.sources:
        here = manifest.sources.get(batch_number)
        origin["settings"] = {**manifest.settings, "sources": [here] if here else []}
    return (schema.metadata or {}).get(_ORIGIN_KEY) == _encode({**origin, _NUMBER: batch_number})


def find_other_store(origin: Manifest, manifest: Manifest) -> str | None:
    """Why the two describe different stores, None if they describe the same."""
    if origin.kind != manifest.kind:
        return f'contains {shortened(origin.kind)}, but the store contains "{manifest.kind}"'
    if origin.settings == manifest.settings and origin.rows_per_shard == manifest.rows_per_shard:
        return _find_other_files(origin, manifest)
    different = find_differences(
        {**origin.settings, "shard_size": origin.rows_per_shard},
        {**with_current_names(manifest.settings), "shard_size": manifest.rows_per_shard},
        _MAY_DIFFER,
    )
    if different:
        shown = "; ".join(
            f"{for_terminal(one.name)[:80]}: {shortened(one.before)}, here {shortened(one.now)}"
            for one in different[:_MAX_SHOWN]
        )
        more = "; ..." if len(different) > _MAX_SHOWN else ""
        return f"was written with other settings ({shown}{more})"
    if _source_hash(origin) != _source_hash(manifest):
        return "was created from other traces"
    return _find_other_files(origin, manifest)


def _find_other_files(origin: Manifest, manifest: Manifest) -> str | None:
    for name in sorted(origin.files.keys() & manifest.files.keys()):
        if origin.files[name] != manifest.files[name]:
            return f"was written with another {name}"
    names_data = any(name in manifest.settings for name in _DATA)
    if not names_data and origin.created != manifest.created:
        return f"was written for a store created on {for_terminal(origin.created)[:40]}"
    return None


def _find_other_number(origin: Origin, manifest: Manifest, batch_number: int) -> str | None:
    found, sources = origin.batch_number, origin.manifest.settings.get("sources", [])
    if found is None and len(sources) == 1:
        found = sources[0][_NUMBER]
    if found not in (None, batch_number):
        return f"is shard {found}, not shard {batch_number}"
    for source in sources:
        here = manifest.sources.get(source[_NUMBER])
        if here is not None and here["sha256"] != source["sha256"]:
            return f"was created from other content of {for_terminal(source['file'])[:80]}"
    return None


def _source_hash(manifest: Manifest) -> Any:
    source = manifest.settings.get("source")
    return source.get("sha256") if isinstance(source, dict) else None


def has_fixed_ids(manifest: Manifest) -> bool:
    """Whether the ids of a shard follow from its number: those of a store that plans its rows or
    names the source of each shard."""
    return manifest.planned_rows is not None or "sources" in manifest.settings


def find_foreign_ids(ids: np.ndarray, manifest: Manifest, batch_number: int) -> str | None:
    """Why these are not the ids of shard `batch_number`, None if they are."""
    if len(np.unique(ids)) != len(ids):
        return f"has {len(ids) - len(np.unique(ids)):,} rows more than once"
    if not len(ids) or not has_fixed_ids(manifest):
        return None
    planned = manifest.planned_rows
    first = batch_number * manifest.rows_per_shard
    end = first + manifest.rows_per_shard
    end = end if planned is None else max(first, min(end, planned))
    if ids.min() < first or ids.max() >= end:
        return (
            f"has rows {ids.min()} to {ids.max()}, but shard {batch_number} of the store holds "
            f"rows {first} to {end - 1}"
        )
    return None


def foreign_error(path: Path, reason: str) -> StoreError:
    """The error about a file that is not this store's; it is never read, changed or deleted."""
    return StoreError(
        f"{path.name} in {path.parent} {reason}. It is left as it is; a repair moves it aside.",
        action="repair",
        store=path.parent,
    )
