"""Open the store that a capture writes to: a new one, or the same one again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clew.errors import StoreError
from clew.hallucination.traces.schema import ANSWER_HIDDEN
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    manifest_lock,
    read_manifest,
    write_manifest,
)
from clew.storage.settings import refuse_other_settings
from clew.version import __version__

# What describes the machine, not the traces: a resumed run may differ in it.
MACHINE_KEY = "machine"
# A model's fingerprint tells whether it is the same, under whatever name it was loaded.
# A store begun before the answers' mean states were recorded goes on without them.
_MAY_DIFFER = (f"{MACHINE_KEY}.", "model.id", "model.revision", ANSWER_HIDDEN)


def open_trace_store(
    store: Path,
    *,
    settings: Mapping[str, Any],
    rows_per_shard: int,
    planned_rows: int,
    skipped: Sequence[Mapping[str, Any]],
) -> Manifest:
    """Begin a store, or check that the one there was begun with the same settings.

    More rows than before are fine: the store grows. Raises SettingsMismatchError with both
    values of every setting that differs.
    """
    with manifest_lock(store):
        if not (store / MANIFEST_NAME).exists():
            refuse_foreign_folder(store)
            write_manifest(
                store,
                Manifest(
                    kind="traces",
                    settings=dict(settings),
                    rows_per_shard=rows_per_shard,
                    planned_rows=planned_rows,
                    skipped=tuple(dict(entry) for entry in skipped),
                    clew_version=__version__,
                ),
            )
        manifest = read_manifest(store)
        _refuse_other_settings(store, manifest, settings, rows_per_shard)
        if planned_rows >= (manifest.planned_rows or 0):
            left_out = tuple(dict(entry) for entry in skipped)
            now = replace(manifest, planned_rows=planned_rows, skipped=left_out)
            if now != manifest:
                write_manifest(store, now)
            manifest = now
    return manifest


def refuse_foreign_folder(store: Path) -> None:
    """Raises StoreError when a folder holds something, but no store: nothing is mixed up."""
    if not store.is_dir() or (store / MANIFEST_NAME).exists():
        return
    # A run killed while it wrote its first manifest leaves a .tmp.
    names = sorted(path.name for path in store.iterdir())
    entries = [name for name in names if not name.startswith(".") and not name.endswith(".tmp")]
    if any(name.startswith("batch_") for name in entries):
        raise StoreError(
            f'"{store}" has shards but no {MANIFEST_NAME}', action="repair", store=store
        )
    if entries:
        raise StoreError(
            f'"{store}" is neither empty nor a clew store (it holds {", ".join(entries[:3])}'
            f"{', ...' if len(entries) > 3 else ''}): choose another `out`."
        )


def _refuse_other_settings(
    store: Path, manifest: Manifest, settings: Mapping[str, Any], rows_per_shard: int
) -> None:
    if manifest.kind != "traces":
        raise StoreError(f'"{store}" holds {manifest.kind}, not traces: choose another `out`.')
    refuse_other_settings(
        store,
        {**manifest.settings, "batch_size": manifest.rows_per_shard},
        {**settings, "batch_size": rows_per_shard},
        _MAY_DIFFER,
    )
