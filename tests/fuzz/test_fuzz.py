"""Hostile files and requests: clew uses them or refuses them with a message, soon and in little
memory. `make fuzz` tries more of them."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.harness import try_cases
from tests.fuzz.inputs import KINDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits processes as on Linux"),
]

CASES = 5
OF_THE_SERVICE = 2  # each takes about two seconds


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_used_or_refused_with_a_message(
    kind: str, corpus: Path, tmp_path: Path
) -> None:
    count = OF_THE_SERVICE if kind in {"api", "page"} else CASES
    outcomes = list(try_cases([(kind, seed) for seed in range(count)], corpus, tmp_path))
    assert [str(outcome) for outcome in outcomes if outcome.ended == "failed"] == []


def test_same_seed_gives_the_same_input(corpus: Path, tmp_path: Path) -> None:
    for place in ("one", "two"):
        list(
            try_cases([("models", seed) for seed in range(3)], corpus, tmp_path / place, keep=True)
        )
    first, second = (_read_models(tmp_path / place) for place in ("one", "two"))
    assert first == second and len(first) >= 3


def _read_models(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.glob("*/model/**/*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
