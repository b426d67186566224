"""clew extract --dry-run."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders import write_questions


@pytest.mark.slow
def test_a_dry_run_prints_the_prediction_and_writes_nothing(
    run: Any, model_folder: Path, tmp_path: Path
) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 3)
    files = ("--model", model_folder, "--questions", questions, "--out", tmp_path / "store")
    small = ("--max-new-tokens", "2", "--node-dim", "4", "--device", "cpu")
    ended = run("extract", *files, *small, "--dry-run", "--workers", "4", "--gpu", "a100")
    assert ended.code == 0, ended.err
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in ended.out.splitlines() if line}
    assert rows["questions"] == "3 in 1 shard"
    assert "per worker" in rows["memory"]
    assert "with 4 workers, each with one A100 80GB" in rows["time"]
    assert rows["bottleneck"].endswith("Use a smaller --shard-size")
    assert "data sheet of the A100 80GB" in ended.out
    assert not (tmp_path / "store").exists()
