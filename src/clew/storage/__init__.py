"""Bytes on disk: Arrow shards, their manifest, locks and checks. Knows nothing above it."""
