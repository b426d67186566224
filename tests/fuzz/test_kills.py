"""Commands that are killed at random moments resume to what an uninterrupted run leaves."""

import sys
from pathlib import Path

import pytest

from tests.fuzz import KILLS
from tests.fuzz.kills import COMMANDS, kill_and_resume

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits processes as on Linux"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_resume_after_random_kills_gives_identical_files(
    command: str, corpus: Path, tmp_path: Path
) -> None:
    killed = kill_and_resume(command, KILLS, 0, corpus, tmp_path)
    assert killed.problems == []
    assert killed.kills == KILLS
