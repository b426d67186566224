"""A comparison: its files, what it chooses on, and how it handles failures."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import (
    InputError,
    SettingsMismatchError,
    StoreError,
    TrainingError,
    TrainingStoppedError,
)
from clew.hallucination.comparison import compare_methods
from clew.hallucination.comparison.writing import COMPARISON_FILES
from clew.hallucination.samples.answers import AnswerFeatures
from clew.metrics.ranking import auroc
from clew.storage.reading import read_json
from tests.hallucination.comparison.making import Told, compare_config, write_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "preprocessed_data")


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the real methods."""

    def put(*methods: Told) -> None:
        monkeypatch.setattr(
            "clew.hallucination.comparison.methods.PROBES", {one.name: one for one in methods}
        )
        monkeypatch.setattr("clew.hallucination.comparison.methods.NETWORK_METHODS", [])

    return put


def read(folder: Path) -> dict[str, Any]:
    return read_json(folder / "results.json")


def test_a_report_that_clew_did_not_write_stays(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(Told(name="perplexity", noise=1.5, family="no training"))
    (tmp_path / "report.html").write_text("my thesis")
    with pytest.raises(InputError, match="was not written by clew, so it is not replaced"):
        compare_methods(compare_config(data, tmp_path, overwrite=True))
    assert (tmp_path / "report.html").read_text() == "my thesis"


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in read(folder)["methods"]}


def test_comparison_writes_tables_for_other_programs(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(
        Told(name="length", noise=3, family="baseline"),
        Told(name="perplexity", noise=1.5, family="no training"),
        Told(name="sharp_probe", noise=0.4, title="Sharp & 100% _probe_"),
    )
    made = compare_methods(compare_config(data, tmp_path / "out"))
    results = read(tmp_path / "out")
    entries = {path.name for path in (tmp_path / "out").iterdir() if path.name[0] != "."}
    assert entries <= {*COMPARISON_FILES}
    assert results == json.loads(json.dumps(made.results))
    assert [row["method"] for row in results["methods"]] == ["sharp_probe", "perplexity", "length"]
    best = {"method": "sharp_probe", "chosen_on": "validation", "is_supported": True}
    assert results["best"] == best
    best, plain, _ = results["methods"]
    low, high = best["test_auroc_ci"]
    assert 0.5 < low <= best["test_auroc"] <= high <= 1
    assert best["versus_best"] is None and plain["versus_perplexity"] is None
    gain = best["versus_perplexity"]
    assert gain["difference"] == pytest.approx(best["test_auroc"] - plain["test_auroc"])
    assert gain["low"] <= gain["difference"] <= gain["high"] and 0 < gain["p_value"] <= 1
    assert "beats perplexity by" in results["findings"]["best"]
    lines = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines()))
    assert [line["method"] for line in lines] == [row["method"] for row in results["methods"]]
    assert float(lines[0]["test_auroc"]) == best["test_auroc"]
    latex = (tmp_path / "out" / "table.tex").read_text()
    assert r"\textbf{Sharp \& 100\% \_probe\_}" in latex and latex.count(r"\\") == 4


def test_scores_of_every_answer_are_written(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(Told(name="perplexity"), Told(name="other", noise=0.5))
    compare_methods(compare_config(data, tmp_path))
    table = pa.ipc.open_file(tmp_path / "scores.arrow").read_all()
    rows = rows_of(tmp_path)
    for split, name in (("validation", "val_auroc"), ("test", "test_auroc")):
        part = table.filter(pa.compute.equal(table["split"], split))
        for method in ("perplexity", "other"):
            found = auroc(part["label"].to_numpy(), part[f"risk_{method}"].to_numpy())
            assert found == pytest.approx(rows[method][name], abs=1e-3)
    row = table.slice(0, 1).to_pylist()[0]
    number = row["global_example_id"]
    assert row["question"] == f"What is {number}?"
    assert row["accepted_answers"] == f"answer {number} / {number}"


def test_test_split_is_not_used_for_any_choice(data: Path, tell: Any, tmp_path: Path) -> None:
    """With all test labels flipped, only the test metrics change."""
    other = write_data(tmp_path / "turned")
    path = other / "splits.csv"
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file))
    label, split = header.index("label"), header.index("split")
    for line in lines:
        if line[split] == "test":
            line[label] = str(1 - int(float(line[label])))
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])
    tell(*(Told(name=name, noise=n) for name, n in (("perplexity", 1.0), ("a", 0.3), ("b", 2.0))))
    compare_methods(compare_config(data, tmp_path / "one"))
    compare_methods(compare_config(other, tmp_path / "two"))
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    assert one["best"] == two["best"]
    for before, after in zip(one["methods"], two["methods"], strict=True):
        for name in ("method", "val_auroc", "threshold", "chosen", "seeds"):
            assert before[name] == after[name]
        assert after["test_auroc"] == pytest.approx(1 - before["test_auroc"])


def test_seeded_method_is_represented_by_its_median_seed(
    data: Path, tell: Any, tmp_path: Path
) -> None:
    tell(Told(name="chancy", noises=(0.1, 3.0, 1.0), is_seeded=True), Told(name="sure"))
    compare_methods(compare_config(data, tmp_path))
    chancy, sure = rows_of(tmp_path)["chancy"], rows_of(tmp_path)["sure"]
    assert chancy["seeds"] == 3 and sure["seeds"] == 1
    assert chancy["val_auroc"] == sure["val_auroc"]  # that of noise 1.0
    assert chancy["test_auroc"] == sure["test_auroc"]
    assert chancy["test_auroc_mean"] != chancy["test_auroc"] and chancy["test_auroc_std"] > 0.05
    assert sure["test_auroc_mean"] is None and sure["test_auroc_std"] is None


def test_finished_methods_are_not_run_again(data: Path, tell: Any, tmp_path: Path) -> None:
    first, second = Told(name="first"), Told(name="second", breaks=TrainingStoppedError("stop"))
    tell(first, second)
    with pytest.raises(TrainingStoppedError):
        compare_methods(compare_config(data, tmp_path / "broken"))
    assert not (tmp_path / "broken" / "results.json").exists()
    second.breaks = None
    compare_methods(compare_config(data, tmp_path / "broken"))
    assert (first.fitted, second.fitted) == (1, 2)
    compare_methods(compare_config(data, tmp_path / "whole"))
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "whole")
    compare_methods(compare_config(data, tmp_path / "broken", overwrite=True))
    assert first.fitted == 3


def test_comparison_can_be_stopped_between_methods(data: Path, tell: Any, tmp_path: Path) -> None:
    first, second = Told(name="first"), Told(name="second")
    tell(first, second)
    with pytest.raises(TrainingStoppedError, match="stopped before Second"):
        compare_methods(compare_config(data, tmp_path), should_stop=lambda: first.fitted > 0)
    assert (tmp_path / "methods" / "first.json").exists() and second.fitted == 0


def test_scores_of_other_data_or_settings_are_rejected(
    data: Path, tell: Any, tmp_path: Path
) -> None:
    tell(Told(name="sure"), Told(name="chancy", is_seeded=True, noises=(1, 1, 1, 1)))
    compare_methods(compare_config(data, tmp_path / "out"))
    with pytest.raises(SettingsMismatchError, match="seeds: was 3, is now 4"):
        compare_methods(compare_config(data, tmp_path / "out", seeds=4))
    other = write_data(tmp_path / "other", rows=90)
    with pytest.raises(
        SettingsMismatchError, match=r"results for sure .*(\n.*)*`overwrite=True`"
    ) as told:
        compare_methods(compare_config(other, tmp_path / "out"))
    assert f"test_on: was ['{data.name}'], is now ['other']" in str(told.value)
    compare_methods(compare_config(other, tmp_path / "out", overwrite=True))
    assert sum(read(tmp_path / "out")["data"]["train"].values()) < 140


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Told(name="charm", needs=("heads",)), 'run "clew extract" with `keep="full"`'),
        (Told(name="semantic", needs=("nothing_such",)), 'the samples have no "nothing_such"'),
        (Told(name="diverged", breaks=TrainingError("the loss is NaN")), "the loss is NaN"),
        (Told(name="singular", breaks=np.linalg.LinAlgError("singular")), "singular"),
        (Told(name="large", breaks=MemoryError("9 GB")), "does not fit in memory"),
        (Told(name="nan", change=lambda scores: scores * np.nan), "scores are non-finite"),
    ],
    ids=lambda value: value.name if isinstance(value, Told) else "",
)
def test_method_that_cannot_run_is_excluded_and_the_others_continue(
    data: Path, tell: Any, tmp_path: Path, broken: Told, reason: str
) -> None:
    tell(broken, Told(name="perplexity"))
    made = compare_methods(compare_config(data, tmp_path))
    assert list(rows_of(tmp_path)) == ["perplexity"] and not made.faults
    [excluded] = read(tmp_path)["excluded"]
    assert excluded["method"] == broken.name and reason in excluded["reason"]


def test_only_methods_that_vllm_can_feed_are_compared_for_it(data: Path, tmp_path: Path) -> None:
    methods = ("linear_probe", "lookback", "robust", "gnn_det")
    compare_methods(compare_config(data, tmp_path, methods=methods, engine="vllm"))
    assert {*rows_of(tmp_path)} == {"linear_probe", "robust"}
    reasons = {one["method"]: one["reason"] for one in read(tmp_path)["excluded"]}
    assert "it also reads lookback" in reasons["lookback"]
    assert "graphs of attention" in reasons["gnn_det"]
    with pytest.raises(SettingsMismatchError, match="engine"):  # attention would be read, too
        compare_methods(compare_config(data, tmp_path, methods=("robust",)))


def test_bug_in_a_method_is_not_swallowed(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(Told(name="faulty", breaks=TypeError("oops")), Told(name="perplexity"))
    made = compare_methods(compare_config(data, tmp_path))
    assert [fault.method for fault in made.faults] == ["faulty"]
    assert "TypeError: oops" in (tmp_path / "methods" / "faulty.fault.txt").read_text()
    assert list(rows_of(tmp_path)) == ["perplexity"]


def test_error_when_no_method_can_run_lists_the_reasons(
    data: Path, tell: Any, tmp_path: Path
) -> None:
    tell(Told(name="charm", title="CHARM", needs=("heads",)))
    with pytest.raises(InputError, match=r"no method could be run:\s+CHARM: .*`keep=.full.`"):
        compare_methods(compare_config(data, tmp_path))


def test_unknown_method_is_rejected_with_the_known_ones(
    data: Path, tell: Any, tmp_path: Path
) -> None:
    tell(Told(name="perplexity"))
    with pytest.raises(
        InputError, match='unknown method "magic": choose `methods` from: perplexity'
    ):
        compare_methods(compare_config(data, tmp_path / "out", methods=("magic",)))
    with pytest.raises(InputError, match='unknown method "magic", "more": choose'):
        compare_methods(compare_config(data, tmp_path / "out", methods=("more", "magic")))
    assert not (tmp_path / "out").exists()


def test_earlier_methods_that_are_not_requested_now_are_listed(
    data: Path, tell: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tell(Told(name="first"), Told(name="second"))
    with caplog.at_level("INFO"):
        compare_methods(compare_config(data, tmp_path, methods=("first",)))
        assert "also has results" not in caplog.text
        compare_methods(compare_config(data, tmp_path, methods=("second",)))
    assert "also has results for first: they are kept" in caplog.text
    assert list(rows_of(tmp_path)) == ["second"]


def test_damaged_answers_are_reported_before_anything_runs(tell: Any, tmp_path: Path) -> None:
    only = Told(name="perplexity")
    tell(only)
    folder = write_data(tmp_path / "data")
    shard = sorted((folder / "answers").glob("*.arrow"))[-1]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(StoreError, match="it was truncated or replaced"):
        compare_methods(compare_config(folder, tmp_path / "out"))
    assert only.fitted == 0 and not (tmp_path / "out").exists()


def test_split_with_a_single_class_is_rejected_before_anything_runs(
    tell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.samples.label", lambda ids: np.zeros(np.shape(ids), np.float32))
    only = Told(name="perplexity")
    tell(only)
    folder = write_data(tmp_path / "data")
    with pytest.raises(InputError, match="train split of .* has no hallucinated answers"):
        compare_methods(compare_config(folder, tmp_path / "out"))
    assert only.fitted == 0 and not (tmp_path / "out").exists()


def test_too_few_samples_are_rejected(tell: Any, tmp_path: Path) -> None:
    tell(Told(name="perplexity"))
    folder = write_data(tmp_path / "data", shards=1, rows=4)
    with pytest.raises(InputError, match="Use more questions"):
        compare_methods(compare_config(folder, tmp_path / "out"))


def test_findings_claim_no_win_without_significance(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(
        Told(name="perplexity", noise=0.8, family="no training"),
        Told(name="weak", noise=4),
        Told(name="length", noise=0.9, family="baseline"),
    )
    compare_methods(compare_config(data, tmp_path))
    findings = read(tmp_path)["findings"]
    assert findings["best"].endswith("No method beats perplexity there.")
    assert "The best method is not significantly better than Length" in findings["baselines"]


def test_findings_warn_about_small_splits(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(Told(name="perplexity"))
    compare_methods(compare_config(data, tmp_path))
    results = read(tmp_path)
    few = {split: results["data"][split]["hallucinated"] for split in ("validation", "test")}
    assert max(few.values()) < 30
    assert results["findings"]["few_to_measure_on"].startswith(
        f"The test answers include only {few['test']} hallucinated answers: the confidence "
        "intervals are unreliable with so few answers"
    )
    assert results["findings"]["few_to_choose_on"].startswith(
        f"The validation answers include only {few['validation']} hallucinated answers: methods, "
        "their layers"
    )


def test_optional_inputs_count_as_read_if_present(data: Path, tell: Any, tmp_path: Path) -> None:
    more = ("lookback", "token_logprobs", "nowhere")
    tell(Told(name="perplexity"), Told(name="takes_all", also_reads=more))
    compare_methods(compare_config(data, tmp_path))
    size = {row["method"]: row["bytes_per_answer"] for row in read(tmp_path)["methods"]}
    assert size["takes_all"] - size["perplexity"] == AnswerFeatures(data).bytes_of("lookback")


def test_damaged_scores_file_is_reported(data: Path, tell: Any, tmp_path: Path) -> None:
    tell(Told(name="perplexity"))
    compare_methods(compare_config(data, tmp_path))
    (tmp_path / "methods" / "perplexity.json").write_text("{")
    with pytest.raises(StoreError, match=r"delete perplexity.json"):
        compare_methods(compare_config(data, tmp_path))
