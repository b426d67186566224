"""The explorer's list: search, filters, order, and which comparison's risks it shows."""

from pathlib import Path

import numpy as np
import pytest

from clew.errors import InputError
from clew.hallucination.live.page.files import BrowsedStore, open_page_files
from clew.hallucination.live.page.index import Search
from tests.hallucination.answer_page.making import ANSWERS, write_comparison
from tests.hallucination.live.page.conftest import Folders


def found(store: BrowsedStore, **wanted: object) -> list[int]:
    rows = store.index.find(Search(**wanted))  # type: ignore[arg-type]
    return [int(store.index.numbers[row]) for row in rows]


def test_every_word_of_a_search_must_be_found(trace_store: BrowsedStore) -> None:
    index = trace_store.index
    word = index.describe(7)["question"].split()[0].lower()
    one, both = found(trace_store, text=word.upper()), found(trace_store, text=f"{word} 7?")
    assert 7 in both and set(both) < set(one) < set(range(70))
    for number in both:
        texts = " ".join(str(value) for value in index.describe(number).values()).lower()
        assert word in texts and "7?" in texts
    assert found(trace_store, text="#12") == [12]
    assert found(trace_store, text="no such word (") == []


def test_worst_mistakes_come_first(trace_store: BrowsedStore) -> None:
    labels = {n: trace_store.index.label_at(trace_store.index.row_of(n) or 0) for n, *_ in ANSWERS}
    wrongness = {n: abs(risk - (labels[n] == "hallucinated")) for n, _, _, risk in ANSWERS}
    order = found(trace_store, order="worst")
    assert order[:4] == sorted(wrongness, key=lambda n: -wrongness[n]) and len(order) == 70
    assert found(trace_store, order="risk")[:4] == [4, 5, 3, 6]


def test_answers_are_filtered_by_label_risk_and_outcome(trace_store: BrowsedStore) -> None:
    hallucinated = found(trace_store, label="hallucinated")
    assert sorted([*hallucinated, *found(trace_store, label="correct")]) == list(range(70))
    assert found(trace_store, label="none") == []
    assert found(trace_store, least_risk=0.5) == [4, 5] and found(trace_store, most_risk=0.15) == [
        6
    ]
    missed = [n for n in (3, 6) if n in hallucinated]
    assert found(trace_store, outcome="missed") == missed
    assert found(trace_store, outcome="mistakes") == sorted(
        [*missed, *(n for n in (4, 5) if n not in hallucinated)]
    )


def test_labels_of_the_comparison_are_used_without_scores(folders: Folders) -> None:
    store = open_page_files(folders.traces, None, (folders.comparison,)).store
    assert store is not None and store.index.count_labeled() == len(ANSWERS)
    assert [store.index.label_at(n) for n, *_ in ANSWERS] == [
        "hallucinated" if label else "correct" for _, _, label, _ in ANSWERS
    ]


def test_risks_of_a_comparison_of_other_answers_are_not_shown(
    folders: Folders, tmp_path: Path
) -> None:
    other = write_comparison(tmp_path / "other", question="another-{}")
    files = open_page_files(folders.traces, None, (other, folders.comparison))
    assert files.store is not None and files.store.index.risk is not None
    assert np.isfinite(files.store.index.risk.values).sum() == len(ANSWERS)
    alone = open_page_files(folders.traces, None, (other,))
    assert alone.store is not None and alone.store.index.risk is None


def test_scores_without_traces_are_refused(folders: Folders) -> None:
    with pytest.raises(InputError, match="give `traces` too"):
        open_page_files(None, folders.scores)
