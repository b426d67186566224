"""Bytes on disk: Arrow shards, their manifest, locks and checks. Knows nothing above it."""

from clew.storage.files import CachedFiles, MappedFiles, ReadFiles, ShardFiles
from clew.storage.layout import ColumnLayout, ShardLayout, read_layout
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import Manifest, ShardEntry, read_manifest
from clew.storage.manifest_fields import shard_name
from clew.storage.reader import SchemaCheck, ShardReader, StoreReader, open_shard, read_value
from clew.storage.repair import add_shard, ensure_manifest, repair_store
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
    "ensure_manifest",
    "open_shard",
    "read_intact_batches",
    "read_layout",
    "read_manifest",
    "read_value",
    "repair_store",
    "shard_name",
    "verify_store",
    "writer_lock",
]
