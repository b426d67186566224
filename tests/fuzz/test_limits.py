"""Commands that lack disk space, memory, permissions or a home end with a message, and resume."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.limits import limit_and_resume

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits processes as on Linux"),
]


@pytest.mark.parametrize("command", ["extract", "preprocess"])
def test_limited_command_ends_with_a_message_and_resumes(
    command: str, corpus: Path, tmp_path: Path
) -> None:
    assert limit_and_resume(command, 1, 0, corpus, tmp_path) == []
