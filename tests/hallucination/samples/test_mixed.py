"""Samples of several folders as one dataset."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import psutil
import pytest
import torch

from clew.base.errors import InputError
from clew.hallucination.detectors.training.samples import MixedData, PreprocessedData
from clew.hallucination.samples.answers import AnswerFeatures, FieldMemory
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.mixed import MixedAnswers, Portion
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from tests.samples import write_samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = []
    for number, rows in enumerate((20, 30)):
        folder = tmp_path_factory.mktemp("joined") / f"set-{number}"
        settings = {"source": {"basis": "the same"}}
        write_samples(folder, shards=2, rows=rows, answers=True, heads=True, settings=settings)
        made.append(folder)
    return made


def mix(folders: list[Path]) -> MixedAnswers:
    """The second folder's training split before the first's, and a few rows of both to test."""
    first, second = map(AnswerFeatures, folders)
    some = np.array([7, 3, 11])
    return MixedAnswers(
        "both",
        {
            "train": [Portion.of(second, "train"), Portion.of(first, "train")],
            "test": [Portion(data=first, rows=some), Portion(data=second, rows=some)],
        },
    )


@pytest.mark.parametrize("access", ["mapped", "read", "cached"])
@pytest.mark.parametrize("kind", get_args(SampleKind))
def test_joined_samples_are_those_of_their_folders(
    kind: SampleKind, access: Any, folders: list[Path]
) -> None:
    joined = MixedData(answers=mix(folders)).open(kind, "train")
    samples = joined.source.open(access=access, max_open=8)
    sizes = [len(PreprocessedData(folder=f).open(kind, "train")) for f in folders]
    assert len(joined) == sum(sizes)
    chosen = np.array([0, sizes[1] + 2, 1, sizes[1]])  # of the second, first, second, first
    batch = samples.read_batch(chosen, BufferPool())
    places = [(1, 0), (0, 2), (1, 1), (0, 0)]
    for at, (folder, place) in enumerate(places):
        own = PreprocessedData(folder=folders[folder]).open(kind, "train").samples
        alone = own.read_batch(np.array([place]), BufferPool())
        assert batch["question_id"][at] == alone["question_id"][0]
        assert batch["label"][at] == alone["label"][0]
        if "sequence" in alone:
            assert torch.equal(batch["sequence"][at], alone["sequence"][0])
    if kind != "sequences":
        nodes = [
            PreprocessedData(folder=folders[f])
            .open(kind, "train")
            .samples.read_batch(np.array([p]), BufferPool())["nodes"]
            for f, p in places
        ]
        assert torch.equal(batch["nodes"], torch.cat(nodes))


def test_loader_gives_every_joined_sample_once(folders: list[Path]) -> None:
    answers = mix(folders)
    dataset = MixedData(answers=answers).open("sequences", "train")
    loader = Loader(dataset, 7, shuffle=True, num_workers=0)
    seen = [index for batch in loader for index in batch["index"].tolist()]
    assert sorted(seen) == list(range(len(dataset)))
    states = answers.read("sequence", "train", layer=1)
    batch = next(iter(Loader(dataset, len(dataset), num_workers=0)))
    assert np.array_equal(batch["sequence"][:, 1].float().numpy(), states)


def test_mixed_answers_are_read_piece_by_piece(folders: list[Path]) -> None:
    answers = mix(folders)
    first, second = answers.folders[1], answers.folders[0]
    rows = np.array([7, 3, 11])
    texts = [one.index.question_ids[rows].tolist() for one in (first, second)]
    assert answers.question_ids["test"].tolist() == [*texts[0], *texts[1]]
    assert len(answers.labels["validation"]) == 0
    assert answers.read("sequence", "validation", layer=0).shape == (0, first.dim)
    whole = np.concatenate([one.read_rows("lookback", rows) for one in (first, second)])
    assert np.array_equal(answers.read("lookback", "test"), whole)
    assert len(answers.read("token_logprobs", "test")) == 6


def test_nodes_of_different_bases_are_not_mixed(folders: list[Path], tmp_path: Path) -> None:
    settings = {"source": {"basis": "another"}}
    other = write_samples(tmp_path / "other", shards=1, answers=True, settings=settings)
    same, different = mix(folders), mix([folders[0], other])
    assert "node_mean" in same.fields and "graphs" in same.samples
    assert "node_mean" not in different.fields and "graphs" not in different.samples
    assert "lookback" in different.fields and different.load_basis() is None


def test_eigenvalues_that_all_folders_have_are_mixed(folders: list[Path], tmp_path: Path) -> None:
    deep = write_samples(tmp_path / "deep", shards=1, answers=True, eigenvalues=100)
    answers = mix([folders[0], deep])
    found, own = answers.read("laplacian_top", "train"), AnswerFeatures(deep)
    assert found.shape[1:] == (3, 2, 25)
    mine = own.read("laplacian_top", "train", layer=1)[..., :25]
    assert np.array_equal(answers.read("laplacian_top", "train", layer=1)[: len(mine)], mine)


def test_samples_of_other_shapes_are_rejected(folders: list[Path], tmp_path: Path) -> None:
    wide = write_samples(tmp_path / "wide", shards=1, dim=12, answers=True)
    with pytest.raises(InputError, match=r'"sequence" of .* has shape .* use samples made with'):
        MixedData(answers=mix([folders[0], wide])).open("sequences", "train")


def test_fields_in_memory_are_those_of_the_files(folders: list[Path]) -> None:
    plain = AnswerFeatures(folders[0])
    size = plain.read("sequence", "train").nbytes // 2 * 2
    kept = AnswerFeatures(folders[0], memory=FieldMemory(size))
    rows = np.array([3, 1, 30])
    for field in ("sequence", "lookback", "laplacian_top"):  # the last does not fit
        for layer in (None, 2):
            found, expected = (one.read_rows(field, rows, layer=layer) for one in (kept, plain))
            assert found.dtype == np.float32 and np.array_equal(found, expected)
    kept.read("sequence", "train")[:] = 0  # a copy: methods scale in place
    assert np.array_equal(kept.read("sequence", "train"), plain.read("sequence", "train"))


def test_fields_are_not_kept_when_other_processes_have_taken_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, field = FieldMemory(1000), np.zeros(100, np.uint8)
    free = SimpleNamespace(available=150)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert memory.take("first", field.nbytes, lambda: field) is None
    free.available = 200
    assert memory.take("second", field.nbytes, lambda: field) is field


def test_fields_of_different_shapes_are_not_mixed(folders: list[Path], tmp_path: Path) -> None:
    """One capture has drawn three answers per question, the other four."""
    other = write_samples(tmp_path / "other", shards=2, rows=20, answers=True, draws=4)
    fields = mix([folders[0], other]).fields
    assert "entailment" not in fields and {"samples", "p_true", "contrast_true"} <= fields
    assert "entailment" in mix(folders).fields
