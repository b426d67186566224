"""clew preprocess, and clew inspect on what it writes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.hallucination.samples.splits import read_splits
from tests.hallucination.legacy.old_files import write_sequences
from tests.hallucination.samples.trace_stores import overwrite_value, write_scores
from tests.stores import flip_byte

pytestmark = pytest.mark.slow


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    return write_scores(tmp_path / "scores.csv", 70)


@pytest.fixture
def preprocess(run: Any, compact_store: Path, scores: Path) -> Any:
    """Runs `clew preprocess` on the shared traces."""

    def call(out: Path, *more: object, store: Path = compact_store) -> Any:
        return run("preprocess", store, "--scores-file", scores, "--out", out, *more)

    return call


def test_preprocess_prints_the_splits(preprocess: Any, tmp_path: Path) -> None:
    ended = preprocess(tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "70 samples to create: at most " in ended.out
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["split", "samples", "correct", "hallucinated"] in rows
    counts = [row[1:] for row in rows if row and row[0] in ("train", "validation", "test")]
    assert [sum(map(int, column)) for column in zip(*counts, strict=True)] == [70, 42, 28]
    assert "70 samples, " in ended.out and f" in {tmp_path / 'out'}\n" in ended.out
    assert ended.out.endswith(
        f"inspect them with: clew inspect {tmp_path / 'out'}\n"
        f"compare detection methods with: clew compare --preprocessed-dir {tmp_path / 'out'}\n"
    )
    again = preprocess(tmp_path / "out")
    assert "70 samples (all already existed), " in again.out
    assert "to make" not in again.out


def test_verify_checks_the_basis_beside_the_samples(
    preprocess: Any, run: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    preprocess(out)
    intact = run("verify", out)
    assert intact.code == 0
    assert intact.out.endswith("\nsplits.csv has no checksum: you may edit it\n")
    flip_byte(out / "basis.arrow", 1000)
    damaged = run("verify", out)
    assert damaged.code == 1 and "basis.arrow has changed since it was written" in damaged.out
    assert "repair it with" not in damaged.out
    preprocess(out)
    assert run("verify", out).code == 0


def test_log_lines_show_speed_size_and_memory(
    preprocess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.cli.progress._LOG_EVERY_SECONDS", 0)
    out = preprocess(tmp_path / "out").out
    assert "70/70 samples, " in out and " written, memory " in out and ", 0 s left" in out


def test_terminal_shows_a_bar(
    preprocess: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "70/70 samples, " in preprocess(tmp_path / "out").out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--split", "70/20"], 'clew: --split is "70/20": '),
        (["--top-k", "5"], 'clew: --top-k is 5: "'),
        (["--top-k", "0"], "clew: --top-k is 0: it must be 1 or more"),
        (["--score-threshold", "7"], "clew: --score-threshold is 7.0: it must be from"),
        (
            ["--no-graphs", "--no-sequences", "--no-answers", "--no-heads"],
            "clew: --no-sequences, --no-graphs, --no-answers, --no-heads together leave nothing",
        ),
        (
            ["--no-graphs", "--no-sequences", "--no-answers"],
            "has no attention maps, so only sequences, graphs and answers can be created from it",
        ),
        (["--scores-file", "nowhere.csv"], "nowhere.csv"),
        (["--score-column", "nothing"], "nothing"),
        (["--split-by", "moon"], "moon"),
    ],
)
def test_wrong_input_gets_one_message(
    preprocess: Any, tmp_path: Path, options: list[str], sentence: str
) -> None:
    ended = preprocess(tmp_path / "out", *options)
    assert ended.code == 2
    assert sentence in ended.err
    assert not (tmp_path / "out").exists()


def test_changed_settings_exit_with_1(preprocess: Any, tmp_path: Path) -> None:
    preprocess(tmp_path / "out")
    ended = preprocess(tmp_path / "out", "--node-dim", 2)
    assert ended.code == 1
    assert "node_dim: was 4, is now 2" in ended.err


def test_excluded_traces_are_named_and_exit_with_1(
    preprocess: Any, run: Any, store: Path, tmp_path: Path
) -> None:
    overwrite_value(store / "batch_0000.arrow", "nodes", 4, 0, np.nan)
    ended = preprocess(tmp_path / "out", store=store)
    assert ended.code == 1
    assert "excluded: batch_0000.arrow, row 4 (q" in ended.out
    assert "69 samples, 1 excluded, " in ended.out
    shown = run("inspect", tmp_path / "out").out
    assert "excluded: 1 trace\n  batch_0000.arrow, record 4: its nodes contains NaN" in shown


def test_single_class_prints_a_warning(preprocess: Any, tmp_path: Path) -> None:
    ended = preprocess(tmp_path / "out", "--score-threshold", 0)
    assert ended.code == 0
    assert "warning: all 70 answers are correct (score of at least 0)" in ended.out


def test_high_scores_can_mean_hallucinated(preprocess: Any, tmp_path: Path) -> None:
    assert preprocess(tmp_path / "out", "--higher-is", "hallucinated").code == 0
    splits = read_splits(tmp_path / "out" / "splits.csv")
    labels = dict(zip(splits.question_id.to_pylist(), splits.label.tolist(), strict=True))
    assert (labels["q0"], labels["q1"]) == (1.0, 0.0)


def test_inspect_shows_samples(preprocess: Any, run: Any, tmp_path: Path) -> None:
    preprocess(tmp_path / "out")
    for place in ("out", "out/graphs"):
        text = run("inspect", tmp_path / place).out
        assert "graphs: 70 graphs, " in text
        assert ("sequences: 70 sequences, " in text) == (place == "out")
        assert "share hallucinated" in text and "edges, all layers" in text
        assert "edges per token and layer: " in text
        assert "  score_threshold: 0.5\n" in text and "  shape: layers 3, dim 32, " in text
    shown = json.loads(run("inspect", tmp_path / "out", "--json").out)
    assert [split["split"] for split in shown["balance"]] == ["train", "validation", "test"]
    assert sum(split["samples"] for split in shown["balance"]) == 70
    assert [store["kind"] for store in shown["stores"]] == ["sequences", "graphs", "answers"]
    assert "laplacian_top" in shown["answer_fields"] and "score" not in shown["answer_fields"]
    assert 1 < shown["graphs"]["edges_per_token"] <= 4


def test_full_traces_give_all_kinds_of_samples(
    preprocess: Any, run: Any, full_store: Path, tmp_path: Path
) -> None:
    assert preprocess(tmp_path / "out", store=full_store).code == 0
    text = run("inspect", tmp_path / "out").out
    assert "answers: 12 answers, " in text and "heads: 12 graphs over all heads, " in text
    assert "edges, over all heads" in text and "fields per answer: question, category, " in text
    assert "  source.capture.model: id " in text
    for kind in ("answers", "heads"):
        assert run("verify", tmp_path / "out" / kind).code == 0
        assert "share hallucinated" in run("inspect", tmp_path / "out" / kind).out


def test_unwanted_kinds_are_not_written(preprocess: Any, full_store: Path, tmp_path: Path) -> None:
    assert preprocess(tmp_path / "out", "--no-heads", "--no-answers", store=full_store).code == 0
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        "sequences",
        "graphs",
    }


def test_inspect_shows_converted_samples(run: Any, tmp_path: Path) -> None:
    write_sequences(tmp_path / "old" / "preprocessed_0001.pt")
    run("convert", tmp_path / "old", "--out", tmp_path / "new")
    rows = [line.split() for line in run("inspect", tmp_path / "new").out.splitlines()]
    assert ["all", "3", "2", "1", "33.3%"] in rows


def test_inspect_refuses_splits_of_other_samples(preprocess: Any, run: Any, tmp_path: Path) -> None:
    preprocess(tmp_path / "out")
    path = tmp_path / "out" / "splits.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    ended = run("inspect", tmp_path / "out")
    assert ended.code == 1
    assert 'run the same "clew preprocess" command again' in ended.err
    assert preprocess(tmp_path / "out").code == 0
    assert run("inspect", tmp_path / "out").code == 0


def test_printed_command_quotes_spaces(
    preprocess: Any, run: Any, compact_store: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(compact_store, tmp_path / "my traces"))
    ended = preprocess(tmp_path / "mis datos ñ", store=store)
    assert f"clew inspect '{tmp_path / 'mis datos ñ'}'\n" in ended.out
    assert ended.out.endswith(f"clew compare --preprocessed-dir '{tmp_path / 'mis datos ñ'}'\n")
    assert run("inspect", tmp_path / "mis datos ñ").code == 0


def test_answers_of_one_class_are_warned_about_once(preprocess: Any, tmp_path: Path) -> None:
    ended = preprocess(tmp_path / "out", "--score-threshold", "0")
    assert ended.code == 0, ended.err
    assert ended.out.count("a detector cannot be trained on one class alone") == 1
