"""`clew adapt`: a detector that was trained elsewhere, adapted to somebody's own answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.detectors.adaptation import (
    UNLABELED,
    adapt_vectors,
    choose_next,
    start_linear,
)
from clew.hallucination.detectors.detector_folder import save_detector
from clew.hallucination.labels.review import open_review
from clew.hallucination.llm.models import LoadedModel
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc
from tests.hallucination.conftest import FitDetector
from tests.hallucination.live.making import read_traces

LAYERS, DIM = 8, 12  # five middle layers
SCALE = PlattScale(slope=1.0, intercept=0.0, middle=0.0, spread=1.0)


def draw(count: int, *, source: float, states: float, seed: int = 0) -> Any:
    """Vectors and labels: how much the source's score and the states say about the label."""
    random = np.random.default_rng(seed)
    labels = (random.random(count) < 0.5).astype(np.int64)
    vectors = random.standard_normal((count, 6 + 2 * 3 * DIM)).astype(np.float32)
    vectors[:, 0] += source * labels
    vectors[:, 6:12] += states * labels[:, None]
    return vectors, labels


def adapt(vectors: np.ndarray, labels: np.ndarray) -> Any:
    return adapt_vectors(vectors, labels, start_linear(vectors.shape[1]), SCALE, LAYERS)


def test_labels_add_what_the_states_say_to_the_score_of_the_source() -> None:
    vectors, labels = draw(400, source=1.0, states=1.0)
    given = labels.copy()
    given[100:] = UNLABELED
    found = adapt(vectors[:200], given[:200])
    tested, truth = vectors[200:], labels[200:]
    before, after = (auroc(truth, one) for one in (tested[:, 0], found.adaptation.score(tested)))
    assert after > before + 0.1
    assert found.figures["kept_ranking"] is None
    assert found.figures["gain_ci"][0] > 0
    assert (found.figures["labels"], found.figures["unlabeled"]) == (100, 100)


def test_few_labels_of_a_class_keep_the_ranking() -> None:
    vectors, labels = draw(100, source=1.0, states=1.0)
    few = np.concatenate([np.flatnonzero(labels == 0)[:30], np.flatnonzero(labels == 1)[:4]])
    found = adapt(vectors[few], labels[few])
    assert "4 of the 34 labeled answers are hallucinated" in found.figures["kept_ranking"]
    order = np.argsort(found.adaptation.score(vectors))
    assert (order == np.argsort(vectors[:, 0])).all()


def test_labels_of_one_class_change_no_risk() -> None:
    vectors, _ = draw(25, source=1.0, states=1.0)
    found = adapt(vectors, np.zeros(25, np.int64))
    assert "none of the 25" in found.figures["kept_ranking"]
    assert (found.calibration, found.threshold) == (SCALE, None)


def test_labels_that_make_it_worse_keep_the_ranking() -> None:
    """In the states, every answer looks like one of the other class."""
    vectors, labels = draw(120, source=1.0, states=0.0)
    vectors[:, 6:] = 0
    for one in (0, 1):
        rows = np.flatnonzero(labels == one)
        vectors[rows, 6 + np.arange(len(rows))] = 1
    found = adapt(vectors, labels)
    assert "AUROC on the labeled answers is lower by" in found.figures["kept_ranking"]
    assert (found.adaptation.score(vectors) == vectors[:, 0]).all()


def test_fewer_than_twenty_labels_are_refused() -> None:
    vectors, labels = draw(19, source=1.0, states=1.0)
    with pytest.raises(InputError, match="19 answers have a label, .* at least 20"):
        adapt(vectors, labels)


def test_answers_like_those_it_was_adapted_to_are_familiar() -> None:
    vectors, labels = draw(200, source=1.0, states=1.0)
    region = adapt(vectors[:100], labels[:100]).adaptation.region
    assert (region.measure(vectors[100:]) <= 1).mean() > 0.9
    assert (region.measure(vectors[100:] + 9) > 1).all()


@pytest.fixture(scope="module", params=["gated", "lstm"])
def source(
    request: pytest.FixtureRequest, fit: FitDetector, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return save_detector(fit(request.param), tmp_path_factory.mktemp("source") / "detector")


@pytest.fixture(scope="module")
def answers(live_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most have a label, by their last letter."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    rows = [
        {"question": trace["question"], "answer": trace["answer"]}
        | ({} if number % 6 == 0 else {"hallucinated": trace["answer"].strip()[-1:] < "n"})
        for number, trace in read_traces(live_store).items()
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.slow
def test_adapted_detector_is_used_like_any_other(
    source: Path, answers: Path, live_model: LoadedModel, tmp_path: Path
) -> None:
    out = tmp_path / "adapted"
    result = clew.adapt(source, labeled=answers, out=out, model=live_model)
    assert result.labels >= 20 and result.unlabeled
    about = clew.inspect(out).as_dict()
    assert about["adapted"]["from"] == str(source)
    assert about["adapted"]["labels"] == result.labels
    scored = clew.score(questions=answers, detector=out, model=live_model)
    checked = [row for row in scored.rows if row["state"] == "checked"]
    assert len(checked) >= 0.8 * (result.labels + result.unlabeled)
    truth, risks = zip(*_labeled_risks(scored), strict=True)
    assert auroc(np.array(truth), np.array(risks)) >= result.auroc_before
    again = clew.adapt(out, labeled=answers, out=tmp_path / "again", model=live_model)
    assert again.auroc_before > result.auroc_before
    with pytest.raises(InputError, match="a detector is there already"):
        clew.adapt(source, labeled=answers, out=out, model=live_model)


@pytest.mark.slow
def test_answers_to_label_next_are_those_of_the_review(
    source: Path, live_store: Path, tmp_path: Path
) -> None:
    settings = {"out": tmp_path / "scores.csv", "next": True, "detector": source}
    first = clew.label(live_store, **settings).next
    assert first is not None and len({*first}) == 20
    with open_review(tmp_path / "scores.csv", only=first) as review:
        assert [one.row.global_example_id for one in review.queue] == first
        for label in ("correct", "hallucinated") * 10:
            review.decide(label)
    again = clew.label(live_store, **settings)
    assert again.corrected == 20
    assert again.next and not {*again.next} & {*first}


def test_next_answers_are_spread_over_all_risks() -> None:
    vectors, labels = draw(300, source=3.0, states=1.0)
    known = np.where(np.arange(300) < 40, labels, UNLABELED)
    before = start_linear(vectors.shape[1])
    chosen = choose_next(vectors, known, before, 20)
    assert len({*chosen}) == 20 and (known[chosen] == UNLABELED).all()
    ranks = vectors[:, 0].argsort().argsort()[choose_next(vectors, known * 0 - 1, before, 20)]
    assert ((ranks * 20 // 300) == np.arange(20)).all()
    assert len(choose_next(vectors, labels, before, 20)) == 0
    assert len(choose_next(vectors[:45], known[:45], before, 20)) == 5


def _labeled_risks(scored: Any) -> list[tuple[bool, float]]:
    rows = [(row["hallucinated"], row["risk"]) for row in scored.rows]
    return [(label, risk) for label, risk in rows if label is not None and risk is not None]
