"""Commands that use no network start without waiting for torch."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [["create", "new"], ["import", "new", "in"], ["list"], ["info"], ["review"]]
CODE = f"""
import sys
import clew.patterns.review.review, clew.patterns.review.terminal
from clew.cli import main
for words in {COMMANDS}:
    sys.argv = ["clew", "patterns", *words]
    try:
        main()
    except SystemExit:
        pass
    print(words[0], {{"torch", "matplotlib", "scipy"}} & set(sys.modules))
"""


@pytest.mark.slow
def test_commands_without_a_network_do_not_load_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for words in COMMANDS:
        assert f"{words[0]} set()\n" in ran.stdout, ran.stderr
