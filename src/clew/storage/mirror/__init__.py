"""Stores at URLs, read through a bounded folder on this machine that all of its processes share:
small files are copied when a store is opened, shards when they are first needed."""

from clew.storage.mirror.ahead import ReadAhead, read_ahead
from clew.storage.mirror.cache import CacheFullError, Hold, hold_shard, is_cached
from clew.storage.mirror.folder import open_folder
from clew.storage.mirror.limits import read_limit
from clew.storage.mirror.path import MirrorFolder

__all__ = [
    "CacheFullError",
    "Hold",
    "MirrorFolder",
    "ReadAhead",
    "hold_shard",
    "is_cached",
    "open_folder",
    "read_ahead",
    "read_limit",
]
