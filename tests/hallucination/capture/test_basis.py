"""A capture in the basis of another store."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clew.base.errors import InputError, SettingsMismatchError
from clew.hallucination.traces.compact import BASIS_NAME, fit_basis
from clew.storage.manifest import read_manifest
from clew.storage.verify import verify_store
from tests.builders import write_lines


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "others.jsonl"
    lines = [{"id": f"o{n}", "question": f"what is {n} ?", "answer": [str(n)]} for n in range(8)]
    return write_lines(path, lines)


@pytest.mark.slow
def test_capture_takes_the_basis_of_another_store(
    capture: Any, compact_store: Path, others: Path
) -> None:
    store = capture("second", questions=others, basis=compact_store).store
    first, second = read_manifest(compact_store), read_manifest(store)
    assert second.files[BASIS_NAME] == first.files[BASIS_NAME] == second.settings["basis"]
    assert (store / BASIS_NAME).read_bytes() == (compact_store / BASIS_NAME).read_bytes()
    assert not verify_store(store)
    capture("second", questions=others, basis=compact_store)  # resumes
    with pytest.raises(SettingsMismatchError, match="basis"):
        capture("second", questions=others)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (5, 12)])
def test_basis_has_the_principal_components(shape: tuple[int, int]) -> None:
    spread = torch.logspace(1, -1, shape[1])
    states = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * spread + 3
    basis = fit_basis([states], 8)
    count = min(8, shape[0] - 1)
    _, _, rows = torch.linalg.svd(states - states.mean(0), full_matrices=False)
    same = (basis.components[0].T[:count] * rows[:count]).sum(1).abs()
    assert same.tolist() == pytest.approx([1.0] * count, abs=1e-5)


def test_basis_of_another_shape_is_rejected_with_both_values(
    capture: Any, compact_store: Path, others: Path
) -> None:
    width = read_manifest(compact_store).settings["node_dim"]
    with pytest.raises(
        InputError, match=rf"shape \[.*, {width}\], but this capture's has \[.*, 2\]"
    ):
        capture("narrow", questions=others, basis=compact_store, node_dim=2)
    assert not (compact_store.parent / "narrow").exists()
