"""Load questions from a text that a test writes down, and a small copy of TriviaQA."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clew.hallucination.questions import Question, QuestionSet, load_questions


def load_text(folder: Path, name: str, text: str | bytes, limit: int | None = None) -> QuestionSet:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_questions(str(path), limit)


def load_record(folder: Path, record: dict[str, Any]) -> Question:
    return load_text(folder, "one.jsonl", json.dumps(record)).questions[0]


_SPLITS = {"train": 0, "validation": 10, "test": 20}
_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_PAGES = pa.struct([("title", _TEXTS), ("wiki_context", _TEXTS)])
_ANSWER = pa.struct(
    [("aliases", _TEXTS), ("normalized_aliases", _TEXTS), ("type", _TEXT), ("value", _TEXT)]
    + [("matched_wiki_entity_name", _TEXT), ("normalized_value", _TEXT)]
)
_TRIVIA = pa.schema(
    [("question", _TEXT), ("question_id", _TEXT), ("question_source", _TEXT)]
    + [("entity_pages", _PAGES), ("search_results", _PAGES), ("answer", _ANSWER)]
)


def write_trivia_qa(folder: Path) -> Path:
    """What a clone of the dataset contains: a subfolder per configuration, Parquet files per split,
    nested answers. Three questions per split."""
    config = folder / "rc.nocontext"
    config.mkdir(parents=True)
    files = ""
    for split, first in _SPLITS.items():
        rows = [_make_trivia(number) for number in range(first, first + 3)]
        table = pa.Table.from_pylist(rows, schema=_TRIVIA)
        pq.write_table(table, config / f"{split}-00000-of-00001.parquet")
        files += f"  - split: {split}\n    path: rc.nocontext/{split}-*\n"
    card = f"---\nconfigs:\n- config_name: rc.nocontext\n  data_files:\n{files}---\n"
    (folder / "README.md").write_text(card)
    return folder


def _make_trivia(number: int) -> dict[str, Any]:
    nothing: dict[str, list[str]] = {"title": [], "wiki_context": []}
    return {
        "question": f"Which American-born Sinclair won prize {number}?",
        "question_id": f"tc_{number}",
        "question_source": "http://www.triviacountry.com/",
        "entity_pages": nothing,
        "search_results": nothing,
        "answer": {
            "aliases": ["Harry Sinclair Lewis", "Sinclair Lewis"],
            "normalized_aliases": ["harry sinclair lewis", "sinclair lewis"],
            "type": "WikipediaEntity",
            "value": "Sinclair Lewis",
            "matched_wiki_entity_name": "",
            "normalized_value": "sinclair lewis",
        },
    }
