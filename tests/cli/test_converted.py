"""Commands on converted legacy files: counts, names, damage and repair."""

import os
import re
import shlex
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.base.errors import StoreError
from clew.datasets import PreprocessedLSTMMapDataset
from clew.hallucination.legacy import convert_folder
from tests.hallucination.legacy.old_files import (
    graph_classes,
    make_record,
    write_pickle,
    write_samples,
    write_traces,
)
from tests.stores import flip_byte, offset_of

pytestmark = pytest.mark.slow

__all__ = ["graph_classes"]
ESCAPE = "\x1b]0;title\x07\x1b[2J"


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    for batch in (0, 1):
        write_traces(tmp_path / "old", batch)
    convert_folder(tmp_path / "old", tmp_path / "new")
    return tmp_path / "new"


def test_repair_of_converted_store_says_to_convert_again(run: Any, converted: Path) -> None:
    (converted / "batch_0001.arrow").unlink()
    repaired = run("verify", converted, "--repair")
    assert repaired.code == 0
    assert (
        "removed batch_0001.arrow from the manifest; 2 rows lost, to be re-created" in repaired.out
    )
    assert 'run "clew convert" again to re-create the missing rows' in repaired.out
    left = run("verify", converted)
    assert left.code == 1
    assert (
        'shard 1 is missing 2 of the 2 rows in its source file: run "clew convert" again'
        in left.out
    )
    assert "extraction" not in repaired.out + left.out
    assert run("convert", converted.parent / "old", "--out", converted).code == 0
    assert run("verify", converted).code == 0


def test_repair_without_losses_reports_intact_store(run: Any, converted: Path) -> None:
    (converted / "manifest.json").unlink()
    ended = run("verify", converted, "--repair")
    assert ended.code == 0
    assert ended.out.endswith("is intact: all checksums match\n")
    assert "again" not in ended.out


def test_counts_of_one_use_singular_nouns(run: Any, tmp_path: Path) -> None:
    write_traces(tmp_path / "old", 0, count=1)
    ended = run("convert", tmp_path / "old", "--out", tmp_path / "new")
    assert f"1 row from 1 file in {tmp_path / 'new'}\n" in ended.out
    again = run("convert", tmp_path / "old", "--out", tmp_path / "new")
    assert "1 row from 1 file (1 of them already converted) in" in again.out
    text = run("inspect", tmp_path / "new").out
    assert "new: 1 trace, " in text and ", 1 shard\n" in text
    flip_byte(
        tmp_path / "new/batch_0000.arrow", offset_of(tmp_path / "new/batch_0000.arrow", b"q0")
    )
    assert "0 of its 1 row" in run("verify", tmp_path / "new").out


def test_no_control_character_reaches_the_terminal(run: Any, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / f"new[/x]{ESCAPE}"
    answered = make_record(question=f"who\nsang{ESCAPE}[b]", generated_answer_clean=ESCAPE)
    write_pickle(
        old / f"{ESCAPE}_0000.pkl", [answered, make_record(1, question_id=ESCAPE, tokens=None)]
    )
    write_pickle(old / os.fsdecode(b"\xff_0001.pkl"), [])
    commands = (("convert", old, "--out"), ("inspect",), ("verify",), ("inspect", "--json"))
    texts = [run(*command, new).out for command in commands]
    for text in texts:
        assert {char for char in text if not char.isprintable()} == {"\n"}
        assert "new[/x]" in text
    assert r"1/2  \u001b]0;title\u0007\u001b[2J_0000.pkl" in texts[0]
    assert r"sang\u001b]0;title" in texts[1]


def test_inspect_names_what_a_conversion_excluded(run: Any, tmp_path: Path) -> None:
    write_pickle(tmp_path / "old" / "batch_0000.pkl", [make_record(), "text"])
    write_pickle(tmp_path / "old" / "batch_0001.pkl", [])
    run("convert", tmp_path / "old", "--out", tmp_path / "new")
    text = run("inspect", tmp_path / "new").out
    assert "excluded: 2 files or records" in text
    assert "  batch_0000.pkl, record 1: it is a str, not a dict" in text
    assert '  batch_0001.pkl: "' in text


def test_verify_logs_its_progress(
    run: Any, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.cli.progress._LOG_EVERY_SECONDS", 0)
    out = run("verify", converted).out
    assert f"1/2 shards checked in {converted.name}, " in out
    assert f"2/2 shards checked in {converted.name}, " in out
    assert "checked" not in run("verify", converted, "--quiet").out


def test_verify_shows_a_bar_on_a_terminal(
    run: Any, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "2/2 shards checked" in run("verify", converted).out


def test_networks_train_on_files_of_the_original_preprocessing(
    run: Any,
    tmp_path: Path,
    graph_classes: types.ModuleType,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(Path("preprocessed_data"), graph_classes)
    before = sorted(Path("preprocessed_data").rglob("*"))
    line = "--preprocessed-dir preprocessed_data --max-cache-batches 2 --epochs 1 --cache-dir cache"
    ended = run("train", *shlex.split(line), "--device", "cpu", "--num-workers", 0)
    assert ended.code == 0
    assert 'converting the legacy files of "preprocessed_data"' in ended.out + ended.err
    assert "does not say which model" in ended.out + ended.err
    assert sorted(Path("preprocessed_data").rglob("*")) == before
    for name in ("lstm", "gnn_det", "gvae"):
        assert clew.load_detector(f"results/{name}").name == name
    again = run("train", *shlex.split(line), "--device", "cpu", "--num-workers", 0)
    assert again.code == 0 and "converting" not in again.out + again.err
    detector = clew.load_detector("results/lstm")
    samples = PreprocessedLSTMMapDataset("preprocessed_data", cache_dir="cache")
    sequences = torch.stack([samples[number]["sequence"] for number in range(8)])
    assert len(detector.score({"sequence": sequences.float()})) == 8


@pytest.mark.parametrize("way", ["command", "Python"])
def test_command_in_the_error_makes_old_pickles_readable(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for batch in (0, 1):
        write_traces(tmp_path / "traces_data", batch)
    refused = run("inspect", "traces_data")
    assert refused.code != 0
    with pytest.raises(StoreError, match="contains legacy files") as caught:
        clew.TraceBatchLoader("./traces_data")
    if way == "command":
        found = re.search(r'with "clew (convert .*)"', refused.err)
        assert found and run(*shlex.split(found[1])).code == 0
    else:
        found = re.search(r"with (clew\.convert\(.*\))", str(caught.value))
        assert found and eval(found[1]).complete
    assert clew.TraceBatchLoader("./traces_data").get_total_traces() == 4
    assert run("inspect", "traces_data").code == 0
    assert len([*Path("traces_data").glob("*.pkl.gz")]) == 2


def test_inspect_compares_an_old_pickle_with_a_store(run: Any, converted: Path) -> None:
    changed = make_record(1, tokens_decoded=None, generated_answer_clean=" Queen")
    changed["hidden_states"][0][0, 0] += 1
    records = [make_record(0), changed, make_record(7), "text"]
    file = write_pickle(converted.parent / "all_traces.pkl", records)
    compared = clew.inspect(converted, compare_with=file).as_dict()["compared"]
    assert (compared["traces"], compared["found"], compared["unreadable"]) == (4, 2, 1)
    fields = {one["field"]: one for one in compared["fields"]}
    assert (fields["tokens"]["equal"], fields["tokens"]["compared"]) == (2, 2)
    assert (fields["answer"]["equal"], fields["answer"]["compared"]) == (1, 2)
    assert fields["hidden_states"]["largest_difference"] == pytest.approx(1, abs=1e-2)
    assert fields["attentions"]["equal"] == 2 and fields["last_hidden"]["equal"] == 2
    text = run("inspect", converted, "--compare-with", file).out
    assert "2 of 4 traces found in the store, 1 unreadable" in text
    refused = run("inspect", converted, "--compare-with", converted.parent / "nowhere.pkl")
    assert refused.code == 2 and "nowhere.pkl" in refused.err
