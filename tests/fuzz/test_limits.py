"""Commands that lack disk space, memory, permissions or a home end with a message, and resume."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.limits import LIMITS, limit_and_resume

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits processes as on Linux"),
]


# Every limit once; `make fuzz` tries all of them with every command.
@pytest.mark.parametrize(("command", "first"), [("extract", 0), ("preprocess", 1)])
def test_limited_command_ends_with_a_message_and_resumes(
    command: str, first: int, corpus: Path, tmp_path: Path
) -> None:
    assert limit_and_resume(command, 1, 0, corpus, tmp_path, LIMITS[first::2]) == []
