"""Bytes on disk: Arrow shards, their manifest, locks and checks. Knows nothing above it. Its names
are imported on first use: commands that only read a small JSON file load no Arrow."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:
    from clew.storage.files import CachedFiles, MappedFiles, ReadFiles, ShardFiles
    from clew.storage.layout import ColumnLayout, ShardLayout, read_layout
    from clew.storage.lock import Part, joined_lock, writer_lock
    from clew.storage.manifest import Manifest, ShardEntry, read_manifest, shard_name
    from clew.storage.reader import SchemaCheck, ShardReader, StoreReader, open_shard, read_value
    from clew.storage.repair import add_shard, commit_shard, ensure_manifest, repair_store
    from clew.storage.uploading import open_writer
    from clew.storage.verify import Problem, verify_store
    from clew.storage.writer import ShardWriter, read_intact_batches

__all__ = [
    "CachedFiles",
    "ColumnLayout",
    "Manifest",
    "MappedFiles",
    "Part",
    "Problem",
    "ReadFiles",
    "SchemaCheck",
    "ShardEntry",
    "ShardFiles",
    "ShardLayout",
    "ShardReader",
    "ShardWriter",
    "StoreReader",
    "add_shard",
    "commit_shard",
    "ensure_manifest",
    "joined_lock",
    "open_shard",
    "open_writer",
    "read_intact_batches",
    "read_layout",
    "read_manifest",
    "read_value",
    "repair_store",
    "shard_name",
    "verify_store",
    "writer_lock",
]
_HOMES = {
    "CachedFiles": "files",
    "MappedFiles": "files",
    "ReadFiles": "files",
    "ShardFiles": "files",
    "Part": "lock",
    "joined_lock": "lock",
    "writer_lock": "lock",
    "Manifest": "manifest",
    "ShardEntry": "manifest",
    "read_manifest": "manifest",
    "shard_name": "manifest",
    "ColumnLayout": "layout",
    "ShardLayout": "layout",
    "SchemaCheck": "reader",
    "ShardReader": "reader",
    "StoreReader": "reader",
    "open_shard": "reader",
    "read_layout": "layout",
    "read_value": "reader",
    "add_shard": "repair",
    "commit_shard": "repair",
    "ensure_manifest": "repair",
    "repair_store": "repair",
    "open_writer": "uploading",
    "Problem": "verify",
    "verify_store": "verify",
    "ShardWriter": "writer",
    "read_intact_batches": "writer",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
