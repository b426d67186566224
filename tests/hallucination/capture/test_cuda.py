"""A capture on a GPU, where passes are captured as CUDA graphs and replayed."""

from pathlib import Path

import pytest
import torch

from clew.hallucination.capture import extract, load_model
from clew.hallucination.llm import memory
from tests.stores import assert_nearly_same_store, assert_same_store, tiny_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_traces_on_a_gpu_are_those_of_the_cpu_and_the_same_in_every_run(
    compact_store: Path,
    model_folder: Path,
    questions_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rows that grow: all passes are captured again while tokens of the last one are being read.
    for least in ("_MIN_CAPACITY", "_MIN_CAPACITY_OF_GRAPHS"):
        monkeypatch.setattr(memory, least, 16)
    stores = [tmp_path / "once", tmp_path / "again"]
    for store in stores:
        config = tiny_config(
            model_folder, questions_file, store, device="cuda", basis=compact_store
        )
        extract(config, loaded=load_model(str(model_folder), device="cuda", dtype="float32"))
    assert_nearly_same_store(stores[0], compact_store)
    assert_same_store(*stores)
