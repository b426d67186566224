"""Load questions from a text that a test writes down."""

import json
from pathlib import Path
from typing import Any

from clew.hallucination.questions import Question, QuestionSet, load_questions


def load_text(folder: Path, name: str, text: str | bytes, limit: int | None = None) -> QuestionSet:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_questions(str(path), limit)


def load_record(folder: Path, record: dict[str, Any]) -> Question:
    return load_text(folder, "one.jsonl", json.dumps(record)).questions[0]
