"""Several question sets: each is tested by detectors that were trained on the others."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import InputError, TrainingStoppedError
from clew.hallucination.comparison import CompareConfig, ComparisonResult, compare_methods
from clew.hallucination.comparison.fitting import StoreStarted
from clew.hallucination.comparison.plan import make_plan
from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from clew.hallucination.comparison.stores import open_stores, union
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.ranking import auroc
from tests import samples
from tests.hallucination.comparison.making import (
    CAPTURE,
    Told,
    compare_config,
    describe_capture,
    write_data,
    write_set,
)

pytestmark = pytest.mark.slow

NAMES = ("facts", "elements", "trivia")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Three sets of the same model. They share no question."""
    return tuple(write_set(tmp_path_factory.mktemp("sets") / name, rows=75) for name in NAMES)


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(*methods: Told) -> None:
        monkeypatch.setattr(
            "clew.hallucination.comparison.methods.PROBES", {one.name: one for one in methods}
        )

    monkeypatch.setattr("clew.hallucination.comparison.methods.NETWORK_METHODS", [])
    return put


def sets_config(stores: tuple[Path, ...], out: Path, **changes: Any) -> CompareConfig:
    usual = {"train_on": stores, "test_on": stores, "methods": ("perplexity", "linear_probe")}
    return compare_config(stores[0], out, **usual | changes)


@pytest.fixture(scope="module")
def made(stores: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    return compare_methods(sets_config(stores, tmp_path_factory.mktemp("out")))


def test_each_set_is_tested_whole_by_detectors_that_never_saw_it(
    made: ComparisonResult, stores: tuple[Path, ...]
) -> None:
    sets = made.results["leave_one_out"]
    assert sets["sets"] == list(NAMES)
    assert sets["answers"] == [150] * 3 and sets["excluded"] == [0] * 3
    data = [AnswerFeatures(folder) for folder in stores]
    trained = [len(one.labels["train"]) for one in data]
    assert sets["trained_on"] == [sum(trained) - own for own in trained]
    assert sets["correct"] == [int((one.index.labels == 0).sum()) for one in data]
    for values, low, high in zip(sets["auroc"], sets["low"], sets["high"], strict=True):
        assert all(a <= b <= c for a, b, c in zip(low, values, high, strict=True))


def test_table_has_the_mean_over_the_sets_and_every_answer_its_risk(made: ComparisonResult) -> None:
    sets = made.results["leave_one_out"]
    rows = {row["method"]: row for row in made.results["methods"]}
    for method, values, mean in zip(sets["methods"], sets["auroc"], sets["mean"], strict=True):
        assert rows[method]["test_auroc"] == pytest.approx(np.mean(values)) == mean
    with pa.OSFile(str(made.folder / "scores.arrow")) as file:
        scores = pa.ipc.open_file(file).read_all()
    assert set(scores["split"].to_pylist()) == {"test"} and len(scores) == 450
    ours = scores.filter(pa.compute.equal(scores["set"], "elements"))
    labels, risks = ours["label"].to_numpy(), ours["risk_linear_probe"].to_numpy()
    place = sets["methods"].index("linear_probe")
    assert auroc(labels, risks) == pytest.approx(sets["auroc"][place][1])


def test_sets_have_tables_for_other_programs_and_a_headline(made: ComparisonResult) -> None:
    lines = list(csv.DictReader((made.folder / "leave_one_out.csv").read_text().splitlines()))
    assert len(lines) == 2 * (3 + 1)
    assert {line["test_on"] for line in lines} == {*NAMES, "(mean)"}
    assert all(int(line["answers"]) and int(line["correct"]) for line in lines)
    assert "facts (150; " in (made.folder / "leave_one_out.tex").read_text()
    transfer = made.results["transfer"]
    assert np.shape(transfer["answers"]) == np.shape(transfer["correct"]) == (3, 3)
    assert transfer["answers"][0][1] == 150 > transfer["answers"][0][0]
    findings = made.results["findings"]
    assert "over 3 question sets that it was not trained on" in findings["best"]
    assert findings["sets"].startswith("It ranges from 0.")
    assert "On the test splits alone, which chose nothing: 0." in findings["sets"]


def test_kept_detector_is_trained_on_all_sets_and_knows_its_figures(
    made: ComparisonResult, stores: tuple[Path, ...]
) -> None:
    detector = load_detector(made.folder / "detector")
    data = [AnswerFeatures(folder) for folder in stores]
    counts = detector.kept.data
    names = [f"{name} (generated 1.0)" for name in ("facts", "elements", "trivia")]
    assert counts["questions"] == " + ".join(names)
    train = counts["train"]
    assert sum(train.values()) == sum(len(one.labels["train"]) for one in data)
    figures = detector.metrics["leave_one_out"]
    place = made.results["leave_one_out"]["methods"].index(detector.name)
    assert figures["test_auroc"] == made.results["leave_one_out"]["mean"][place]
    assert figures["sets"]["trivia"]["correct"] == made.results["leave_one_out"]["correct"][2]


def test_report_names_the_sets(made: ComparisonResult) -> None:
    page = make_page(read_comparison(made.folder))
    assert "on question sets not trained on: facts, elements and trivia</title>" in page
    assert "over 3 question sets that it was not trained on" in page
    assert 'id="left_out"' in page and "150 (" in page
    assert "Nothing was chosen on the test answers" not in page


def test_questions_of_other_sets_are_not_tested(
    stores: tuple[Path, ...], tell: Any, tmp_path: Path
) -> None:
    """A second capture of the same questions."""
    tell(Told(name="perplexity"))
    again = write_data(tmp_path / "again", rows=75)
    prompt = {"template": "Q: {question}", "chat": False}
    describe_capture(again, questions={"name": "again"}, **CAPTURE | {"prompt": prompt})
    twice = write_data(tmp_path / "twice", rows=75)
    describe_capture(twice, questions={"name": "twice"}, **CAPTURE)
    config = sets_config((stores[0], again, twice), tmp_path / "out", methods=None, pairs=False)
    events: list[Any] = []
    sets = compare_methods(config, events.append).results["leave_one_out"]
    assert "were captured with different prompts" in " ".join(map(str, events))
    assert sets["excluded"][0] == 0 and sets["excluded"][1] == sets["excluded"][2] > 100


def test_question_of_two_sets_is_in_one_split_of_their_union(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second set has the questions of the first under other ids, so in other splits."""
    plain, folders = samples.answer_of, []
    for shift in (0, 1):
        monkeypatch.setattr(
            samples, "answer_of", lambda n, s, k=shift: plain(n, s) | {"question": f"Q {n + k}?"}
        )
        folders.append(write_data(tmp_path / str(shift), rows=30))
    stores = open_stores(folders)
    both = union("both", list(stores.values())).data
    train, validation, test = ({*both.read("question", split)} for split in SPLIT_NAMES)
    assert train.isdisjoint(validation | test) and validation.isdisjoint(test)
    whole = sum(len(one.data.labels["train"]) for one in stores.values())
    assert len(both.labels["train"]) == whole and len(validation) and len(test)


def test_set_of_one_class_is_named(stores: tuple[Path, ...], tmp_path: Path) -> None:
    again = write_set(tmp_path / "again", rows=75)
    splits = (again / "splits.csv").read_text()
    (again / "splits.csv").write_text(splits.replace(",1,0\n", ",0,1\n"))
    config = sets_config((*stores, again), tmp_path)
    with pytest.raises(InputError, match=r'test split of ".*again" has no hallucinated answers'):
        make_plan(config, open_stores(config.train_on))


def test_sets_with_different_numbers_of_drawn_answers_are_told_so(
    stores: tuple[Path, ...], tmp_path: Path
) -> None:
    config = sets_config((*stores[:2], write_set(tmp_path / "more", rows=75, draws=4)), tmp_path)
    first, second, _ = make_plan(config, open_stores(config.train_on)).parts
    reason = second.refuse_reason(PROBES["entailment_entropy"])
    assert reason is not None and "capture them with the same `draws`" in reason
    assert first.refuse_reason(PROBES["p_true"]) is None


def test_sets_are_resumed_and_can_be_named(
    stores: tuple[Path, ...], tell: Any, tmp_path: Path
) -> None:
    probe = Told(name="probe")
    tell(probe)
    asked: list[bool] = []
    names = ("A", "B", "../C")
    config = sets_config(stores, tmp_path, methods=None, names=names, keep_detectors="none")
    with pytest.raises(TrainingStoppedError):
        compare_methods(config, should_stop=lambda: bool(asked.append(True) or len(asked) > 2))
    assert probe.fitted < 3
    events: list[Any] = []
    results = compare_methods(config, events.append).results
    assert probe.fitted == 6 and results["leave_one_out"]["sets"] == list(names)
    started = [event for event in events if isinstance(event, StoreStarted)]
    assert [one.name for one in started[:3]] == [f"all sets but {name}" for name in names]
    assert started[0].seconds_left is None and started[-1].seconds_left is not None
    assert len(list((tmp_path / "left_out").iterdir())) == 3  # "../C" is inside as well
    with pytest.raises(InputError, match="give 3 different names"):
        compare_methods(sets_config(stores, tmp_path / "x", methods=None, names=("A", "B")))


def test_method_that_fails_on_one_set_has_no_mean(
    stores: tuple[Path, ...], tell: Any, tmp_path: Path
) -> None:
    class Picky(Told):
        def run(self, data: Any, tests: Any, *, seed: int) -> Any:
            if "trivia" in data.name:
                raise InputError("not on trivia")
            return super().run(data, tests, seed=seed)

    tell(Told(name="perplexity"), Picky(name="picky"))
    config = sets_config(stores, tmp_path, methods=None, pairs=False)
    results = compare_methods(config).results
    assert [row["method"] for row in results["methods"]] == ["perplexity"]
    reasons = [one["reason"] for one in results["excluded"]]
    assert reasons == ["not on trivia", "it has no result for trivia, so there is no mean"]
    assert results["transfer"] is None


def test_every_answer_is_tested_once_in_folds(stores: tuple[Path, ...], tmp_path: Path) -> None:
    config = compare_config(
        stores[0], tmp_path, methods=("perplexity", "linear_probe"), folds=5, seeds=1
    )
    results = compare_methods(config).results
    assert results["folds"]["count"] == 5
    assert sum(results["data"]["test"].values()) == 150
    assert [sum(one.values()) for one in results["folds"]["test"]] == [30] * 5
    with pa.OSFile(str(tmp_path / "scores.arrow")) as file:
        ids = pa.ipc.open_file(file).read_all()["global_example_id"].to_pylist()
    assert sorted(ids) == list(range(150))
    assert results["best"]["chosen_on"] == "the validation folds"
    detector = load_detector(tmp_path / "detector")
    [best, *_] = results["methods"]
    about = detector.as_dict()
    assert about["out_of_fold_test_auroc"] == best["test_auroc"]
    assert about["out_of_fold_test_auroc_ci"] == best["test_auroc_ci"]
    assert "val_auroc_ci" not in about  # that of the folds is not its own
    again = compare_methods(config).results
    assert json.dumps(again["methods"]) == json.dumps(results["methods"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"folds": 2}, "give 3 or more"), ({"folds": 80}, "give fewer folds")],
)
def test_folds_that_cannot_be_made_are_rejected(
    changes: dict[str, Any], message: str, stores: tuple[Path, ...], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        compare_methods(compare_config(stores[0], tmp_path, **changes))
    with pytest.raises(InputError, match="folds are of one folder"):
        sets_config(stores, tmp_path, folds=5)


def test_sets_in_one_folder_are_told_apart_by_their_ids(
    tmp_path: Path, tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(Told(name="perplexity"), Told(name="graphs", needs=("graphs",)))
    monkeypatch.setattr(samples, "question_id", lambda number: f"{NAMES[number // 3 % 3]}/{number}")
    folder = write_data(tmp_path / "all", rows=75)
    describe_capture(folder, questions={"name": "all"}, **CAPTURE)
    config = compare_config(folder, tmp_path / "out", by_set=True)
    results = compare_methods(config).results
    sets = results["leave_one_out"]
    assert sets["sets"] == list(NAMES) and sum(sets["answers"]) == 150
    assert results["transfer"]["train_on"] == list(NAMES)
    assert set(sets["methods"]) == {"perplexity", "graphs"}  # one capture has one basis
    with pytest.raises(InputError, match="name 150 question sets"):
        monkeypatch.setattr(samples, "question_id", str)
        plain = write_data(tmp_path / "plain", rows=75)
        compare_methods(compare_config(plain, tmp_path / "no", by_set=True))
