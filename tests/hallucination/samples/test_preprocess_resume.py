"""Resuming: after a kill, with a grown store, and rejecting what would mix samples."""

import shutil
import signal
from pathlib import Path

import pytest

from clew.base.errors import (
    ClewError,
    InputError,
    SettingsMismatchError,
    StoreError,
    StoreLockedError,
)
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.splits import read_splits
from clew.loading.splits import SPLIT_NAMES
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import write_manifest
from clew.storage.reader import StoreReader
from tests.hallucination.capture.processes import ClewProcess
from tests.hallucination.samples.trace_stores import (
    KINDS,
    read_samples,
    rewrite_rows,
    tiny_preprocess,
    write_scores,
)
from tests.stores import assert_same_store, edit_json_file, forget_shards

pytestmark = pytest.mark.slow


def assert_same_samples(found: Path, expected: Path) -> None:
    for kind in KINDS:
        assert_same_store(found / kind, expected / kind)
        ids = [[r["global_example_id"] for r in read_samples(f / kind)] for f in (found, expected)]
        assert ids[0] == ids[1]
    assert (found / "splits.csv").read_bytes() == (expected / "splits.csv").read_bytes()


@pytest.fixture(scope="session")
def pairs(compact_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 70 traces in 35 shards, so that there is time to kill."""
    return rewrite_rows(compact_store, tmp_path_factory.mktemp("pairs") / "store", 2)


@pytest.fixture(scope="session")
def whole(pairs: Path, scores_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of an uninterrupted run, one shard at a time."""
    out = tmp_path_factory.mktemp("whole") / "preprocessed"
    preprocess_store(tiny_preprocess(pairs, scores_file, out, workers=1))
    return out


@pytest.mark.parametrize("moment", ["sequences/manifest.json", "graphs/batch_0010.arrow"])
def test_resume_after_kill_gives_identical_store(
    pairs: Path, whole: Path, scores_file: Path, tmp_path: Path, moment: str
) -> None:
    out = tmp_path / "out"
    arguments = ["preprocess", str(pairs), "--scores-file", str(scores_file)]
    with ClewProcess([*arguments, "--out", str(out)], tmp_path / "log") as process:
        assert process.wait_until(lambda: (out / moment).exists()), process.output
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (out / "splits.csv").exists()
    finished = StoreReader(out / "sequences").shards if moment.startswith("graphs") else []
    before = {shard.file: (out / "sequences" / shard.file).stat().st_ino for shard in finished}
    preprocess_store(tiny_preprocess(pairs, scores_file, out))
    assert_same_samples(out, whole)
    # Finished shards were not written again.
    assert all((out / "sequences" / f).stat().st_ino == inode for f, inode in before.items())
    assert not list(out.rglob("*.part"))


def test_files_of_an_interrupted_run_are_removed(
    pairs: Path, whole: Path, scores_file: Path, tmp_path: Path
) -> None:
    """A shard that is not in the manifest yet, and half of another."""
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    forget_shards(out / "graphs", [3, 4])
    half = out / "graphs" / "batch_0004.arrow"
    (out / "graphs" / "batch_0004.arrow.part").write_bytes(half.read_bytes()[:3000])
    half.unlink()
    (out / "sequences" / "batch_0007.arrow").unlink()
    assert preprocess_store(tiny_preprocess(pairs, scores_file, out)).made == 6
    assert_same_samples(out, whole)
    assert not list(out.rglob("*.part"))


def test_second_run_has_nothing_to_do(
    compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(preprocessed, tmp_path / "out"))
    result = preprocess_store(tiny_preprocess(compact_store, scores_file, out))
    assert (result.samples, result.made) == (70, 0)
    assert_same_samples(out, preprocessed)


def test_number_of_workers_does_not_change_the_result(
    pairs: Path, whole: Path, scores_file: Path, tmp_path: Path
) -> None:
    assert preprocess_store(tiny_preprocess(pairs, scores_file, tmp_path, workers=8)).made == 70
    assert_same_samples(tmp_path, whole)


def test_grown_store_gets_only_its_new_shards(
    store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    whole = StoreReader(store).manifest
    forget_shards(store, [2, 3])
    out = tmp_path / "out"
    few = write_scores(tmp_path / "scores.csv", 40)
    assert preprocess_store(tiny_preprocess(store, few, out)).samples == 40
    before = {path: path.stat().st_ino for path in out.rglob("*.arrow")}
    old = read_splits(out / "splits.csv")
    write_manifest(store, whole)
    result = preprocess_store(tiny_preprocess(store, scores_file, out))
    assert (result.made, result.samples) == (30, 70)
    assert {path: path.stat().st_ino for path in before} == before
    assert read_splits(out / "splits.csv").split[:40].tolist() == old.split.tolist()
    assert_same_samples(out, preprocessed)


def test_grown_shard_is_written_again(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    """The last shard of a capture is short until there are more questions."""
    store = rewrite_rows(compact_store, tmp_path / "70", 70)
    short = rewrite_rows(compact_store, tmp_path / "50", 50)
    forget_shards(short, [1])
    out = tmp_path / "out"
    assert preprocess_store(tiny_preprocess(short, scores_file, out)).samples == 50
    old = read_splits(out / "splits.csv")
    assert preprocess_store(tiny_preprocess(store, scores_file, out)).samples == 70
    new = read_splits(out / "splits.csv")
    by_id = dict(zip(new.global_example_id.tolist(), new.split.tolist(), strict=True))
    assert [by_id[i] for i in old.global_example_id.tolist()] == old.split.tolist()
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "whole"))
    for kind in KINDS:
        assert_same_store(out / kind, tmp_path / "whole" / kind)


def test_new_scores_add_traces_that_were_skipped(
    compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    few = write_scores(tmp_path / "scores.csv", 65)
    out = tmp_path / "out"
    first = preprocess_store(tiny_preprocess(compact_store, few, out, skip_unlabeled=True))
    assert (first.samples, len(first.skipped), first.complete) == (65, 5, True)
    assert {skip["reason"] for skip in first.skipped} == {"it has no score in the scores file"}
    for kind in KINDS:  # as an earlier clew spelled it
        manifest = out / kind / "manifest.json"
        edit_json_file(manifest, lambda text: text.replace('"unlabeled"', '"unlabelled"'))
    again = preprocess_store(tiny_preprocess(compact_store, few, out, skip_unlabeled=True))
    assert (again.samples, len(again.skipped), again.complete) == (65, 5, True)
    second = preprocess_store(tiny_preprocess(compact_store, scores_file, out))
    assert (second.samples, second.skipped) == (70, ())
    for kind in KINDS:
        assert_same_store(out / kind, preprocessed / kind)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"top_k": 2}, "top_k: was 4, is now 2"),
        ({"score_threshold": 0.3}, "score_threshold: was 0.5, is now 0.3"),
        ({"attn_threshold": 0.1}, "attn_threshold: was 0.0, is now 0.1"),
        ({"split_by": "file"}, "split_by: was 'question', is now 'file'"),
    ],
)
def test_other_settings_are_rejected(
    compact_store: Path, preprocessed: Path, scores_file: Path, change: dict, sentence: str
) -> None:
    before = (preprocessed / "graphs" / "manifest.json").read_bytes()
    with pytest.raises(SettingsMismatchError, match=sentence):
        preprocess_store(tiny_preprocess(compact_store, scores_file, preprocessed, **change))
    assert (preprocessed / "graphs" / "manifest.json").read_bytes() == before


def test_changed_score_is_rejected(compact_store: Path, preprocessed: Path, tmp_path: Path) -> None:
    changed = write_scores(tmp_path / "scores.csv", 70, q12=0.0)
    with pytest.raises(SettingsMismatchError, match="the score of q12 changed from 0.75 to 0 "):
        preprocess_store(tiny_preprocess(compact_store, changed, preprocessed))
    lost = write_scores(tmp_path / "scores.csv", 69)
    with pytest.raises(SettingsMismatchError, match="the score of q69 changed from 0.5 to none "):
        preprocess_store(tiny_preprocess(compact_store, lost, preprocessed, skip_unlabeled=True))


def test_other_traces_are_rejected(
    full_store: Path, compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsMismatchError, match="was created from the traces of"):
        preprocess_store(tiny_preprocess(full_store, scores_file, preprocessed))
    renamed = rewrite_rows(
        compact_store, tmp_path / "s", 20, question_id=[f"q{69 - i}" for i in range(70)]
    )
    with pytest.raises(SettingsMismatchError, match="was created from different traces: example"):
        preprocess_store(tiny_preprocess(renamed, scores_file, preprocessed))
    shutil.copytree(compact_store, tmp_path / "t")
    forget_shards(tmp_path / "t", [1])
    with pytest.raises(SettingsMismatchError, match="has samples from shard 1, which the trace"):
        preprocess_store(tiny_preprocess(tmp_path / "t", scores_file, preprocessed))


def test_split_edited_by_hand_is_kept(
    compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(preprocessed, tmp_path / "out"))
    path = out / "splits.csv"
    lines = path.read_text().splitlines()
    edited = [lines[0], *(line.replace(",train,", ",val,") for line in lines[1:6]), *lines[6:]]
    path.write_text("\n".join(edited) + "\n")
    preprocess_store(tiny_preprocess(compact_store, scores_file, out))
    names = [SPLIT_NAMES[split] for split in read_splits(path).split[:5]]
    assert "train" not in names and "validation" in names


def test_two_processes_do_not_write_the_same_folder(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    with writer_lock(tmp_path, Part()), pytest.raises(StoreLockedError):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path))


def test_folders_with_other_files_are_rejected(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is a store. Choose a folder for the samples"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, compact_store))
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="it contains thesis.txt.*choose another `out`"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path))
    assert not (tmp_path / "sequences" / "manifest.json").exists()
    shutil.rmtree(tmp_path / "graphs")
    shutil.copytree(compact_store, tmp_path / "graphs")
    with pytest.raises(ClewError, match='"clew preprocess" did not write'):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path))
