"""A mapping of columns on the command line: one sentence before anything slow is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hallucination.questions.test_columns import TICKETS

_CODE = """
import sys
from clew.cli import main
try:
    main()
finally:
    print({"torch", "transformers"} & set(sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "mapping", "message"),
    [
        ("score", "question=Frge", 'no column "Frge" (did you mean "Frage"?)'),
        ("extract", "question=Frge", 'no column "Frge" (did you mean "Frage"?)'),
        ("ask", "question=Frge", 'no column "Frge" (did you mean "Frage"?)'),
        ("score", "answr=Frage", '--columns is "answr=Frage": there is no "answr" (did you mean'),
        ("score", "question=Frage,answer=Antwort,label=Urteil", "give --label-values as"),
        ("extract", "question=Frage,answer=Antwort,label=Urteil", "Use --answers given to read"),
    ],
)
def test_a_wrong_mapping_is_one_line_before_pytorch_is_loaded(
    tmp_path: Path, command: str, mapping: str, message: str
) -> None:
    (tmp_path / "tickets.csv").write_bytes(TICKETS.encode("latin-1"))
    words = [command, "--questions", "tickets.csv", "--columns", mapping]
    words += ["--detector", "."] if command == "score" else []
    words += ["--out", "store"] if command == "extract" else []
    call = [sys.executable, "-c", _CODE, *words]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    [line] = ended.stderr.strip().splitlines()
    assert message in line
    assert ended.stdout.strip().endswith("set()")
