"""The explorer's list: search, filters, order, and which comparison's risks it shows."""

from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.live.page.stored import BrowsedStore, Search, open_page_files
from tests.hallucination.answer_page.making import ANSWERS, write_comparison
from tests.hallucination.live.page.conftest import Folders

pytestmark = pytest.mark.slow


def found(store: BrowsedStore, **wanted: object) -> list[int]:
    rows = store.index.find(Search(**wanted))  # type: ignore[arg-type]
    return [int(store.index.numbers[row]) for row in rows]


def checked(store: BrowsedStore) -> dict[int, float]:
    """The risks by number of the compared answers that were not cut off."""
    ends = store.index.texts.column("stop_reason").to_pylist()
    return {number: risk for number, _, _, risk in ANSWERS if ends[number] != "length"}


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
    index, risks = trace_store.index, checked(trace_store)
    wrongness = {n: abs(risk - (index.hallucinated[n] == 1)) for n, risk in risks.items()}
    order = found(trace_store, order="worst")
    assert order[: len(risks)] == sorted(risks, key=lambda n: -wrongness[n]) and len(order) == 70
    by_risk = found(trace_store, order="risk")[: len(risks)]
    assert by_risk == sorted(risks, key=lambda n: -risks[n])


def test_answers_are_filtered_by_label_risk_and_outcome(trace_store: BrowsedStore) -> None:
    hallucinated = found(trace_store, label="hallucinated")
    assert sorted([*hallucinated, *found(trace_store, label="correct")]) == list(range(70))
    assert found(trace_store, label="none") == []
    risks = checked(trace_store)
    flagged = [number for number, risk in risks.items() if risk > 0.6]
    assert found(trace_store, least_risk=0.6) == flagged
    assert found(trace_store, most_risk=0.15) == [n for n, risk in risks.items() if risk < 0.15]
    missed = [n for n in risks if n not in flagged and n in hallucinated]
    assert found(trace_store, outcome="missed") == missed
    false_alarms = [n for n in flagged if n not in hallucinated]
    assert found(trace_store, outcome="mistakes") == sorted([*missed, *false_alarms])


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
    assert np.isfinite(files.store.index.risk.values).sum() == len(checked(files.store))
    alone = open_page_files(folders.traces, None, (other,))
    assert alone.store is not None and alone.store.index.risk is None


def test_scores_without_traces_are_refused(folders: Folders) -> None:
    with pytest.raises(InputError, match="give `traces` too"):
        open_page_files(None, folders.scores)
