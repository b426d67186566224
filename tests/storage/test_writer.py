"""A shard appears complete or not at all, and an interrupted attempt loses only its torn end."""

from pathlib import Path

import pytest

from clew.base.errors import DiskFullError
from clew.storage.arrow import checksum_batch
from clew.storage.reader import ShardReader
from clew.storage.reading import hash_file, hash_text
from clew.storage.writer import ShardWriter, read_intact_batches
from tests.stores import SCHEMA, flip_byte, largest_file, make_rows, read_rows, write_groups

WHOLE = {row["global_example_id"]: row for row in make_rows(range(12)).to_pylist()}
GROUPS = [set(range(0, 4)), set(range(4, 8)), set(range(8, 12))]


def open_writer(store: Path, number: int = 0) -> ShardWriter:
    return ShardWriter(store, number, SCHEMA, id_column="global_example_id")


def finished_bytes(folder: Path) -> tuple[bytes, list[int]]:
    """A finished shard's bytes, and where each of its three record batches ends."""
    folder.mkdir()
    writer = open_writer(folder)
    ends = write_groups(writer)
    writer.finish()
    return writer.path.read_bytes(), ends


def test_readers_see_no_shard_before_it_is_finished(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.write(make_rows(range(4)))
    assert not writer.path.exists()
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["batch_0000.arrow.part"]
    writer.finish()
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["batch_0000.arrow"]


def test_entry_of_a_finished_shard_matches_the_file(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, number=7)
    writer.write(make_rows([84, 85]))
    entry = writer.finish()
    assert (entry.file, entry.batch_number, entry.rows) == ("batch_0007.arrow", 7, 2)
    assert entry.bytes == writer.path.stat().st_size
    assert entry.sha256 == hash_file(writer.path)


def test_record_batch_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.write(make_rows(range(4)))
    part = tmp_path / "batch_0000.arrow.part"
    assert sum(batch.num_rows for batch in read_intact_batches(part)) == 4
    writer.abandon()


@pytest.mark.slow
def test_every_truncation_keeps_exactly_the_complete_record_batches(tmp_path: Path) -> None:
    """In the magic, the schema, a header, a body, the footer, and right at every boundary."""
    content, ends = finished_bytes(tmp_path / "whole")
    part = tmp_path / "batch_0000.arrow.part"
    around_ends = (end + step for end in ends for step in (-1, 0, 1))
    for length in (*range(0, len(content), 5), *around_ends, len(content)):
        part.write_bytes(content[:length])
        kept = {
            i for batch in read_intact_batches(part, SCHEMA) for i in batch.column(0).to_pylist()
        }
        complete = sum(end <= length for end in ends)
        assert kept == set().union(*GROUPS[:complete]), f"cut after {length} bytes"


@pytest.mark.parametrize("place", ["magic", "schema", "header", "body", "boundary", "footer"])
def test_next_writer_takes_over_and_finishes_a_truncated_shard(tmp_path: Path, place: str) -> None:
    content, ends = finished_bytes(tmp_path / "whole")
    length, kept = {
        "magic": (5, 0),
        "schema": (40, 0),
        "header": (ends[0] + 12, 1),
        "body": (ends[1] - 30, 1),
        "boundary": (ends[1], 2),
        "footer": (len(content) - 9, 3),
    }[place]
    (tmp_path / "batch_0000.arrow.part").write_bytes(content[:length])
    writer = open_writer(tmp_path)
    assert writer.recovered_ids == set().union(*GROUPS[:kept])
    write_groups(writer)
    assert writer.finish().rows == 12
    assert read_rows(writer.path) == WHOLE
    assert sorted(p.name for p in tmp_path.glob("[!.]*")) == ["batch_0000.arrow", "whole"]


@pytest.mark.parametrize("copied", [0, 5, 40, 700])
def test_killed_recovery_starts_over(tmp_path: Path, copied: int) -> None:
    """The old rows stay safe under `.recovered` until all of them are copied."""
    content, ends = finished_bytes(tmp_path / "whole")
    (tmp_path / "batch_0000.arrow.recovered").write_bytes(content[: ends[1]])
    (tmp_path / "batch_0000.arrow.part").write_bytes(content[:copied])
    writer = open_writer(tmp_path)
    assert writer.recovered_ids == GROUPS[0] | GROUPS[1]
    write_groups(writer)
    writer.finish()
    assert read_rows(writer.path) == WHOLE


def test_finished_but_unlisted_shard_is_taken_over(tmp_path: Path) -> None:
    content, _ = finished_bytes(tmp_path / "whole")
    (tmp_path / "batch_0000.arrow").write_bytes(content)
    writer = open_writer(tmp_path)
    assert writer.recovered_ids == set(range(12))
    writer.finish()
    assert read_rows(writer.path) == WHOLE


@pytest.mark.slow
def test_flipped_byte_costs_at_most_one_record_batch(tmp_path: Path) -> None:
    """Whichever byte is wrong, no wrong row is ever accepted."""
    content, ends = finished_bytes(tmp_path / "whole")
    path = tmp_path / "batch_0000.arrow.part"
    for offset in range(0, len(content), 5):
        path.write_bytes(content)
        flip_byte(path, offset)
        rows = [row for batch in read_intact_batches(path, SCHEMA) for row in batch.to_pylist()]
        assert all(WHOLE[row["global_example_id"]] == row for row in rows), f"byte {offset}"
        if offset > ends[0]:
            assert GROUPS[0] <= {row["global_example_id"] for row in rows}, f"byte {offset}"


def test_rows_of_another_schema_are_not_mixed_in(tmp_path: Path) -> None:
    content, _ = finished_bytes(tmp_path / "whole")
    (tmp_path / "batch_0000.arrow.part").write_bytes(content)
    other = SCHEMA.remove(1)
    writer = ShardWriter(tmp_path, 0, other, id_column="global_example_id")
    assert writer.recovered_ids == set()
    writer.abandon()


def test_full_disk_is_reported_and_loses_one_record_batch(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk."""
    _, ends = finished_bytes(tmp_path / "whole")
    writer = open_writer(tmp_path)
    with largest_file(ends[1] + 10):
        with pytest.raises(
            DiskFullError, match="is full.*Free some space, then run the same command"
        ):
            write_groups(writer)
        writer.abandon()
    again = open_writer(tmp_path)
    assert again.recovered_ids == GROUPS[0] | GROUPS[1]
    again.abandon()


def test_full_disk_while_closing_a_shard_is_reported_too(tmp_path: Path) -> None:
    _, ends = finished_bytes(tmp_path / "whole")
    writer = open_writer(tmp_path)
    write_groups(writer)
    with largest_file(ends[2] + 10):
        with pytest.raises(DiskFullError, match="is full"):
            writer.finish()
        writer.abandon()
    assert not writer.path.exists()


def test_column_is_read_by_name(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    write_groups(writer)
    writer.finish()
    reader = ShardReader(writer.path)
    assert reader.read_column("global_example_id").to_pylist() == list(range(12))
    assert reader.locate("global_example_id", 9) == (2, 1)
    assert reader.locate("global_example_id", 12) is None


def test_checksums_detect_every_change_and_nothing_else() -> None:
    rows = make_rows(range(12))
    assert checksum_batch(rows.slice(4, 4)) == checksum_batch(make_rows(range(4, 8)))
    seen = {checksum_batch(make_rows([i])) for i in range(100)}
    assert len(seen) == 100


def test_hashes_are_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_file(tmp_path / "a").startswith("ba7816bf8f01cfea")
    assert hash_text("ab", "c") != hash_text("a", "bc")
