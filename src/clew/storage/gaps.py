"""Which rows of a store have not been created yet."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clew.storage.manifest import Manifest

# Shards that are listed one by one; the rest is counted.
_MAX_GAPS = 100


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A shard that lacks `missing` of its `rows`."""

    batch_number: int
    missing: int
    rows: int


def expected_rows(manifest: Manifest, batch_number: int) -> int:
    """The rows a shard must have: as planned, or as many valid records as its source had."""
    planned, size = manifest.planned_rows, manifest.rows_per_shard
    if planned is not None:
        return max(0, min(size, planned - batch_number * size))
    return _rows_of_sources(manifest).get(batch_number, 0)


def _rows_of_sources(manifest: Manifest) -> dict[int, int]:
    unfit = Counter(skip.get("file") for skip in manifest.skipped if skip.get("record") is not None)
    return {
        number: source["records"] - unfit[source["file"]]
        for number, source in manifest.sources.items()
        if "records" in source
    }


def find_gaps(manifest: Manifest, reported: Collection[int | None]) -> tuple[list[Gap], int]:
    """The first shards with missing rows, and the number of missing rows beyond them. Shards in
    `reported` are not gaps, even if the manifest does not list them."""
    made = {shard.batch_number: shard.rows for shard in manifest.shards}
    expected = _rows_of_sources(manifest)
    if manifest.planned_rows is not None:
        numbers = {*made, *_first_unmade(manifest, {*made, *reported})}
        expected = {n: expected_rows(manifest, n) for n in numbers}
    gaps = [
        Gap(batch_number=n, missing=rows - made.get(n, 0), rows=rows)
        for n, rows in sorted(expected.items())
        if rows > made.get(n, 0) and n not in reported
    ][:_MAX_GAPS]
    if manifest.planned_rows is None or len(gaps) < _MAX_GAPS:
        return gaps, 0
    here = sum(min(rows, expected_rows(manifest, n)) for n, rows in made.items())
    in_part = {n for n in reported if n is not None and n not in made}
    here += sum(expected_rows(manifest, n) for n in in_part)
    listed = sum(gap.missing for gap in gaps)
    return gaps, max(0, manifest.planned_rows - here - listed)


def _first_unmade(manifest: Manifest, known: Collection[int | None]) -> Iterator[int]:
    """The first shards without a file; a manifest may plan more than could ever be listed."""
    count = -(-(manifest.planned_rows or 0) // manifest.rows_per_shard)
    return itertools.islice((n for n in range(count) if n not in known), _MAX_GAPS)
