"""Known answers: probes that never judge what they were fitted on, and nearest neighbors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.base.errors import StoreError
from clew.engine.model_files import read_model, write_model
from clew.hallucination.answer_page.latent import unit_length
from clew.hallucination.detectors.similar_answers import (
    KNOWN_FILE,
    KnownAnswers,
    Neighbor,
    read_known,
    write_known,
)
from clew.hallucination.detectors.similar_answers import gather_known as gather_from_samples
from clew.hallucination.live.page.stored import BrowsedStore, gather_known, open_page_files
from clew.hallucination.samples.answers import AnswerFeatures
from clew.metrics.ranking import auroc
from tests.hallucination.live.making import preprocess_tiny, read_traces
from tests.hallucination.live.page.conftest import Folders


@pytest.fixture(scope="module")
def known(trace_store: BrowsedStore) -> KnownAnswers:
    found = trace_store.known
    assert found is not None and found.probes is not None
    return found


def states_of(store: BrowsedStore, number: int) -> np.ndarray:
    trace = store.trace(number)
    assert trace is not None
    states = store.show(trace).states
    assert states is not None
    return states


def number_of(known: KnownAnswers, neighbor: Neighbor) -> int:
    return int(known.texts.numbers[neighbor.row])


@pytest.mark.slow
def test_a_known_answer_is_judged_by_probes_that_did_not_see_it(
    trace_store: BrowsedStore, known: KnownAnswers
) -> None:
    assert known.probes is not None
    risks = np.array([known.risks(states_of(trace_store, n), n) for n in range(70)])
    labels = trace_store.index.hallucinated == 1
    held_out = [auroc(labels, risks[:, layer]) for layer in range(risks.shape[1])]
    assert held_out == pytest.approx(known.probes.aurocs, abs=0.02)
    seen = np.array([known.risks(states_of(trace_store, n), None) for n in range(70)])
    assert auroc(labels, seen[:, -1]) > known.probes.aurocs[-1]


def test_the_nearest_answer_to_a_copy_is_the_original(
    trace_store: BrowsedStore, known: KnownAnswers
) -> None:
    states = states_of(trace_store, 9)
    copy = known.nearest(states, None, 3)
    assert number_of(known, copy[0]) == 9 and copy[0].similarity == pytest.approx(1, abs=1e-2)
    others = known.nearest(states, 9, 3)
    assert [one.row for one in others[:2]] == [one.row for one in copy[1:]]


def test_states_of_another_model_are_not_compared(known: KnownAnswers) -> None:
    other = unit_length(np.ones((5, 7), np.float32))
    assert known.nearest(other, None, 3) == [] and known.risks(other, None) is None


def test_without_labels_there_are_neighbors_but_no_probes(folders: Folders) -> None:
    store = open_page_files(folders.traces).store
    assert store is not None
    found = gather_known(store.loader, store.index)
    assert found is not None and found.probes is None
    assert len(found.nearest(states_of(store, 3), 3, 5)) == 5


def test_known_answers_kept_with_a_detector_say_the_same(
    trace_store: BrowsedStore, known: KnownAnswers, tmp_path: Path
) -> None:
    write_known(tmp_path, known)
    found = read_known(tmp_path)
    states = states_of(trace_store, 9)
    assert found is not None and found.risks(states, 9) == pytest.approx(known.risks(states, 9))
    rows = [[one.row for one in kept.nearest(states, 9, 5)] for kept in (found, known)]
    assert rows[0] == rows[1] and found.texts.questions == known.texts.questions
    assert read_known(tmp_path / "elsewhere") is None


def test_a_damaged_file_of_known_answers_is_refused(known: KnownAnswers, tmp_path: Path) -> None:
    write_known(tmp_path, replace(known, states=known.states[1:]))
    with pytest.raises(StoreError, match="is damaged .states has shape"):
        read_known(tmp_path)


def test_known_answers_come_from_samples_too(folders: Folders, tmp_path: Path) -> None:
    config = preprocess_tiny(folders.traces, tmp_path / "made")
    found = gather_from_samples(AnswerFeatures(config.out))
    assert found is not None and found.probes is not None and found.layers == 3
    traces = read_traces(folders.traces)
    for row, number in enumerate(found.texts.numbers.tolist()):
        assert found.texts.answers[row] == traces[number]["answer"]
        assert found.texts.label_at(row) == ("correct" if number % 3 else "hallucinated")
    nearest = found.nearest(unit_length(traces[9]["last_hidden"]), None, 1)
    assert number_of(found, nearest[0]) == 9


@pytest.mark.parametrize("name", ["center", "labels", "states"])
@pytest.mark.parametrize("value", [torch.zeros((), dtype=torch.bfloat16), torch.zeros(0)])
def test_known_answers_of_other_types_or_shapes_are_refused(
    known: KnownAnswers, tmp_path: Path, name: str, value: torch.Tensor
) -> None:
    write_known(tmp_path, known)
    saved = read_model(tmp_path / KNOWN_FILE)
    write_model(tmp_path / KNOWN_FILE, {**saved.read(saved.kinds), name: value}, saved.about)
    with pytest.raises(StoreError, match=r"is damaged \(.*: delete it"):
        read_known(tmp_path)
