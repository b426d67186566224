"""Hostile files and requests: clew uses them or refuses them with a message, soon and in little
memory. `make fuzz` tries more of them."""

import sys
from pathlib import Path

import pytest

from tests.fuzz import CASES, FUZZ_KILLS, FUZZ_MINUTES, KILLS, SERVICE_CASES
from tests.fuzz.harness import try_cases
from tests.fuzz.inputs import KINDS
from tests.fuzz.kills import COMMANDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits processes as on Linux"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_used_or_refused_with_a_message(
    kind: str, corpus: Path, tmp_path: Path
) -> None:
    count = SERVICE_CASES if kind in {"api", "page", "identify"} else CASES
    outcomes = list(try_cases([(kind, seed) for seed in range(count)], corpus, tmp_path))
    assert [str(outcome) for outcome in outcomes if outcome.ended == "failed"] == []


def test_security_policy_says_how_much_is_tested() -> None:
    policy = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    told = " ".join(policy.split())
    assert (
        f"`make test` tries {CASES} hostile inputs of each of {len(KINDS)} kinds ({SERVICE_CASES} "
        f"of those that start a server, with 20 requests each), and kills each of {len(COMMANDS)} "
        f"commands and jobs {KILLS} times. `make fuzz` tries others for {FUZZ_MINUTES} minutes "
        f"(`make fuzz MINUTES=5` for less), then kills each command {FUZZ_KILLS} times"
    ) in told


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
