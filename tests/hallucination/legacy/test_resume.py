"""A stopped conversion resumes; one that would mix sources is rejected."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew.base.errors import SettingsMismatchError, StoreError
from clew.hallucination.legacy import convert_folder
from clew.hallucination.legacy.formats import TraceFormat
from clew.hallucination.legacy.store import ConvertedStore
from clew.hallucination.traces import TraceBatchLoader
from clew.hallucination.traces.schema import Keep
from clew.storage.manifest import read_manifest
from clew.storage.reader import ShardReader
from clew.storage.reading import read_json
from clew.storage.verify import verify_store
from clew.storage.writing import replace_json
from tests.hallucination.legacy.old_files import write_traces
from tests.stores import edit_json_file, read_rows

pytestmark = pytest.mark.slow


def shard_bytes(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.glob("*.arrow"))}


def rows_of(store: Path) -> list[str]:
    """Every value of every row, in the order of the shards."""
    return [
        str(row) for path in sorted(store.glob("batch_*.arrow")) for row in read_rows(path).values()
    ]


def test_fixed_file_is_converted_and_removed_file_is_forgotten(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for batch in (0, 1, 2):
        write_traces(old, batch)
    for batch in (0, 2):
        (old / f"trivia_qa_traces_batch_{batch:04d}.pkl.gz").write_bytes(b"broken")
    assert len(convert_folder(old, new).skipped) == 2
    write_traces(old, 0)
    (old / "trivia_qa_traces_batch_0002.pkl.gz").unlink()
    result = convert_folder(old, new)
    assert (result.complete, result.files, result.already) == (True, 2, 1)
    assert read_manifest(new).skipped == ()


def test_store_started_by_earlier_version_resumes_with_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fit = TraceFormat.fit

    def fit_as_before(samples: list[Any], sizes: tuple[int, ...], keep: Keep) -> TraceFormat:
        form = fit(samples, sizes, keep)
        return TraceFormat(form.shape, keep, form.basis, answer_hidden=False, eigenvalues=0)

    write_traces(old, 0)
    with monkeypatch.context() as older:
        older.setattr(TraceFormat, "fit", fit_as_before)
        convert_folder(old, new)
    write_traces(old, 1)
    assert convert_folder(old, new).traces == 4
    first, second = (ShardReader(path).schema for path in sorted(new.glob("batch_*.arrow")))
    assert first.equals(second)
    assert "answer_hidden" not in first.names
    assert "laplacian_diagonal" in first.names and "laplacian_top" not in first.names


_KILLED_AT_SECOND_FILE = """
import os, signal, sys
from pathlib import Path
import clew.hallucination.legacy.store as store
import clew.storage.uploading as uploading
from clew.hallucination.legacy import convert_folder

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class DyingWriter(uploading.ShardWriter):
    def write(self, batch):
        super().write(batch)
        self._sink.sync()
        if self.batch_number == 1 and sys.argv[3] == "while writing":
            die()

    def finish(self):
        entry = super().finish()
        return die() if self.batch_number == 1 else entry

uploading.ShardWriter = DyingWriter
store._RECORD_BATCH_BYTES = 1
convert_folder(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["while writing", "before the manifest"])
def test_resume_after_kill_finishes_the_store(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.legacy.store._RECORD_BATCH_BYTES", 1)
    old, new = tmp_path / "old", tmp_path / "new"
    for batch in range(3):
        write_traces(old, batch)
    command = [sys.executable, "-c", _KILLED_AT_SECOND_FILE, str(old), str(new), moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(read_manifest(new).shards) == 1
    left = "batch_0001.arrow.part" if moment == "while writing" else "batch_0001.arrow"
    assert (new / left).stat().st_size > 0
    first = (new / "batch_0000.arrow").stat()
    result = convert_folder(old, new)
    assert (result.files, result.already, result.complete) == (3, 1, True)
    assert (new / "batch_0000.arrow").stat().st_mtime_ns == first.st_mtime_ns
    convert_folder(old, tmp_path / "unbroken")
    assert rows_of(new) == rows_of(tmp_path / "unbroken")
    assert verify_store(new) == []


def test_rows_of_another_source_are_never_mixed_in(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_traces(old, 0)
    convert_folder(old, new)
    # A partially written shard of batch 1, as a killed run leaves it; then a different batch 1.
    write_traces(old, 1, count=1)
    convert_folder(old, tmp_path / "killed")
    os.link(tmp_path / "killed" / "batch_0001.arrow", new / "batch_0001.arrow.part")
    write_traces(old, 1)
    convert_folder(old, new)
    ids = [trace["question_id"] for trace in TraceBatchLoader(new).get_batch(1)]
    assert ids == ["q100", "q101"]


def test_shard_under_the_name_of_another_is_kept_and_reported(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_traces(old, 0)
    convert_folder(old, new)
    write_traces(old, 1)
    os.link(new / "batch_0000.arrow", new / "batch_0001.arrow.part")
    with pytest.raises(StoreError, match=r"batch_0001.arrow.part in .* is shard 0, not shard 1"):
        convert_folder(old, new)
    assert (new / "batch_0001.arrow.part").exists()


def test_other_sources_for_the_same_batch_are_rejected(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_traces(old, 0)
    convert_folder(old, new)
    before = shard_bytes(new)
    write_traces(old, 0, count=1)
    write_traces(old, 1)
    with pytest.raises(SettingsMismatchError, match="shard 0 of .* has different content"):
        convert_folder(old, new)
    assert shard_bytes(new) == before


def test_resume_with_another_keep_is_rejected(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0)
    convert_folder(tmp_path / "old", tmp_path / "new")
    with pytest.raises(
        SettingsMismatchError, match='started with `keep="full"`, but `keep="compact"`'
    ):
        convert_folder(tmp_path / "old", tmp_path / "new", keep="compact")


def test_store_not_written_by_convert_is_left_unchanged(tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0)
    convert_folder(tmp_path / "old", tmp_path / "new")
    path = tmp_path / "new" / "manifest.json"
    edit_json_file(path, lambda text: text.replace('"convert"', '"extract"'))
    with pytest.raises(SettingsMismatchError, match='"clew convert" did not write'):
        ConvertedStore(tmp_path / "new", keep="full", files=[])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            {"settings": {"shape": {"layers": 1, "color": 2}}},
            "must contain layers.*from a backup",
        ),
        ({"settings": {"shape": {"dim": 9}}}, "basis.arrow .* has the shape"),
        ({"settings": {"shape": {"edges_per_token": 99}}}, "has other columns than the settings"),
        (
            {"skipped": [{"file": "a", "reason": "b", "color": 1}]},
            "color is unknown.*from a backup",
        ),
    ],
    ids=["unknown size", "another size", "other columns", "unknown member of a skip"],
)
def test_store_with_edited_settings_is_not_resumed(
    tmp_path: Path, edit: dict[str, Any], message: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_traces(old, 0)
    convert_folder(old, new)
    manifest = read_json(new / "manifest.json")
    if "settings" in edit:
        shape = {**manifest["settings"]["shape"], **edit["settings"]["shape"]}
        edit = {"settings": {**manifest["settings"], "shape": shape}}
        forget_origin(new / "batch_0000.arrow")
        manifest["shards"][0]["bytes"] = (new / "batch_0000.arrow").stat().st_size
    replace_json(new / "manifest.json", {**manifest, **edit})
    write_traces(old, 1)
    with pytest.raises(StoreError, match=message):
        convert_folder(old, new)


def forget_origin(shard: Path) -> None:
    """As an attacker would, who edits the settings."""
    reader = ShardReader(shard)
    batches = [reader.record_batch(index) for index in range(reader.num_record_batches)]
    shard.unlink()
    schema = reader.schema.remove_metadata()
    with pa.ipc.new_file(shard, schema) as file:
        for batch in batches:
            file.write_batch(batch.replace_schema_metadata(None))
