"""The data of a comparison, run separately or after a training."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.hallucination.comparison import CompareConfig, choose_folders
from clew.hallucination.comparison.methods import find_methods
from clew.hallucination.detectors.training.settings import TrainRunConfig

A, B = Path("a"), Path("b")


def test_one_folder_is_used_for_fitting_and_testing() -> None:
    usual = (Path("preprocessed_data"),)
    assert choose_folders() == (usual, usual)
    assert choose_folders(preprocessed_dir=A) == ((A,), (A,))


def test_transfer_is_from_some_stores_to_others_or_between_all_pairs() -> None:
    assert choose_folders(train_on=[A], test_on=[A, B]) == ((A,), (A, B))
    assert choose_folders(stores=[A, B]) == ((A, B), (A, B))


def test_ambiguous_data_is_rejected() -> None:
    with pytest.raises(InputError, match="`preprocessed_dir` and `stores` cannot be combined"):
        choose_folders(preprocessed_dir=A, stores=[A, B])
    with pytest.raises(InputError, match="`train_on` is missing"):
        choose_folders(test_on=[A])
    with pytest.raises(InputError, match='stores is "a": give two or more'):
        choose_folders(stores=[A, Path("b/../a")])


def test_comparison_after_a_training_has_its_settings_and_networks() -> None:
    trained = TrainRunConfig(preprocessed_dir=A, networks=("lstm",), out=B, overwrite=True)
    config = CompareConfig.after_training(trained)
    assert (config.train_on, config.test_on) == ((A,), (A,))
    assert config.out == B / "compare" and config.overwrite
    assert config.describe() == trained.describe()
    assert config.methods is not None
    assert {"lstm", "perplexity"} <= {*config.methods} and "gvae" not in config.methods


def test_comparison_cannot_follow_a_training_on_traces_or_by_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces = TrainRunConfig(data_pattern="traces", scores_file=Path("scores.csv"))
    with pytest.raises(InputError, match="matches traces: preprocess them"):
        CompareConfig.after_training(traces)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one process, but torchrun started 2"):
        CompareConfig.after_training(TrainRunConfig(preprocessed_dir=A))


def test_family_of_methods_has_a_name() -> None:
    found = {one.name: one.family for one in find_methods(["networks", "baselines", "perplexity"])}
    assert {*found.values()} == {"network", "baseline", "no training"}
    assert [name for name, family in found.items() if family == "no training"] == ["perplexity"]
