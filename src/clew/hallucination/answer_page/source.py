"""Finds the traces and the scores that samples were made from: nearby, and verified by their
hashes."""

from pathlib import Path
from typing import Any

from clew.base.errors import StoreError
from clew.storage import read_manifest
from clew.storage.hashing import hash_file
from clew.storage.manifest import MANIFEST_NAME

SAMPLE_FOLDERS = ("sequences", "graphs", "answers", "heads")


def find_traces(samples: Path) -> Path | None:
    """The store of traces nearby that holds every shard the samples were made from."""
    sources = _sample_settings(samples).get("sources")
    if not isinstance(sources, list) or not sources:
        return None
    wanted = {source.get("sha256") for source in sources if isinstance(source, dict)}
    found = (store for folder in near(samples) for store in trace_stores_in(folder))
    return next((store for store in found if wanted <= _shard_hashes(store)), None)


def find_scores(samples: Path) -> Path | None:
    """The scores file nearby that the samples were labeled with."""
    scores = _sample_settings(samples).get("scores")
    name, wanted = (_text(scores, key) for key in ("file", "sha256"))
    if name is None or wanted is None:
        return None
    paths = (folder / Path(name).name for folder in near(samples))
    return next((path for path in paths if path.is_file() and hash_file(path) == wanted), None)


def source_name(samples: Path) -> str | None:
    """The name of the store that the samples were made from."""
    return _text(_sample_settings(samples).get("source"), "store")


def near(path: Path) -> list[Path]:
    return [path, path.absolute().parent, path.absolute().parent.parent]


def trace_stores_in(folder: Path) -> list[Path]:
    found = []
    for manifest in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        try:
            if read_manifest(manifest.parent).kind == "traces":
                found.append(manifest.parent)
        except StoreError:
            continue  # not a store, or a damaged one
    return found


def _sample_settings(samples: Path) -> dict[str, Any]:
    for folder in (samples, *(samples / name for name in SAMPLE_FOLDERS)):
        if (folder / MANIFEST_NAME).exists():
            return dict(read_manifest(folder).settings)
    return {}


def _shard_hashes(store: Path) -> set[str]:
    return {shard.sha256 for shard in read_manifest(store).shards}


def _text(value: Any, key: str) -> str | None:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None
