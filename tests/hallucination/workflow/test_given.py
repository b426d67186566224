"""A log of answers from file to detector: labels, spans and groups of the file, every command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import clew
from clew.base.progress import ignore_event
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors.calibration import measure_chance
from clew.hallucination.detectors.training import train as train_module
from clew.hallucination.grounded import load_reader
from clew.hallucination.grounded.method import ReaderScore, read_tokens
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.splits import read_splits

pytestmark = pytest.mark.slow

METHODS = ("length", "text", "source_words", "perplexity", "linear_probe", "token_probe")
PLACES = ("Paris", "Lyon", "Smith", "Louis")


def log_row(number: int) -> dict[str, Any]:
    """Two answers about each text, the second of some is not in it."""
    group, wrong = number // 2, number % 2 and number % 6 != 5
    right = PLACES[group % 4]
    answer = f"The capital is {PLACES[(group + 1) % 4] if wrong else right}."
    return {
        "id": f"a{number}",
        "question": "What is the capital?",
        "source": f"Text {group}: the capital of France is {right}.",
        "answer": answer,
        "hallucinated": int(wrong),
        "spans": [[15, len(answer) - 1]] if wrong else [],
        "group": f"text {group}",
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("given") / "log.jsonl"
    file.write_text("".join(f"{json.dumps(log_row(number))}\n" for number in range(120)))
    return file


@pytest.fixture(scope="module")
def samples(log: Path, live_model: LoadedModel) -> Path:
    folder = log.parent
    clew.extract(
        model=live_model, questions=log, answers="given", out=folder / "traces", shard_size=40
    )
    result = clew.label(folder / "traces", out=folder / "scores.csv")
    assert {row.method for row in result.rows} == {"given"}
    clew.preprocess(folder / "traces", scores_file=folder / "scores.csv", out=folder / "pre")
    return folder / "pre"


@pytest.fixture(scope="module")
def comparison(samples: Path) -> Path:
    out = samples.parent / "compared"
    kept: dict[str, Any] = {"keep_at_chance": True, "reporter": ignore_event}
    clew.compare(preprocessed_dir=samples, out=out, methods=METHODS, **kept)
    return out


def test_labels_spans_and_groups_of_the_file_arrive_in_the_samples(samples: Path) -> None:
    data = AnswerFeatures(samples)
    splits = read_splits(samples / "splits.csv")
    rows = {f"a{number}": log_row(number) for number in range(120)}
    by_group: dict[str, set[int]] = {}
    for name, split, label in zip(
        splits.question_id.to_pylist(), splits.split.tolist(), splits.label, strict=True
    ):
        assert label == rows[name]["hallucinated"]
        by_group.setdefault(rows[name]["group"], set()).add(split)
    assert all(len(one) == 1 for one in by_group.values())
    for split in data.labels:
        for label, tokens in zip(data.labels[split], data.read("token_labels", split), strict=True):
            assert {*tokens.tolist()} == ({0, 1} if label else {0})


def test_methods_run_on_given_answers_and_others_say_why(comparison: Path, samples: Path) -> None:
    results = json.loads((comparison / "results.json").read_text())
    assert {row["method"] for row in results["methods"]} == {*METHODS}
    rows = {row["title"]: row for row in results["tokens"]["rows"]}
    assert "Token probe, from span labels" in rows
    # The file's spans are of single words, which the source does not have.
    assert rows["Words not in the source"]["span_f1"] > 0.5
    again = clew.compare(
        preprocessed_dir=samples,
        out=comparison.parent / "folds",
        methods=("source_words", "perplexity", "consistency"),
        folds=3,
        reporter=ignore_event,
    )
    [excluded] = again.results["excluded"]
    assert "these answers were given" in excluded["reason"]
    assert len(again.results["tokens"]["rows"]) == 3


def test_the_interval_of_a_trained_network_draws_groups(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        train_module, "measure_chance", lambda *a: drawn.append(a) or measure_chance(*a)
    )
    kept: dict[str, Any] = {"keep_at_chance": True, "reporter": ignore_event}
    clew.train(preprocessed_dir=samples, networks=("lstm",), out=tmp_path, epochs=1, **kept)
    [(_, validation, _, clusters)] = drawn
    groups = AnswerFeatures(samples).read("group", "validation")
    assert len(clusters) == len(validation) == len(groups)
    assert len(set(zip(clusters, groups, strict=True))) == len({*clusters}) == len({*groups})


def test_detector_says_who_reads_and_scores_as_the_table(
    comparison: Path, log: Path, live_model: LoadedModel
) -> None:
    detector = clew.inspect(comparison / "detector")
    shown = detector.as_dict()
    assert (shown["trained_on"], shown["model"]) == ("given answers", live_model.name)
    scored = clew.score(model=live_model, detector=comparison, questions=log, reporter=ignore_event)
    risks = {row["id"]: row for row in scored.table.to_pylist()}
    table = pa.ipc.open_file(comparison / "scores.arrow").read_all()
    column = f"risk_{detector.name}"
    stored = dict(zip(table["question_id"].to_pylist(), table[column].to_pylist(), strict=True))
    checked = [name for name in stored if risks[name]["state"] == "checked"]
    assert len(checked) >= 0.9 * len(stored)
    for name in checked:
        assert risks[name]["risk"] == pytest.approx(stored[name], abs=0.02)


def test_reader_is_compared_with_other_methods(
    samples: Path, tmp_path: Path, reader_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = load_reader(reader_folder, device="cpu")
    monkeypatch.setattr("clew.hallucination.grounded.method._load", lambda: reader)
    compared = clew.compare(
        preprocessed_dir=samples,
        out=tmp_path / "compared",
        methods=("length", "source_words", "reader"),
        folds=3,
        reporter=ignore_event,
        keep_detectors="none",
    )
    rows = {row["method"]: row for row in compared.results["methods"]}
    assert rows.keys() == {"length", "source_words", "reader"}
    assert rows["reader"]["family"] == "no training"
    # Its spans are those of `clew check`, in flagged answers, with thresholds from validation.
    tokens = {row["method"]: row for row in compared.results["tokens"]["rows"]}
    low, high = tokens["reader"]["span_f1_ci"]
    assert 0 <= low <= tokens["reader"]["span_f1"] <= high <= 1
    assert len(tokens["reader"]["span_thresholds"]) == 3
    data = AnswerFeatures(samples)
    for places, logits in read_tokens(data, "test"):
        assert len(places) == len(logits) > 0 and np.isfinite(logits).all()
    # What was read for the folds is not read again.
    again = ReaderScore()
    again.score(data, "test")
    assert again.spared_seconds > 0
