"""Where samples come from, and what is rejected before anything is trained."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, StoreError
from clew.datasets import ResidentSamples
from clew.engine import LoadSettings, TrainConfig
from clew.hallucination.detectors.registry import NETWORKS
from clew.hallucination.detectors.training.samples import (
    DetectorSamples,
    PreprocessedData,
    RawData,
    read_sizes,
)
from clew.hallucination.detectors.training.settings import TrainRunConfig
from clew.hallucination.detectors.training.train import train_detectors
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.raw import RawSamples
from tests.hallucination.detectors.training.making import small_run
from tests.hallucination.legacy.old_files import ANSWER, PROMPT, make_record, write_pickle
from tests.hallucination.samples.trace_stores import tiny_preprocess, write_scores
from tests.samples import write_samples

pytestmark = pytest.mark.slow

ALL = list(NETWORKS.values())


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scores(tmp_path_factory.mktemp("scores") / "scores.csv", 70)


def epoch(samples: DetectorSamples, split: str, **settings: Any) -> list[dict[str, Any]]:
    return list(samples.open_later(split)(LoadSettings(batch_size=8, **settings)))


@pytest.mark.parametrize("kind", ["sequences", "graphs"])
def test_traces_yield_the_same_samples_as_preprocessing(
    compact_store: Path, scores: Path, tmp_path: Path, kind: Any
) -> None:
    preprocess_store(tiny_preprocess(compact_store, scores, tmp_path / "made"))
    made = DetectorSamples(PreprocessedData(folder=tmp_path / "made"), kind)
    raw = DetectorSamples(
        RawData(traces=RawSamples(store=compact_store, scores_file=scores, score_threshold=0.5)),
        kind,
    )
    assert raw.describe() == made.describe() and read_sizes(raw.splits["train"]) == read_sizes(
        made.splits["train"]
    )
    for one, other in zip(epoch(raw, "train"), epoch(made, "train"), strict=True):
        assert one["question_id"] == other["question_id"]
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[name], value), name


def test_score_threshold_decides_which_answers_are_hallucinated(
    compact_store: Path, scores: Path
) -> None:
    strict = DetectorSamples(
        RawData(traces=RawSamples(store=compact_store, scores_file=scores, score_threshold=0.9)),
        "sequences",
    )
    assert sum(of.hallucinated for of in strict.balance.values()) == 56
    assert strict.positive_weight == pytest.approx(0.25, abs=0.05)


def test_high_scores_may_mean_hallucinated(compact_store: Path, scores: Path) -> None:
    data = RawData(traces=RawSamples(store=compact_store, scores_file=scores, score_threshold=0.5))
    labels = {}
    for meaning in (None, "correct", "hallucinated"):
        splits = DetectorSamples(
            RawData(traces=replace(data.traces, higher_is=meaning)), "sequences"
        ).splits.values()
        of_split = [zip(one.index.question_ids, one.index.labels, strict=True) for one in splits]
        labels[meaning] = {str(name): label for pairs in of_split for name, label in pairs}
    assert labels[None] == labels["correct"]
    assert (labels["correct"]["q0"], labels["correct"]["q1"]) == (0, 1)
    assert (labels["hallucinated"]["q0"], labels["hallucinated"]["q1"]) == (1, 0)


def make_old_record(number: int) -> dict[str, Any]:
    """Each with its own question: samples of one question are never separated."""
    words = [*PROMPT[:4], f" who{number}", *PROMPT[5:], *ANSWER]
    return make_record(number, tokens_decoded=words)


def test_old_files_are_converted_and_used_for_training(tmp_path: Path) -> None:
    old = tmp_path / "traces_data"
    for batch in range(2):
        records = [make_old_record(40 * batch + i) for i in range(40)]
        write_pickle(old / f"batch_{batch:04d}.pkl.gz", records)
    config = TrainRunConfig(
        data_pattern=f"{old}/*.pkl*",
        scores_file=write_scores(tmp_path / "scores.csv", 80),
        out=tmp_path / "out",
        networks=("gnn_det",),
        train=TrainConfig(epochs=1),
    )
    for _ in range(2):
        [run] = train_detectors(config)
        assert run["config"]["input_dim"] == 8
    assert config.open_source().name == str(tmp_path / "out" / "traces_store")


def test_every_setting_reaches_the_loader(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "samples")
    samples = DetectorSamples(PreprocessedData(folder=folder), "sequences")
    orders = [
        np.concatenate([batch["index"].numpy() for batch in epoch(samples, "train", **settings)])
        for settings in (
            {"shuffle": True, "seed": 1},
            {"shuffle": True, "seed": 2},
            {"shuffle": True, "seed": 1, "num_workers": 2, "max_cache_batches": 1},
            {"persistent_workers": True, "num_workers": 1, "prefetch_factor": 3},
        )
    ]
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[0], orders[2])
    assert np.array_equal(orders[3], np.arange(len(orders[0])))


def test_split_without_both_classes_is_rejected_with_the_counts(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "few", shards=1, rows=4)
    sentence = (
        r'the validation split of ".*few" has no hallucinated answers, .* train 3 '
        r"\(1 correct, 2 hallucinated\), validation 1 \(1 correct, 0 hallucinated\), "
        r"test 0 .* Use more questions"
    )
    with pytest.raises(InputError, match=sentence):
        train_detectors(small_run(folder, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_networks_with_missing_samples_are_named_before_training(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "samples", graphs=False)
    sentence = "no graphs, which gnn_det and gvae require: .*`run_gnn_det=False` `run_gvae=False`"
    with pytest.raises(InputError, match=sentence):
        train_detectors(small_run(folder, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    PreprocessedData(folder=folder).refuse_missing([NETWORKS["lstm"]])
    with pytest.raises(InputError, match="which gvae requires: .* without `graphs=False`.$"):
        PreprocessedData(folder=folder).refuse_missing([NETWORKS["gvae"]])
    with pytest.raises(InputError, match="no graphs, which act_vit requires: .*`graphs=False`.$"):
        PreprocessedData(folder=folder).refuse_missing([NETWORKS["act_vit"]])
    with pytest.raises(InputError, match="charm requires: .*`keep=.full.`.*run_charm=False`.$"):
        PreprocessedData(folder=folder).refuse_missing([NETWORKS["lstm"], NETWORKS["charm"]])


@pytest.mark.parametrize("name", ["charm", "act_vit"])
def test_networks_that_cannot_read_traces_are_rejected(compact_store: Path, name: str) -> None:
    data = RawData(
        traces=RawSamples(store=compact_store, scores_file=Path("scores.csv"), score_threshold=0.5)
    )
    with pytest.raises(InputError, match=f'{name} cannot be trained on traces .*"clew preprocess"'):
        data.refuse_missing([NETWORKS["lstm"], NETWORKS[name]])


def test_graphs_without_sequences_are_rejected(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "samples")
    shutil.rmtree(folder / "sequences")
    with pytest.raises(InputError, match="has no sequences, which lstm, gnn_det and gvae require"):
        PreprocessedData(folder=folder).refuse_missing(ALL)


def test_converted_samples_are_found_under_their_new_names(tmp_path: Path) -> None:
    """`clew convert` of earlier versions kept the names of legacy folders."""
    folder = write_samples(tmp_path / "converted")
    (folder / "splits.csv").unlink()
    names = {"sequences": "lstm_solo", "graphs": "gnn"}
    for kind, old in names.items():
        (folder / kind).rename(folder / old)
    with pytest.raises(
        InputError, match='rename ".*gnn" to ".*graphs" and ".*lstm_solo" to ".*seq'
    ):
        train_detectors(small_run(folder, tmp_path / "out"))
    for kind, old in names.items():
        (folder / old).rename(folder / kind)
    samples = DetectorSamples(PreprocessedData(folder=folder), "graphs")
    assert read_sizes(samples.splits["train"])["node_dim"] == 5


def test_folders_without_samples_are_rejected(
    compact_store: Path, scores: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match='there is no folder "nowhere": create it with "clew prep'):
        PreprocessedData(folder=Path("nowhere")).refuse_missing(ALL)
    with pytest.raises(InputError, match='is not a clew store: .* that "clew preprocess" wrote'):
        PreprocessedData(folder=tmp_path).refuse_missing(ALL)
    with pytest.raises(StoreError, match="contains traces, not .*clew.preprocess"):
        train_detectors(small_run(compact_store, tmp_path / "out"))
    with pytest.raises(StoreError, match='there is no store at "nowhere"'):
        train_detectors(
            TrainRunConfig(data_pattern="nowhere", scores_file=scores, out=tmp_path / "out")
        )


@pytest.mark.parametrize("kind", ["sequences", "graphs", "heads", "grids"])
@pytest.mark.parametrize("free_bytes", [1 << 40, 1000], ids=["fits", "too small"])
def test_batches_for_a_gpu_do_not_depend_on_where_the_samples_are(
    learnable: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, free_bytes: int
) -> None:
    """The CPU stands in for the GPU."""
    monkeypatch.setattr(
        "clew.hallucination.detectors.training.samples._own_gpu", lambda: torch.device("cpu")
    )
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free_bytes, free_bytes))
    samples = DetectorSamples(PreprocessedData(folder=learnable), kind)
    settings = {"shuffle": True, "seed": 3, "num_workers": 1}
    read = epoch(samples, "train", **settings)
    loader = samples.open_later("train")(LoadSettings(batch_size=8, pin_memory=True, **settings))
    assert isinstance(loader.dataset, ResidentSamples) == (free_bytes > 1000)
    for one, other in zip(loader, read, strict=True):
        assert one.keys() == other.keys() and one["question_id"] == other["question_id"]
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[name], value), name
    few = samples.open_later("train")(
        LoadSettings(batch_size=8, pin_memory=True, max_cache_batches=1)
    )
    assert not isinstance(few.dataset, ResidentSamples)
