"""Training on one question set and testing on another."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.comparison import compare_methods
from clew.hallucination.comparison.stores import distinct_names
from tests.hallucination.comparison.making import Told, compare_config, describe_capture, write_data

pytestmark = pytest.mark.slow

MODEL = {"id": "tiny", "fingerprint": "abc"}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two sets of the same model; a third of the second one's questions are in the first, spelled
    differently."""
    monkeypatch.setattr("clew.hallucination.comparison.methods.NETWORK_METHODS", [])
    first = write_data(tmp_path / "a" / "pre")
    from tests import samples

    plain = samples.answer_of

    def others(number: int, sizes: Any) -> dict[str, Any]:
        question = f"what is the {number + 1}" if number % 3 == 0 else f"Who was {number}?"
        return {**plain(number, sizes), "question": question}

    monkeypatch.setattr(samples, "answer_of", others)
    second = write_data(tmp_path / "b" / "pre", rows=150)
    for folder in (first, second):
        describe_capture(folder, model=MODEL, questions={"name": folder.parent.name})
    return first, second


def tell(monkeypatch: pytest.MonkeyPatch, *methods: Told) -> None:
    monkeypatch.setattr(
        "clew.hallucination.comparison.methods.PROBES", {one.name: one for one in methods}
    )


def test_transfer_between_two_stores_excludes_shared_questions(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(monkeypatch, Told(name="perplexity"), Told(name="probe", noise=0.5))
    first, second = stores
    config = compare_config(first, tmp_path / "out", test_on=(second,))
    results = compare_methods(config).results
    data, transfer = results["data"], results["transfer"]
    assert (data["train_on"], data["test_on"]) == ("a", "b")
    [[excluded]] = transfer["excluded"]
    assert excluded > 0
    # No answer of the second set is trained on, so all of them are tested.
    every = (second / "splits.csv").read_text().splitlines()[1:]
    assert sum(data["test"].values()) == len(every) - excluded == transfer["answers"][0][0]
    assert data["test"]["correct"] == transfer["correct"][0][0]
    assert np.shape(transfer["auroc"]) == (2, 1, 1)
    rows = {row["method"]: row for row in results["methods"]}
    assert transfer["auroc"][1] == [[rows["probe"]["test_auroc"]]]


def test_union_of_two_stores_is_trained_on_and_each_is_tested(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(monkeypatch, Told(name="perplexity"), Told(name="probe", noise=0.5))
    config = compare_config(
        stores[0], tmp_path / "out", train_on=stores, test_on=stores, union=True
    )
    result = compare_methods(config)
    data, transfer = result.results["data"], result.results["transfer"]
    assert data["train_on"] == "a + b together" and transfer["train_on"] == ["a + b together"]
    assert transfer["test_on"] == ["a", "b"]
    lines = [(folder / "splits.csv").read_text() for folder in stores]
    assert sum(data["train"].values()) == sum(text.count(",train,") for text in lines)
    tested = [text.count(",test,") for text in lines]
    excluded = transfer["excluded"][0]
    assert transfer["answers"] == [[all_ - out for all_, out in zip(tested, excluded, strict=True)]]


def test_union_of_one_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two or more folders together"):
        compare_config(tmp_path / "a", tmp_path / "out", union=True)


def test_transfer_matrix_covers_all_pairs_of_stores(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Told(name="graphs", needs=("graphs",), noise=0.5)
    tell(monkeypatch, Told(name="perplexity"), graphs)
    config = compare_config(stores[0], tmp_path / "out", train_on=stores, test_on=stores)
    results = compare_methods(config).results
    transfer = results["transfer"]
    assert transfer["train_on"] == transfer["test_on"] == ["a", "b"]
    by_name = dict(zip(transfer["methods"], transfer["auroc"], strict=True))
    assert np.array(by_name["perplexity"], float).min() > 0.5
    # Nodes of two captures are in different spaces.
    assert by_name["graphs"][0][1] is None and by_name["graphs"][1][0] is None
    assert by_name["graphs"][0][0] is not None
    assert transfer["excluded"][0][0] == transfer["excluded"][1][1] == 0
    lines = list(csv.DictReader((tmp_path / "out" / "transfer.csv").read_text().splitlines()))
    assert len(lines) == 6 and all(int(line["correct"]) > 0 for line in lines)
    again = compare_methods(config).results
    assert json.dumps(again["transfer"]) == json.dumps(transfer) and graphs.fitted == 2
    [left_out] = {one["reason"] for one in results["excluded"] if "trained on" not in one["reason"]}
    assert left_out.endswith(
        "capture the others with `basis` set to the first one's store of traces"
    )


def test_method_is_fitted_only_on_fields_comparable_across_stores(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are not comparable, but a method may work without them."""
    seen: list[frozenset[str]] = []

    class Taker(Told):
        def fit(self, data: Any, *, seed: int) -> Told:
            seen.append(data.fields)
            return super().fit(data, seed=seed)

    tell(monkeypatch, Taker(name="taker"))
    compare_methods(compare_config(stores[0], tmp_path / "pair", test_on=(stores[1],)))
    compare_methods(compare_config(stores[0], tmp_path / "alone"))
    pair, alone = seen
    of_nodes = {"node_mean", "node_max", "node_prompt", "node_tokens"}
    assert alone - pair == of_nodes and "lookback" in pair


def test_a_semantic_entropy_probe_is_tested_on_answers_without_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_data(tmp_path / "drawn")
    monkeypatch.setattr("tests.samples.question_id", lambda number: f"other-{number}")
    second = write_data(tmp_path / "plain", answers=False, graphs=False)
    for folder in (first, second):
        describe_capture(folder, model=MODEL)
    names = ("semantic_entropy_probe", "semantic_entropy")
    config = compare_config(first, tmp_path / "out", test_on=(second,), methods=names)
    results = compare_methods(config).results
    assert [row["method"] for row in results["methods"]] == ["semantic_entropy_probe"]
    assert [one["method"] for one in results["excluded"]] == ["semantic_entropy"]


def test_stores_of_different_models_are_rejected(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(monkeypatch, Told(name="perplexity"))
    describe_capture(stores[1], model={"id": "other", "fingerprint": "xyz"})
    config = compare_config(stores[0], tmp_path / "out", test_on=(stores[1],))
    with pytest.raises(InputError, match=r"fingerprint abc and id other, fingerprint xyz"):
        compare_methods(config)
    wide = write_data(tmp_path / "wide", dim=12)
    describe_capture(wide, model=MODEL)
    with pytest.raises(InputError, match=r"dim 8 and id tiny, dim 12"):
        compare_methods(compare_config(stores[0], tmp_path / "out", test_on=(wide,)))


def test_store_names_are_unique() -> None:
    assert distinct_names([Path("/x/facts"), Path("/x/nq")]) == ["facts", "nq"]
    assert distinct_names([Path("/a/pre"), Path("/b/pre")]) == ["a", "b"]
    assert distinct_names([Path("/a/x"), Path("/a/y"), Path("/b/x")]) == ["a/x", "a/y", "b/x"]
