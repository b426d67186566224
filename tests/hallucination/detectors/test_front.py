"""The public names of the detectors are lazy and load no more than they need."""

import pytest

import clew.hallucination.detectors as front
from tests.test_imports import loaded_by

FRONT = "from clew.hallucination.detectors import "


def test_every_public_name_exists() -> None:
    assert all(getattr(front, name) is not None for name in front.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'magic'"):
        _ = front.magic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import clew.hallucination.detectors", {"torch", "sklearn", "pyarrow"}),
        (f"{FRONT}PROBES", {"torch", "torch_geometric"}),
        (f"{FRONT}load_detector, train_detectors", {"sklearn", "transformers", "matplotlib"}),
    ],
)
def test_a_name_loads_only_what_it_needs(code: str, unneeded: set[str]) -> None:
    assert sorted(loaded_by(code) & unneeded) == []
